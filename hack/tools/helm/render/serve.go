// Renders charts as `helm template` does, many in one process. A line of standard input asks. A line of standard
// output answers, in the order in which renders end. The render itself is that of each Helm, in render.go.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
)

type request struct {
	ID                                           int
	Chart, File, Release, Namespace, KubeVersion string
	APIVersions, JSONs, Sets, Strings, Files     []string
	IsUpgrade, SkipsSchema                       bool
}

type answer struct {
	ID    int    `json:"id"`
	Text  string `json:"text"`
	Error string `json:"error,omitempty"`
}

func main() {
	asked := json.NewDecoder(bufio.NewReader(os.Stdin))
	answers := json.NewEncoder(os.Stdout)
	answers.SetEscapeHTML(false)
	var writing sync.Mutex
	var running sync.WaitGroup
	slots := make(chan struct{}, runtime.NumCPU())
	for {
		var next request
		if err := asked.Decode(&next); err == io.EOF {
			break
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		slots <- struct{}{}
		running.Go(func() {
			text, err := next.render()
			<-slots
			made := answer{ID: next.ID, Text: text}
			if err != nil {
				made.Error = "Error: " + err.Error() + "\n"
			}
			writing.Lock()
			defer writing.Unlock()
			if answers.Encode(made) != nil {
				os.Exit(1)
			}
		})
	}
	running.Wait()
}
