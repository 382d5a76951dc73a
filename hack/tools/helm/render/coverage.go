package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/Masterminds/sprig/v3"
	"helm.sh/helm/v4/pkg/chart/v2"
)

// arm is a part of a template that runs as a whole or not at all. Arms of one branch share its number. One that
// refuses runs only in renders that fail.
type arm struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Branch  int    `json:"branch"`
	Name    string `json:"name"`
	Lines   []int  `json:"lines"`
	Runs    int    `json:"runs"`
	Refuses bool   `json:"refuses"`

	holder *arm
	of     string // the definition that it is in
	tells  bool   // it has text of its own
}

// coverage is what one render ran of the templates, and which values it read. Each template is rewritten: calls
// count its arms, and each field is read through a call that knows the maps of .Values by their address.
type coverage struct {
	arms     []*arm
	branches int
	base     string
	maps     map[uintptr]string
	reads    map[string]bool

	file, source, of, caller string
	within                   *arm
	// Definitions that call fail, and those that each is given or prints on lines of their own.
	fails []string
	texts map[string][]string
}

// between joins the keys of a value's path.
const between = "\x1f"

// Functions that hand a map on or look only at whether it is empty. Any other reads all of it.
var passing = strings.Fields("and coalesce default dict empty eq fail hasKey include kindIs kindOf len list ne not or required set ternary tpl typeIs typeOf")

func cover(root *v2.Chart) *coverage {
	made := &coverage{
		base: root.Name() + "/templates", maps: map[uintptr]string{}, reads: map[string]bool{}, texts: map[string][]string{},
	}
	made.chart(root, "")
	// What a definition that fails is given is sentences, each of which refuses something.
	delete(made.texts, "")
	var sentences []string
	for next := made.fails; len(next) > 0; next = next[1:] {
		for _, name := range made.texts[next[0]] {
			if !slices.Contains(sentences, name) {
				sentences, next = append(sentences, name), append(next, name)
			}
		}
	}
	for _, one := range made.arms { // a holder stands before what it holds
		one.Refuses = one.Refuses || one.tells && one.Branch > 0 && slices.Contains(sentences, one.of) || one.holder != nil && one.holder.Refuses
	}
	return made
}

func (made *coverage) chart(one *v2.Chart, folder string) {
	for _, file := range one.Templates {
		made.file, made.source, made.branches = folder+file.Name, string(file.Data), 0
		tree := parse.New(file.Name)
		tree.Mode = parse.SkipFuncCheck
		trees := map[string]*parse.Tree{}
		if _, err := tree.Parse(made.source, "", "", trees); err != nil {
			continue // The render says what is wrong.
		}
		var text strings.Builder
		for _, name := range slices.Sorted(maps.Keys(trees)) {
			if root := trees[name].Root; root != tree.Root {
				made.of = name
				made.list(root, root.Position(), 0, "define "+name)
				fmt.Fprintf(&text, "{{define %q}}%s{{end}}", name, root)
			}
		}
		made.of = ""
		if !parse.IsEmptyTree(tree.Root) {
			made.list(tree.Root, 0, 0, "file")
			text.WriteString(tree.Root.String())
		}
		file.Data = []byte(text.String())
	}
	for _, each := range one.Dependencies() {
		made.chart(each, folder+"charts/"+each.Name()+"/")
	}
}

func (made *coverage) line(at parse.Pos) int {
	return 1 + strings.Count(made.source[:at], "\n")
}

func (made *coverage) arm(at parse.Pos, branch int, name string) (*arm, string) {
	one := &arm{File: made.file, Line: made.line(at), Branch: branch, Name: name, Lines: []int{}, holder: made.within, of: made.of}
	made.arms = append(made.arms, one)
	return one, strconv.Itoa(len(made.arms) - 1)
}

// raw is a node that prints as this text.
func raw(text string) parse.Node {
	return &parse.TextNode{NodeType: parse.NodeText, Text: []byte(text)}
}

