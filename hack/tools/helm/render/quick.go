package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	paths "path"
	"slices"
	"strings"
	"text/template"
	"unicode"
	_ "unsafe" // for go:linkname

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	"helm.sh/helm/v4/pkg/chart/v2"
	v2loader "helm.sh/helm/v4/pkg/chart/v2/loader"
	v2util "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	release "helm.sh/helm/v4/pkg/release/v1"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
)

// What renders of one process share: the files of charts, their schemas, their templates, what each text of a template
// holds, and the large parts of answers that were told.
var (
	files   = map[string]read{}
	schemas = map[string]*jsonschema.Schema{}
	parsed  = map[string]*template.Template{}
	objects = map[string]held{}
	told    = map[string]int{}
	kept    int // bytes in objects
	heard   int // bytes in told
)

const (
	mostCharts = 8
	mostBytes  = 64 << 20
	large      = 4 << 10
)

// read are the files of a chart, and what Helm said as it read them.
type read struct {
	files []*archive.BufferedFile
	said  string
}

type held struct {
	manifests []releaseutil.Manifest
	hooks     []*release.Hook
}

// load reads a chart from the disk once.
func load(folder string) (chart.Charter, error) {
	before := said.Len()
	if known, is := files[folder]; is {
		loaded, err := v2loader.LoadFiles(known.files)
		said.Truncate(before)
		said.WriteString(known.said)
		return loaded, err
	}
	loaded, err := loader.Load(folder)
	if one, is := loaded.(*v2.Chart); is && err == nil {
		if len(files) == mostCharts {
			clear(files)
			clear(schemas)
			clear(parsed)
		}
		known := read{said: said.String()[before:]}
		for _, file := range one.Raw {
			known.files = append(known.files, &archive.BufferedFile{Name: file.Name, ModTime: file.ModTime, Data: file.Data})
		}
		files[folder] = known
	}
	return loaded, err
}

// quick renders as action.Install does, without what earlier renders did. It returns errSlow for the rest: action.Install
// has the words for it.
func (asked request) quick(one *v2.Chart, merged map[string]any, version *common.KubeVersion) ([]string, error) {
	capabilities := common.DefaultCapabilities.Copy()
	if version != nil {
		capabilities.KubeVersion = *version
	}
	capabilities.APIVersions = append(capabilities.APIVersions, asked.APIVersions...)
	needed := one.Metadata.KubeVersion
	if needed != "" && !v2util.IsCompatibleRange(needed, capabilities.KubeVersion.String()) {
		return nil, errSlow
	}
	if v2util.ValidateReleaseName(asked.Release) != nil || v2util.ProcessDependencies(one, merged) != nil {
		return nil, errSlow
	}
	options := common.ReleaseOptions{
		Name: asked.Release, Namespace: asked.Namespace, Revision: 1, IsInstall: !asked.IsUpgrade, IsUpgrade: asked.IsUpgrade,
	}
	top, err := util.ToRenderValuesWithSchemaValidation(one, merged, options, capabilities, true)
	if err != nil || !asked.SkipsSchema && !isValid(one, top["Values"].(common.Values)) {
		return nil, errSlow
	}
	rendered, err := asked.executed(one, top)
	if err != nil {
		return nil, err
	}
	var all held
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		some, err := split(name, rendered[name])
		if err != nil {
			return nil, errSlow
		}
		all.manifests, all.hooks = append(all.manifests, some.manifests...), append(all.hooks, some.hooks...)
	}
	slices.SortStableFunc(all.manifests, func(one, other releaseutil.Manifest) int { return order(one.Head.Kind, other.Head.Kind) })
	slices.SortStableFunc(all.hooks, func(one, other *release.Hook) int { return order(one.Kind, other.Kind) })
	parts := make([]string, 0, len(rendered))
	for _, each := range all.manifests {
		parts = append(parts, fmt.Sprintf("---\n# Source: %s\n%s\n", each.Name, each.Content))
	}
	if last := len(parts) - 1; last >= 0 {
		parts[last] = strings.TrimRightFunc(parts[last], unicode.IsSpace) + "\n"
	} else {
		parts = append(parts, "\n")
	}
	for _, each := range all.hooks {
		parts = append(parts, fmt.Sprintf("---\n# Source: %s\n%s\n", each.Path, each.Manifest))
	}
	return parts, nil
}

// What Helm's engine has no exported name for. Its own render would parse all templates each time. Nothing compares the
// signatures: look at pkg/engine/engine.go for each new version of Helm.
//
//go:linkname allTemplates helm.sh/helm/v4/pkg/engine.allTemplates
func allTemplates(chart.Charter, common.Values) map[string]renderable

