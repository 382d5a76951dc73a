package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/cli"
	"helm.sh/helm/v3/pkg/cli/values"
	"helm.sh/helm/v3/pkg/getter"
)

// render is Helm's output for a request.
func (asked request) render() (string, error) {
	client := action.NewInstall(&action.Configuration{Log: func(string, ...any) {}})
	if asked.KubeVersion != "" {
		version, err := chartutil.ParseKubeVersion(asked.KubeVersion)
		if err != nil {
			return "", fmt.Errorf("invalid kube version '%s': %s", asked.KubeVersion, err)
		}
		client.KubeVersion = version
	}
	client.DryRun, client.ClientOnly, client.Replace = true, true, true
	client.ReleaseName, client.Namespace = asked.Release, asked.Namespace
	client.APIVersions, client.IsUpgrade = asked.APIVersions, asked.IsUpgrade
	client.SkipSchemaValidation = asked.SkipsSchema
	options := values.Options{
		ValueFiles: []string{asked.File}, JSONValues: asked.JSONs, Values: asked.Sets, StringValues: asked.Strings,
		FileValues: asked.Files,
	}
	merged, err := options.MergeValues(getter.All(cli.New()))
	if err != nil {
		return "", err
	}
	loaded, err := loader.Load(asked.Chart)
	if err != nil {
		return "", err
	}
	if kind := loaded.Metadata.Type; kind != "" && kind != "application" {
		return "", fmt.Errorf("%s charts are not installable", kind)
	}
	if err := action.CheckDependencies(loaded, loaded.Metadata.Dependencies); err != nil {
		return "", fmt.Errorf("An error occurred while checking for chart dependencies. You may need to run `helm dependency build` to fetch missing dependencies: %w", err)
	}
	rendered, err := client.RunWithContext(context.Background(), loaded, merged)
	if err != nil && rendered != nil {
		return "", fmt.Errorf("%w\n\nUse --debug flag to render out invalid YAML", err)
	} else if err != nil {
		return "", err
	}
	var text bytes.Buffer
	fmt.Fprintln(&text, strings.TrimSpace(rendered.Manifest))
	for _, hook := range rendered.Hooks {
		fmt.Fprintf(&text, "---\n# Source: %s\n%s\n", hook.Path, hook.Manifest)
	}
	return text.String(), nil
}
