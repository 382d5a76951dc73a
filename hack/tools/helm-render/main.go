// Renders many values in one process, for the fuzz test of all keys. A line of standard input is a chart's folder and
// values; a line of standard output has the objects, hooks included, or the error, as `helm template` makes them.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"runtime/debug"
	"slices"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	"sigs.k8s.io/yaml"
)

type request struct {
	Chart     string
	Values    json.RawMessage
	Release   string
	Namespace string
}

// object has its content only when it is printed for the first time; later its number stands for it. An answer with an
// error has those that were read before it.
type object struct {
	Number  int             `json:"number"`
	Source  string          `json:"source,omitempty"`
	Content json.RawMessage `json:"content,omitempty"`
}

type answer struct {
	Objects []object `json:"objects"`
	Error   string   `json:"error,omitempty"`
}

type document struct{ source, text string }

type renderer struct {
	files   map[string][]*common.File
	numbers map[document]int
}

// chart loads anew from the files in memory: to process dependencies changes what is loaded.
func (kept *renderer) chart(folder string) (*chart.Chart, error) {
	if kept.files[folder] == nil {
		loaded, err := loader.LoadDir(folder)
		if err != nil {
			return nil, err
		}
		kept.files[folder] = loaded.Raw
	}
	var files []*archive.BufferedFile
	for _, file := range kept.files[folder] {
		files = append(files, &archive.BufferedFile{Name: file.Name, Data: file.Data})
	}
	return loader.LoadFiles(files)
}

func (kept *renderer) render(asked request) (map[string]string, error) {
	loaded, err := kept.chart(asked.Chart)
	if err != nil {
		return nil, err
	}
	values, err := loader.LoadValues(bytes.NewReader(asked.Values))
	if err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependencies(loaded, values); err != nil {
		return nil, err
	}
	options := common.ReleaseOptions{Name: asked.Release, Namespace: asked.Namespace, Revision: 1, IsInstall: true}
	top, err := util.ToRenderValues(loaded, values, options, nil)
	if err != nil {
		return nil, err
	}
	return engine.Render(loaded, top)
}

// objects are those of one template, in their order.
func (kept *renderer) objects(source, text string) ([]object, error) {
	var found []object
	documents := releaseutil.SplitManifests(text)
	for place := range len(documents) {
		this := document{source, documents[fmt.Sprintf("manifest-%d", place)]}
		if number, known := kept.numbers[this]; known {
			found = append(found, object{Number: number})
			continue
		}
		content, err := yaml.YAMLToJSON([]byte(this.text))
		if err != nil {
			return found, fmt.Errorf("YAML parse error on %s: %w", source, err)
		}
		if string(content) != "null" {
			kept.numbers[this] = len(kept.numbers)
			found = append(found, object{kept.numbers[this], source, content})
		}
	}
	return found, nil
}

func (kept *renderer) answer(asked request) (answer, error) {
	made := answer{Objects: []object{}}
	texts, err := kept.render(asked)
	if err != nil {
		return made, err
	}
	for _, source := range slices.Sorted(maps.Keys(texts)) {
		if path.Base(source) == "NOTES.txt" {
			continue
		}
		found, err := kept.objects(source, texts[source])
		made.Objects = append(made.Objects, found...)
		if err != nil {
			return made, err
		}
	}
	return made, nil
}

func main() {
	// Links in the charts are no news, and a render leaves little behind.
	slog.SetLogLoggerLevel(slog.LevelWarn)
	debug.SetGCPercent(400)
	kept := &renderer{map[string][]*common.File{}, map[document]int{}}
	asked := json.NewDecoder(bufio.NewReader(os.Stdin))
	answers := json.NewEncoder(os.Stdout)
	for {
		var next request
		if asked.Decode(&next) != nil {
			return
		}
		made, err := kept.answer(next)
		if err != nil {
			made.Error = "Error: " + err.Error()
		}
		if answers.Encode(made) != nil {
			os.Exit(1)
		}
	}
}
