// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// foreign are methods of interfaces of other modules, which their callers name.
var foreign = []string{
	"Error", "Unwrap", "Is", "String", "MarshalJSON", "UnmarshalJSON", // errors, fmt, encoding
	"Describe", "Collect", // Prometheus
	"Reconcile", "Start", "NeedLeaderElection", "DeepCopyObject", // controller-runtime
}

// exported is a declared name: "Name", or "Type.Method" of an exported type.
type exported struct {
	name string
	// of is the type of a constant, if that is declared in the package: an enumeration is used as a whole.
	of string
}

// house is what the sources of the module declare and use, by folder.
type house struct {
	names map[string][]exported
	// shown are types that other exported declarations of their package mention: who uses those, uses them.
	shown map[string]map[string]bool
	// uses are names that other packages qualify, by the folder that declares them; an external test is another package.
	uses map[string]map[string]bool
	// selected are the folders in which some selector has the name, with "_test" for an external test.
	selected map[string]map[string]bool
	// promised are the names of methods of interfaces.
	promised map[string]bool
}

func put(m map[string]map[string]bool, key, value string) {
	if m[key] == nil {
		m[key] = map[string]bool{}
	}
	m[key][value] = true
}

// TestExportedNames_HaveUsers: a name that only its own package uses is a promise for nothing. Users are other packages, Examples and
// other external tests. Names are not resolved: any selector with the name of a method counts.
func TestExportedNames_HaveUsers(t *testing.T) {
	h := house{map[string][]exported{}, map[string]map[string]bool{}, map[string]map[string]bool{}, map[string]map[string]bool{}, map[string]bool{}}
	for _, name := range files(t) {
		if filepath.Ext(name) == ".go" && !strings.Contains(name, "testdata/") {
			h.add(t, name)
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(h.names)) {
		for _, e := range h.names[folder] {
			if !h.used(folder, e) {
				t.Errorf("%s.%s has no user outside its package: unexport it, or show in an Example what it is for", folder, e.name)
			}
		}
	}
}

func (h house) used(folder string, e exported) bool {
	if _, method, is := strings.Cut(e.name, "."); is {
		if h.promised[method] || slices.Contains(foreign, method) {
			return true
		}
		for by := range h.selected[method] {
			if by != folder {
				return true
			}
		}
		return false
	}
	return h.uses[folder][e.name] || h.shown[folder][e.name] || e.of != "" && (h.uses[folder][e.of] || h.shown[folder][e.of])
}

// add records a source file.
func (h house) add(t *testing.T, name string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	folder, by := path.Dir(name), path.Dir(name)
	if strings.HasSuffix(file.Name.Name, "_test") {
		by += "_test"
	}
	h.use(file, by)
	if !strings.HasSuffix(name, "_test.go") && file.Name.Name != "main" && !ast.IsGenerated(file) {
		for _, d := range file.Decls {
			h.declare(folder, d)
		}
	}
}

// use records the selectors of a file.
func (h house) use(file *ast.File, by string) {
	imports := map[string]string{}
	for _, i := range file.Imports {
		p := strings.Trim(i.Path.Value, `"`)
		if !has(p, module) {
			continue
		}
		local := path.Base(p)
		if i.Name != nil {
			local = i.Name.Name
		}
		imports[local] = pkg{ImportPath: p}.name()
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			put(h.selected, n.Sel.Name, by)
			if of, is := n.X.(*ast.Ident); is && imports[of.Name] != "" {
				put(h.uses, imports[of.Name], n.Sel.Name)
			}
		case *ast.InterfaceType:
			for _, m := range n.Methods.List {
				for _, id := range m.Names {
					h.promised[id.Name] = true
				}
			}
		}
		return true
	})
}

// declare records the exported names of a declaration, and the types that they mention.
func (h house) declare(folder string, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			of := receiver(d.Recv.List[0].Type)
			if !ast.IsExported(of) {
				return
			}
			name = of + "." + name
		}
		if d.Name.IsExported() {
			h.names[folder] = append(h.names[folder], exported{name: name})
			h.show(folder, "", d.Type)
		}
	case *ast.GenDecl:
		of := ""
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					h.names[folder] = append(h.names[folder], exported{name: s.Name.Name})
					h.show(folder, s.Name.Name, s.Type)
				}
			case *ast.ValueSpec:
				of = typeOf(s, of)
				h.values(folder, s, of)
			}
		}
	}
}

// values records exported constants and variables.
func (h house) values(folder string, s *ast.ValueSpec, of string) {
	for _, id := range s.Names {
		if id.IsExported() {
			h.names[folder] = append(h.names[folder], exported{name: id.Name, of: of})
			h.show(folder, "", s.Type)
			for _, v := range s.Values {
				if lit, is := v.(*ast.CompositeLit); is {
					h.show(folder, "", lit.Type)
				}
			}
		}
	}
}

// typeOf returns the type of a constant: its own, or, where it repeats the one above, that one's.
func typeOf(s *ast.ValueSpec, above string) string {
	if id, is := s.Type.(*ast.Ident); is {
		return id.Name
	}
	if s.Type == nil && len(s.Values) == 0 {
		return above
	}
	return ""
}

// show records the types that a declaration mentions, other than itself. Fields that are not exported show nothing.
func (h house) show(folder, self string, in ast.Expr) {
	if in == nil {
		return
	}
	ast.Inspect(in, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			return len(n.Names) == 0 || slices.ContainsFunc(n.Names, func(id *ast.Ident) bool { return id.IsExported() }) || self == ""
		case *ast.SelectorExpr:
			return false
		case *ast.Ident:
			if n.IsExported() && n.Name != self {
				put(h.shown, folder, n.Name)
			}
		}
		return true
	})
}
