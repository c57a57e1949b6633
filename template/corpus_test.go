// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// neverSet are the fields of a VMI that no file of the corpus sets, with the reason.
var neverSet = map[string]string{
	"spec.domain.devices.interfaces[].slirp":   "removed from KubeVirt: its webhook rejects new VMIs with it",
	"spec.domain.devices.interfaces[].macvtap": "removed from KubeVirt: became a binding plugin",
	"spec.domain.devices.interfaces[].passt":   "removed from KubeVirt: became passtBinding",
}

// TestCorpus_CoversEveryField fails for a field of the VMI that no file of the corpus sets: each field of the spec, and
// each field of the status that the package reads.
func TestCorpus_CoversEveryField(t *testing.T) {
	known, set := map[string]bool{}, map[string]bool{}
	vmiType := reflect.TypeFor[v1.VirtualMachineInstance]()
	declare(vmiType, "", known, nil)
	for _, file := range corpusFiles(t) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range bytes.SplitSeq(content, []byte("\n---\n")) {
			if !bytes.Contains(doc, []byte("kind: VirtualMachineInstance\n")) {
				continue
			}
			var v any
			if err := yaml.Unmarshal(doc, &v); err != nil {
				t.Fatal(err)
			}
			collect(vmiType, v, "", set)
		}
	}
	read := statusRead(t)
	for _, path := range slices.Sorted(maps.Keys(known)) {
		wanted := strings.HasPrefix(path, "spec.") || read[path]
		reason := excused(path)
		switch {
		case !wanted:
		case set[path] && reason != "":
			t.Errorf("%s is set, but neverSet has: %s", path, reason)
		case !set[path] && reason == "":
			t.Errorf("no file of the corpus sets %s: set it in one, or add it to neverSet with the reason", path)
		}
	}
	for path := range neverSet {
		if !known[path] {
			t.Errorf("neverSet has %s, which is not a field", path)
		}
	}
	for path := range read {
		if !known[path] {
			t.Errorf("the package reads %s, which is not a field", path)
		}
	}
}

func excused(path string) string {
	for field, reason := range neverSet {
		if rest, ok := strings.CutPrefix(path, field); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return reason
		}
	}
	return ""
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// leaf reports whether a type is serialized as one value.
func leaf(t reflect.Type) bool {
	return t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler)
}

// fieldsOf calls f for every field of a struct by its JSON name, including inlined fields.
func fieldsOf(t reflect.Type, f func(name string, t reflect.Type)) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && (field.Anonymous || strings.Contains(options, "inline")):
			inlined := field.Type
			if inlined.Kind() == reflect.Pointer {
				inlined = inlined.Elem()
			}
			fieldsOf(inlined, f)
		default:
			f(name, field.Type)
		}
	}
}

// declare records the paths of all fields of a type. above are the types along the path: a recursive type is not descended
// into again.
func declare(t reflect.Type, path string, known map[string]bool, above []reflect.Type) {
	if path != "" {
		known[strings.TrimPrefix(path, ".")] = true
	}
	switch t.Kind() {
	case reflect.Pointer:
		declare(t.Elem(), path, known, above)
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 {
			declare(t.Elem(), path+"[]", known, above)
		}
	case reflect.Map:
		declare(t.Elem(), path+"{}", known, above)
	case reflect.Struct:
		if leaf(t) || slices.Contains(above, t) {
			return
		}
		fieldsOf(t, func(name string, field reflect.Type) { declare(field, path+"."+name, known, append(above, t)) })
	}
}

// collect records the paths that a value sets, in the form of declare.
func collect(t reflect.Type, v any, path string, set map[string]bool) {
	if path != "" {
		set[strings.TrimPrefix(path, ".")] = true
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch v := v.(type) {
	case []any:
		for _, element := range v {
			collect(t.Elem(), element, path+"[]", set)
		}
	case map[string]any:
		if t.Kind() == reflect.Map {
			for _, element := range v {
				collect(t.Elem(), element, path+"{}", set)
			}
			return
		}
		fieldsOf(t, func(name string, field reflect.Type) {
			if value, there := v[name]; there {
				collect(field, value, path+"."+name, set)
			}
		})
	}
}

// statusRead returns the fields of a VMI's status that the package's source reads.
func statusRead(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]string{}
	status := reflect.TypeFor[v1.VirtualMachineInstanceStatus]()
	for i := range status.NumField() {
		name, _, _ := strings.Cut(status.Field(i).Tag.Get("json"), ",")
		names[status.Field(i).Name] = "status." + name
	}
	read := map[string]bool{}
	sources, err := fs.Glob(os.DirFS("."), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), source, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if field := statusField(n); names[field] != "" {
				read[names[field]] = true
			}
			return true
		})
	}
	if len(read) < 5 {
		t.Fatalf("the package reads %v only: the search for it is broken", read)
	}
	return read
}

// statusField returns Field for an expression like d.vmi.Status.Field.
func statusField(n ast.Node) string {
	outer, ok := n.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	inner, ok := outer.X.(*ast.SelectorExpr)
	if !ok || inner.Sel.Name != "Status" {
		return ""
	}
	var owner string
	switch x := inner.X.(type) {
	case *ast.Ident:
		owner = x.Name
	case *ast.SelectorExpr:
		owner = x.Sel.Name
	}
	if !strings.EqualFold(owner, "vmi") {
		return ""
	}
	return outer.Sel.Name
}

// TestCorpus_Renders fails for a Pod of the corpus that cannot be rendered.
func TestCorpus_Renders(t *testing.T) {
	for _, p := range corpus(t) {
		t.Run(p.name, func(t *testing.T) {
			pod, err := p.render()
			if err != nil {
				t.Fatal(err)
			}
			for _, fault := range faultsOf(pod) {
				t.Error(fault)
			}
		})
	}
}

// TestCorpus_FileComments requires a unique comment in every file.
func TestCorpus_FileComments(t *testing.T) {
	points := map[string]string{}
	for _, file := range corpusFiles(t) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitN(string(content), "\n", 3)
		point, ok := strings.CutPrefix(lines[1], "# ")
		if !ok || !strings.HasSuffix(point, ".") {
			t.Errorf("%s: the second line must be a comment with the purpose of the file", file)
		}
		if other := points[point]; other != "" {
			t.Errorf("%s and %s have the same comment", file, other)
		}
		points[point] = file
	}
}
