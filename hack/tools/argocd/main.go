// Argo CD's programs that `bireme up --with argocd` runs, and the Redis they share: argocd PROGRAM ARGUMENTS.
package main

import (
	"fmt"
	"os"

	"github.com/alicebob/miniredis/v2"
	controller "github.com/argoproj/argo-cd/v3/cmd/argocd-application-controller/commands"
	reposerver "github.com/argoproj/argo-cd/v3/cmd/argocd-repo-server/commands"
	"github.com/spf13/cobra"
)

func redis() *cobra.Command {
	return &cobra.Command{Use: "redis ADDRESS", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, arguments []string) error {
		if err := miniredis.NewMiniRedis().StartAddr(arguments[0]); err != nil {
			return err
		}
		select {}
	}}
}

func main() {
	programs := map[string]func() *cobra.Command{
		"application-controller": controller.NewCommand, "repo-server": reposerver.NewCommand, "redis": redis,
	}
	name := ""
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	program, found := programs[name]
	if !found {
		fmt.Fprintln(os.Stderr, "argocd takes the name of a program: application-controller, repo-server or redis")
		os.Exit(2)
	}
	command := program()
	command.SetArgs(os.Args[2:])
	if command.Execute() != nil {
		os.Exit(1)
	}
}