//go:linkname sortTemplates helm.sh/helm/v4/pkg/engine.sortTemplates
func sortTemplates(map[string]renderable) []string

//go:linkname initFunMap helm.sh/helm/v4/pkg/engine.Engine.initFunMap
func initFunMap(engine.Engine, context.Context, *template.Template)

//go:linkname reformatExecErrorMsg helm.sh/helm/v4/pkg/engine.reformatExecErrorMsg
func reformatExecErrorMsg(string, error) error

// renderable has the fields of the engine's own.
type renderable struct {
	text   string
	values common.Values
	base   string
}

// executed renders all templates of a chart with their values, as the engine does.
func (asked request) executed(one *v2.Chart, top common.Values) (rendered map[string]string, err error) {
	defer func() {
		if recover() != nil {
			err = errSlow
		}
	}()
	all := allTemplates(one, top)
	names := sortTemplates(all)
	key := asked.Chart + "\n" + strings.Join(names, "\n")
	if parsed[key] == nil {
		if len(parsed) == 4*mostCharts {
			clear(parsed)
		}
		made := template.New("gotpl")
		initFunMap(engine.Engine{}, context.Background(), made)
		for _, name := range names {
			if _, err := made.New(name).Parse(all[name].text); err != nil {
				return nil, errSlow
			}
		}
		parsed[key] = made
	}
	copied, err := parsed[key].Clone()
	if err != nil {
		return nil, errSlow
	}
	copied.Option("missingkey=zero")
	initFunMap(engine.Engine{}, context.Background(), copied)
	rendered = map[string]string{}
	for _, name := range names {
		if strings.HasPrefix(paths.Base(name), "_") {
			continue
		}
		each := all[name]
		each.values["Template"] = common.Values{"Name": name, "BasePath": each.base}
		var text strings.Builder
		if err := copied.ExecuteTemplate(&text, name, each.values); err != nil {
			return nil, fmt.Errorf("%w%s", reformatExecErrorMsg(name, err), useDebug)
		}
		rendered[name] = strings.ReplaceAll(text.String(), "<no value>", "")
	}
	return rendered, nil
}

// split gives what the rendered text of a template holds.
func split(name, text string) (held, error) {
	key := name + "\n" + text
	some, known := objects[key]
	if known {
		return some, nil
	}
	var err error
	some.hooks, some.manifests, err = releaseutil.SortManifests(map[string]string{name: text}, nil, releaseutil.InstallOrder)
	if err != nil {
		return some, err
	}
	if kept += 2 * len(key); kept > mostBytes {
		clear(objects)
		kept = 2 * len(key)
	}
	objects[key] = some
	return some, nil
}

// order is Helm's: kinds that it does not know come last, by their names.
func order(one, other string) int {
	first, second := slices.Index(releaseutil.InstallOrder, one), slices.Index(releaseutil.InstallOrder, other)
	if first < 0 && second < 0 {
		return strings.Compare(one, other)
	}
	return cmp.Compare(uint(first), uint(second))
}

// isValid tells whether the schemas of a chart and of its dependencies take the values.
func isValid(one *v2.Chart, values map[string]any) bool {
	if one.Schema != nil {
		schema, known := schemas[string(one.Schema)]
		if !known {
			schema = compiled(string(one.Schema))
			schemas[string(one.Schema)] = schema
		}
		if schema == nil || schema.Validate(values) != nil {
			return false
		}
	}
	for _, each := range one.Dependencies() {
		below, is := values[each.Name()].(map[string]any)
		if !is && values[each.Name()] != nil || is && !isValid(each, below) {
			return false
		}
	}
	return true
}

// compiled is nil for a schema that is none, or refers to others.
func compiled(text string) *jsonschema.Schema {
	const here = "file:///values.schema.json"
	content, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(jsonschema.SchemeURLLoader{})
	if err != nil || compiler.AddResource(here, content) != nil {
		return nil
	}
	schema, err := compiler.Compile(here)
	if err != nil {
		return nil
	}
	return schema
}

// tell gives the parts of an answer: a large one goes with a number, and is that number from then on.
func tell(parts []string) []any {
	made := make([]any, 0, len(parts))
	for _, each := range parts {
		number, known := told[each]
		switch {
		case known:
			made = append(made, number)
		case len(each) < large || heard > mostBytes:
			made = append(made, each)
		default:
			told[each] = len(told)
			heard += len(each)
			made = append(made, []any{told[each], each})
		}
	}
	return made
}