func (made *coverage) list(list *parse.ListNode, at parse.Pos, branch int, name string) {
	one, number := made.arm(at, branch, name)
	made.within = one
	defer func() { made.within = one.holder }()
	for index, node := range list.Nodes {
		if text, is := node.(*parse.TextNode); is {
			for index, part := range strings.Split(string(text.Text), "\n") {
				if strings.TrimSpace(part) != "" {
					one.tells = true
					one.Lines = append(one.Lines, made.line(text.Position())+index)
				}
			}
			continue
		}
		one.Lines = append(one.Lines, made.line(node.Position()))
		switch node := node.(type) {
		case *parse.ActionNode:
			for _, command := range node.Pipe.Cmds {
				if name := included(command); name != "" && isAlone(list.Nodes, index) {
					made.texts[made.of] = append(made.texts[made.of], name)
				}
				if command.Args[0].String() == "fail" {
					one.Refuses, made.fails = branch > 0, append(made.fails, made.of)
				}
			}
			made.pipe(node.Pipe)
		case *parse.TemplateNode:
			made.pipe(node.Pipe)
		case *parse.IfNode:
			made.branch(&node.BranchNode, "if")
		case *parse.WithNode:
			made.branch(&node.BranchNode, "with")
		case *parse.RangeNode:
			if isNeverEmpty(node.Pipe, name) {
				made.pipe(node.Pipe)
				made.list(node.List, node.Position(), 0, "range")
			} else {
				made.branch(&node.BranchNode, "range")
			}
			node.Pipe.Cmds = append(node.Pipe.Cmds, &parse.CommandNode{Args: []parse.Node{raw("consume")}})
		}
	}
	list.Nodes = append([]parse.Node{raw("{{cover " + number + "}}")}, list.Nodes...)
}

func (made *coverage) branch(node *parse.BranchNode, name string) {
	made.branches++
	number := made.branches
	made.pipe(node.Pipe)
	made.list(node.List, node.Position(), number, name)
	if node.ElseList == nil {
		node.ElseList = &parse.ListNode{NodeType: parse.NodeList, Pos: node.Position()}
	}
	made.list(node.ElseList, node.Position(), number, "else")
}

// included is the definition that a command includes.
func included(command *parse.CommandNode) string {
	if len(command.Args) > 1 && command.Args[0].String() == "include" {
		if name, is := command.Args[1].(*parse.StringNode); is {
			return name.Text
		}
	}
	return ""
}

// isAlone tells whether lines of their own hold the action.
func isAlone(nodes []parse.Node, index int) bool {
	begins := index == 0 || nodes[index-1].Type() != parse.NodeText || strings.HasSuffix(nodes[index-1].String(), "\n")
	return begins && (index+1 == len(nodes) || strings.HasPrefix(nodes[index+1].String(), "\n"))
}

// isNeverEmpty tells whether a range is over what always has an item: it has no other arm.
func isNeverEmpty(pipe *parse.PipeNode, within string) bool {
	switch name := pipe.Cmds[0].Args[0].String(); name {
	case "list", "dict", "append", "prepend", "regexSplit", "splitList":
		return len(pipe.Cmds) == 1 && len(pipe.Cmds[0].Args) > 1
	default:
		return len(pipe.Cmds) == 1 && name == "." && within == "with" // what it has found
	}
}

func (made *coverage) pipe(pipe *parse.PipeNode) {
	if pipe == nil {
		return
	}
	for index, command := range pipe.Cmds {
		made.command(command, index > 0)
	}
}

func (made *coverage) command(command *parse.CommandNode, isPiped bool) {
	first, others := command.Args[0], command.Args[1:]
	called, isCall := first.(*parse.IdentifierNode)
	if !isCall {
		// With arguments it is a method.
		if len(others) == 0 && !isPiped {
			command.Args[0] = made.operand(first, false)
		}
		for index, each := range others {
			others[index] = made.operand(each, false)
		}
		return
	}
	name := called.Ident
	if other := included(command); other != "" {
		made.texts[made.caller] = append(made.texts[made.caller], other)
		defer func(caller string) { made.caller = caller }(made.caller)
		made.caller = other
	}
	keyed := !isPiped && len(others) > 1 && (name == "index" || name == "get" || name == "hasKey")
	for index, each := range others {
		others[index] = made.operand(each, !slices.Contains(passing, name) && !keyed)
	}
	switch {
	case keyed:
		keys := written(others[0])
		for _, each := range others[1:] {
			keys += " " + written(each)
		}
		command.Args = []parse.Node{raw(made.seen(keys, "("+name+" "+keys+")"))}
	case name == "default" || name == "ternary":
		made.branches++
		_, given := made.arm(command.Position(), made.branches, name+": given")
		_, missing := made.arm(command.Position(), made.branches, name+": other")
		command.Args[0] = raw(fmt.Sprintf("%sCovered %s %s", name, given, missing))
	case isPiped && !slices.Contains(passing, name):
		command.Args[0] = raw("consume | " + name)
	}
}

