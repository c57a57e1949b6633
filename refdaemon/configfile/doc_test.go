// SPDX-License-Identifier: Apache-2.0

package configfile_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/virtloom/virtloom/refdaemon/configfile"
)

// source is the package's own files.
func source(t *testing.T) []*ast.File {
	t.Helper()
	var files []*ast.File
	for _, name := range []string{"doc.go", "daemon.go", "controller.go", "webhooks.go", "certificates.go", "node.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

func TestPackageDoc_ListsLiveFields(t *testing.T) {
	_, list, _ := strings.Cut(source(t)[0].Doc.Text(), "take effect at once, without a restart:\n")
	list, _, _ = strings.Cut(strings.TrimSpace(list), "\n\n")
	var want []string
	for _, kind := range configfile.Kinds() {
		for _, o := range configfile.NewConfiguration(kind).Options() {
			if o.Live && !slices.Contains(want, o.Field) {
				want = append(want, o.Field)
			}
		}
	}
	if d := cmp.Diff(want, strings.Fields(list)); d != "" {
		t.Errorf("-code +doc\n%s", d)
	}
}

// TestFieldDocs_StateWhenEffective compares the comments of fields, by their name in a
// struct, with the options.
func TestFieldDocs_StateWhenEffective(t *testing.T) {
	lives := map[string]bool{} // by struct and field
	for _, kind := range configfile.Kinds() {
		c := configfile.NewConfiguration(kind)
		for _, o := range c.Options() {
			lives[fieldOf(t, reflect.TypeOf(c).Elem(), o.Field)] = o.Live
		}
	}
	documented := 0
	for _, f := range source(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			s, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, field := range s.Fields.List {
				for _, name := range field.Names {
					live, known := lives[spec.Name.Name+"."+name.Name]
					if !known {
						continue // a section
					}
					documented++
					want := "Takes effect at the next start"
					if live {
						want = "Takes effect at once"
					}
					if !strings.Contains(strings.Join(strings.Fields(field.Doc.Text()), " "), want) {
						t.Errorf("%s.%s does not say: %s\n%s", spec.Name.Name, name.Name, want, field.Doc.Text())
					}
				}
			}
			return true
		})
	}
	if documented != len(lives) {
		t.Errorf("%d fields are documented, there are %d", documented, len(lives))
	}
}

// fieldOf is the struct and the field in Go of a path in a file.
func fieldOf(t *testing.T, of reflect.Type, path string) string {
	t.Helper()
	name, rest, nested := strings.Cut(path, ".")
	for i := range of.NumField() {
		f := of.Field(i)
		switch tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); {
		case tag == "" && f.Anonymous && f.Type.Kind() == reflect.Struct:
			if slices.Contains(fields(f.Type, ""), path) {
				return fieldOf(t, f.Type, path)
			}
		case tag == name && nested:
			return fieldOf(t, f.Type, rest)
		case tag == name:
			return of.Name() + "." + f.Name
		}
	}
	t.Fatalf("%s has no %s", of, path)
	return ""
}
