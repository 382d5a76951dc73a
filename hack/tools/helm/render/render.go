// Renders charts as `helm template` does, one after another. A line of standard input asks, and a line of standard
// output answers.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/cli"
	"helm.sh/helm/v4/pkg/cli/values"
	"helm.sh/helm/v4/pkg/getter"
	release "helm.sh/helm/v4/pkg/release/v1"
)

type request struct {
	Chart, File, Release, Namespace, KubeVersion string
	APIVersions, JSONs, Sets, Strings, Files     []string
	IsUpgrade, SkipsSchema, Covers               bool
}

type answer struct {
	Text  string     `json:"text"`
	Parts []any      `json:"parts,omitempty"`
	Error string     `json:"error,omitempty"`
	Arms  []*arm     `json:"arms,omitempty"`
	Reads [][]string `json:"reads,omitempty"`
}

// said is what Helm says of charts, as on its standard error.
var said bytes.Buffer

func main() {
	asked := json.NewDecoder(bufio.NewReader(os.Stdin))
	answers := json.NewEncoder(os.Stdout)
	answers.SetEscapeHTML(false)
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	times := regexp.MustCompile(`(?m)^time=\S+ `)
	for {
		var next request
		if err := asked.Decode(&next); err == io.EOF {
			return
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		var made answer
		said.Reset()
		err := next.render(&made, !next.Covers)
		if errors.Is(err, errSlow) {
			said.Reset()
			err = next.render(&made, false)
		}
		if err != nil {
			made.Error = times.ReplaceAllString(said.String(), "") + "Error: " + err.Error() + "\n"
		}
		if answers.Encode(made) != nil {
			os.Exit(1)
		}
	}
}

const useDebug = "\n\nUse --debug flag to render out invalid YAML"

// errSlow says that a quick render was none.
var errSlow = errors.New("not quick")

// render answers a request with Helm's output, and with what ran for it if that is asked.
func (asked request) render(made *answer, quickly bool) error {
	configuration := action.NewConfiguration()
	client := action.NewInstall(configuration)
	if asked.KubeVersion != "" {
		version, err := common.ParseKubeVersion(asked.KubeVersion)
		if err != nil {
			return fmt.Errorf("invalid kube version '%s': %w", asked.KubeVersion, err)
		}
		client.KubeVersion = version
	}
	client.DryRunStrategy, client.Replace = action.DryRunClient, true
	client.ReleaseName, client.Namespace = asked.Release, asked.Namespace
	client.APIVersions, client.IsUpgrade = asked.APIVersions, asked.IsUpgrade
	client.SkipSchemaValidation = asked.SkipsSchema
	options := values.Options{
		ValueFiles: []string{asked.File}, JSONValues: asked.JSONs, Values: asked.Sets, StringValues: asked.Strings,
		FileValues: asked.Files,
	}
	merged, err := options.MergeValues(getter.All(cli.New()))
	if err != nil {
		return err
	}
	loaded, err := load(asked.Chart)
	if err != nil {
		return err
	}
	described, err := chart.NewAccessor(loaded)
	if err != nil {
		return err
	}
	if kind := described.MetadataAsMap()["Type"]; kind != "" && kind != "application" {
		return fmt.Errorf("%s charts are not installable", kind)
	}
	if described.Deprecated() {
		slog.Warn("this chart is deprecated")
	}
	if err := action.CheckDependencies(loaded, described.MetaDependencies()); err != nil {
		return fmt.Errorf("an error occurred while checking for chart dependencies. You may need to run 'helm dependency build' to fetch missing dependencies: %w", err)
	}
	one, is := loaded.(*v2.Chart)
	if quickly && is {
		parts, err := asked.quick(one, merged, client.KubeVersion)
		if err != nil {
			return err
		}
		made.Parts = tell(parts)
		return nil
	}
	if is && asked.Covers {
		covered := cover(one)
		configuration.CustomTemplateFuncs = covered.functions()
		defer func() { made.Arms, made.Reads = covered.arms, covered.paths() }()
	}
	done, err := client.RunWithContext(context.Background(), loaded, merged)
	rendered, _ := done.(*release.Release)
	if err != nil && rendered != nil {
		return fmt.Errorf("%w%s", err, useDebug)
	} else if err != nil {
		return err
	}
	var text bytes.Buffer
	fmt.Fprintln(&text, strings.TrimSpace(rendered.Manifest))
	for _, hook := range rendered.Hooks {
		fmt.Fprintf(&text, "---\n# Source: %s\n%s\n", hook.Path, hook.Manifest)
	}
	made.Text = text.String()
	return nil
}