// operand is an argument that tells what it reads, and all of it if it is read as a whole.
func (made *coverage) operand(node parse.Node, isWhole bool) parse.Node {
	text := written(node)
	switch node := node.(type) {
	case *parse.FieldNode:
		text = made.seen(path(".", node.Ident), text)
	case *parse.VariableNode:
		if len(node.Ident) > 1 {
			text = made.seen(path(node.Ident[0], node.Ident[1:]), text)
		}
	case *parse.ChainNode:
		inner := written(made.operand(node.Node, false))
		text = made.seen(path(inner, node.Field), "("+inner+")."+strings.Join(node.Field, "."))
	case *parse.PipeNode:
		made.pipe(node)
		text = written(node)
	case *parse.DotNode:
	default:
		return node
	}
	if isWhole {
		text = "(consume " + text + ")"
	}
	return raw(text)
}

func written(node parse.Node) string {
	if _, is := node.(*parse.PipeNode); is {
		return "(" + node.String() + ")"
	}
	return node.String()
}

func path(holder string, keys []string) string {
	for _, key := range keys {
		holder += " " + strconv.Quote(key)
	}
	return holder
}

// seen is an expression with this value. It remembers that the file reads the path.
func (made *coverage) seen(path, value string) string {
	return fmt.Sprintf("(seen %q (list %s) %s)", made.file, path, value)
}

func (made *coverage) functions() template.FuncMap {
	sprigs := sprig.TxtFuncMap()
	withDefault := sprigs["default"].(func(any, ...any) any)
	run := func(number int) { made.arms[number].Runs++ }
	either := func(first bool, yes, no int) {
		if first {
			run(yes)
		} else {
			run(no)
		}
	}
	return template.FuncMap{
		"cover": func(number int) string { run(number); return "" },
		"seen": func(file string, path []any, value any) any {
			made.read(file, path)
			return value
		},
		"consume": func(value any) any {
			if where, known := made.where(value); known {
				made.reads[where+between+"*"] = true
			}
			return value
		},
		"defaultCovered": func(given, missing int, other any, values ...any) any {
			is := len(values) > 0
			if is {
				is, _ = template.IsTrue(values[0])
			}
			either(is, given, missing)
			return withDefault(other, values...)
		},
		"ternaryCovered": func(given, missing int, yes, no any, is bool) any {
			either(is, given, missing)
			if is {
				return yes
			}
			return no
		},
	}
}

func (made *coverage) where(value any) (string, bool) {
	found := reflect.ValueOf(value)
	if found.Kind() != reflect.Map {
		return "", false
	}
	where, known := made.maps[found.Pointer()]
	return where, known
}

func (made *coverage) read(file string, path []any) {
	holder := path[0]
	for _, each := range path[1:] {
		key, is := each.(string)
		found := reflect.ValueOf(holder)
		if !is || found.Kind() != reflect.Map || found.Type().Key().Kind() != reflect.String {
			return
		}
		if where, known := made.where(holder); known {
			made.reads[file+where+between+key] = true
		}
		value := found.MapIndex(reflect.ValueOf(key).Convert(found.Type().Key()))
		if !value.IsValid() {
			return
		}
		if key == "Values" {
			made.learn(found, value.Interface())
		}
		holder = value.Interface()
	}
}

// learn remembers the maps of .Values, where holder is what a template of the chart itself begins with.
func (made *coverage) learn(holder reflect.Value, values any) {
	of := holder.MapIndex(reflect.ValueOf("Template"))
	if !of.IsValid() || len(made.maps) > 0 {
		return
	}
	base := reflect.ValueOf(of.Interface())
	if base.Kind() == reflect.Map && fmt.Sprint(base.MapIndex(reflect.ValueOf("BasePath"))) == made.base {
		made.remember("", values)
	}
}

func (made *coverage) remember(where string, value any) {
	found := reflect.ValueOf(value)
	if found.Kind() != reflect.Map {
		return
	}
	made.maps[found.Pointer()] = where
	for _, key := range found.MapKeys() {
		made.remember(where+between+key.String(), found.MapIndex(key).Interface())
	}
}

// paths are the values that were read, each after the file that read it. A last key * stands for all below.
func (made *coverage) paths() [][]string {
	all := [][]string{}
	for _, path := range slices.Sorted(maps.Keys(made.reads)) {
		all = append(all, strings.Split(path, between))
	}
	return all
}
