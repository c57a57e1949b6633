// SPDX-License-Identifier: Apache-2.0

package doctest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/internal/metricsdoc"
)

// known is what may be mentioned.
type known struct {
	targets []string
	// tests are functions of tests, fuzz those that fuzz; exported are names by package, domain.Hypervisor, and text of
	// that form, such as names of spans; metrics are those of docs/metrics.md, which another test keeps true.
	tests, fuzz, exported map[string]bool
	metrics               map[string]bool
	// commands are refdaemon's, by the words after its name.
	commands map[string]command
}

// mention is something that a document names and that has to exist.
type mention struct{ what, name string }

var (
	span     = regexp.MustCompile("`([^`\n]+)`")
	makes    = regexp.MustCompile(`\bmake ([a-z][a-z0-9-]*)`)
	function = regexp.MustCompile(`\b((?:Test|Fuzz)[A-Z]\w+)`)
	exported = regexp.MustCompile(`^([a-z][a-z0-9]*)\.([A-Z]\w*)(?:\.([A-Z]\w*))?$`)
	metric   = regexp.MustCompile(`^((?:virtloom|kubevirt)_[a-z0-9_]+[a-z0-9])(?:\{.*)?$`)
	dotted   = regexp.MustCompile(`^[a-z]+\.[A-Z]\w*$`)
	folder   = regexp.MustCompile(`^(?:\./)?((?:expectations|template|vmi|migration|handoff|domain|refdaemon|examples|internal|hack|docs|tools)(?:/[\w.-]+)+)/?$`)
)

// unknown is what a document mentions and does not exist.
func (k known) unknown(d document) []mention {
	var out []mention
	check := func(ok bool, what, name string) {
		if m := (mention{what, name}); !ok && !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	commands := func(text string) {
		for _, m := range makes.FindAllStringSubmatch(text, -1) {
			check(slices.Contains(k.targets, m[1]), "make target", m[1])
		}
		for _, m := range k.unknownCommands(text) {
			check(false, m.what, m.name)
		}
	}
	for _, b := range d.blocks {
		if b.is("sh") {
			commands(b.text)
		}
	}
	for _, m := range span.FindAllStringSubmatch(d.prose, -1) {
		text := m[1]
		commands(text)
		for _, f := range function.FindAllStringSubmatch(text, -1) {
			check(k.tests[f[1]] || k.fuzz[f[1]], "test", f[1])
		}
		if e := exported.FindStringSubmatch(text); e != nil && k.exported[e[1]] {
			name := e[1] + "." + e[2]
			check(k.exported[name], "name", name)
			check(e[3] == "" || !k.exported[name] || k.exported[name+"."+e[3]], "name", text)
		}
		if f := single.FindStringSubmatch(text); f != nil {
			check(k.hasFlag(f), "flag", text)
		}
		if m := metric.FindStringSubmatch(text); m != nil {
			check(k.metrics[m[1]], "metric", m[1])
		}
		if f := folder.FindStringSubmatch(text); f != nil {
			found, err := filepath.Glob(filepath.Join(root, f[1]))
			check(err == nil && len(found) > 0, "path", f[1])
		}
	}
	return out
}

// exists reads what there is: the Makefile, the sources, and what refdaemon says of itself.
func exists(t *testing.T) known {
	t.Helper()
	k := known{tests: map[string]bool{}, fuzz: map[string]bool{}, exported: map[string]bool{}, metrics: map[string]bool{}, commands: map[string]command{}}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `).FindAllStringSubmatch(string(makefile), -1) {
		k.targets = append(k.targets, m[1])
	}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == "testdata" || e.Name() == "bin" || e.Name() == ".git" || e.Name() == "tools"):
			return fs.SkipDir
		case e.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		k.add(f, strings.HasSuffix(path, "_test.go"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range append(metricsdoc.All(), metricsdoc.Libraries()) {
		for _, f := range source.Families {
			k.metrics[f.Name] = true
		}
	}
	k.ask(t)
	return k
}

// add takes in what a file declares.
func (k known) add(f *ast.File, test bool) {
	pkg := f.Name.Name
	if !test {
		k.exported[pkg] = true
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			switch {
			case test && strings.HasPrefix(d.Name.Name, "Fuzz"):
				k.fuzz[d.Name.Name] = true
			case test:
				k.tests[d.Name.Name] = true
			case d.Recv == nil:
				k.exported[pkg+"."+d.Name.Name] = true
			default:
				k.exported[pkg+"."+receiver(d.Recv.List[0].Type)+"."+d.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if !test {
					k.declare(pkg, s)
				}
			}
		}
	}
	if test {
		return
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING && dotted.MatchString(strings.Trim(l.Value, `"`)) {
			k.exported[strings.Trim(l.Value, `"`)] = true
		}
		return true
	})
}

func receiver(e ast.Expr) string {
	if s, ok := e.(*ast.StarExpr); ok {
		e = s.X
	}
	if i, ok := e.(*ast.IndexExpr); ok {
		e = i.X
	}
	if i, ok := e.(*ast.Ident); ok {
		return i.Name
	}
	return ""
}

// declare takes in names of values, and types with their fields and methods.
func (k known) declare(pkg string, s ast.Spec) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		for _, n := range s.Names {
			k.exported[pkg+"."+n.Name] = true
		}
	case *ast.TypeSpec:
		k.exported[pkg+"."+s.Name.Name] = true
		var fields *ast.FieldList
		switch t := s.Type.(type) {
		case *ast.StructType:
			fields = t.Fields
		case *ast.InterfaceType:
			fields = t.Methods
		default:
			return
		}
		for _, f := range fields.List {
			for _, n := range f.Names {
				k.exported[pkg+"."+s.Name.Name+"."+n.Name] = true
			}
		}
	}
}
