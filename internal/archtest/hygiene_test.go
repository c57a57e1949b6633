// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// files lists what is or would be under version control, without what is removed and not committed yet.
func files(t *testing.T) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	return slices.DeleteFunc(strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), func(name string) bool {
		_, err := os.Lstat(filepath.Join(root, name))
		return os.IsNotExist(err)
	})
}

// read returns the content of one of the files.
func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// licensed reports whether a file must have a license header: one of a kind that has comments, unless it is text for people, what a
// test reads or expects, or what a tool keeps.
func licensed(name string) bool {
	if strings.Contains(name, "testdata/") {
		return false
	}
	switch base := filepath.Base(name); base {
	case "LICENSE", ".gitignore", ".editorconfig", "go.mod":
		return false
	}
	switch filepath.Ext(name) {
	case ".md", ".sum", ".json", ".xml", ".txt", ".png", ".svg":
		return false
	}
	return true
}

func TestFiles_HaveLicenseHeader(t *testing.T) {
	const header = "SPDX-License-Identifier: Apache-2.0"
	for _, name := range files(t) {
		if !licensed(name) {
			continue
		}
		text := read(t, name)
		// A script says first what runs it, and generated code that it is.
		head := strings.SplitN(string(text), "\n", 4)
		if !strings.Contains(strings.Join(head[:min(3, len(head))], "\n"), header) {
			t.Errorf("%s does not say %q in its first three lines", name, header)
		}
	}
}

// A type with more methods is a package in one type: it falls apart by role.
func TestTypes_MethodsWithinBudget(t *testing.T) {
	const budget = 30
	methods := map[string]int{}
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "testdata/") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if ast.IsGenerated(file) {
			continue
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil {
				methods[filepath.Dir(name)+": "+receiver(f.Recv.List[0].Type)]++
			}
		}
	}
	for name, n := range methods {
		if n > budget {
			t.Errorf("%s has %d methods, want at most %d", name, n, budget)
		}
	}
}

// A larger package is several: a reader has to know all of it to change a part. Generated code does not count.
func TestPackages_WithinBudget(t *testing.T) {
	const maxNames, maxLines = 100, 6000
	names, lines := map[string]int{}, map[string]int{}
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "testdata/") {
			continue
		}
		text := read(t, name)
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if ast.IsGenerated(file) {
			continue
		}
		folder := filepath.Dir(name)
		lines[folder] += strings.Count(string(text), "\n")
		for _, decl := range file.Decls {
			names[folder] += exportedNames(decl)
		}
	}
	for folder, n := range names {
		if n > maxNames {
			t.Errorf("%s exports %d names, want at most %d", folder, n, maxNames)
		}
	}
	for folder, n := range lines {
		if n > maxLines {
			t.Errorf("%s has %d lines, want at most %d", folder, n, maxLines)
		}
	}
}

// exportedNames counts the exported names that a declaration adds to its package.
func exportedNames(d ast.Decl) int {
	count := 0
	note := func(id *ast.Ident) {
		if id.IsExported() {
			count++
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			note(d.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				note(s.Name)
			case *ast.ValueSpec:
				for _, id := range s.Names {
					note(id)
				}
			}
		}
	}
	return count
}

// receiver returns the name of the type of a method.
func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.IndexListExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	default:
		return ""
	}
}

// modfile is the output of "go mod edit -json".
type modfile struct {
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
	Exclude []struct{ Path, Version string }
	Retract []struct{ Low, High string }
}

// What a go.mod replaces holds for that module alone: whoever imports a package of ours would get something else than what was
// tested. Kubernetes' own programs cannot be built without replacements, which are in a module that is never imported.
func TestModule_NoReplaceOrRetract(t *testing.T) {
	for _, name := range files(t) {
		if filepath.Base(name) != "go.mod" {
			continue
		}
		out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json", filepath.Join(root, name)).Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var m modfile
		if err := json.Unmarshal(out, &m); err != nil {
			t.Fatal(err)
		}
		for _, r := range m.Replace {
			if name != "tools/go.mod" || r.New.Path != r.Old.Path || r.New.Version == "" {
				t.Errorf("%s replaces %s by %s %s", name, r.Old.Path, r.New.Path, r.New.Version)
			}
		}
		for _, e := range m.Exclude {
			t.Errorf("%s excludes %s %s", name, e.Path, e.Version)
		}
		for _, r := range m.Retract {
			t.Errorf("%s retracts %s to %s", name, r.Low, r.High)
		}
	}
}
