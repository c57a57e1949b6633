// SPDX-License-Identifier: Apache-2.0

package doctest

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	ours       = "github.com/virtloom/virtloom"
	importPage = "docs/import.md"
)

// imported is a row of the page: a package and how many modules come with it.
var imported = regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\| ([0-9]+) \\|")

// stranger is a module that had nothing in it, in which programs of Go run.
type stranger struct {
	t   *testing.T
	dir string
}

// newStranger makes a module that takes the packages from this tree. Modules come from where this tree has them, and no others.
func newStranger(t *testing.T) stranger {
	t.Helper()
	s := stranger{t, t.TempDir()}
	from, err := filepath.Abs(root)
	must(t, err)
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(s.dir, "go.sum"), sums, 0o600))
	s.goes("mod", "init", "example.test/stranger")
	s.goes("mod", "edit", "-replace", ours+"="+from, "-require", ours+"@v0.0.0")
	return s
}

// goes runs go and returns what it prints.
func (s stranger) goes(args ...string) string {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "go", args...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("go %s: %v\n%s%s", strings.Join(args, " "), err, out, problems.String())
	}
	return string(out)
}

// modules counts those that a program has in it which imports the package, short of its own and ours.
func (s stranger) modules(pkg string) int {
	s.t.Helper()
	found := map[string]bool{}
	for path := range strings.FieldsSeq(s.goes("list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ours+"/"+pkg)) {
		found[path] = true
	}
	delete(found, ours)
	return len(found)
}

// takeExamples copies the examples of a package, which use what it exports and nothing else.
func (s stranger) takeExamples(pkg string) {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*example_test.go"))
	must(s.t, err)
	if len(files) == 0 {
		s.t.Fatalf("%s has no file example_test.go", pkg)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(s.t, err)
		must(s.t, os.WriteFile(filepath.Join(s.dir, filepath.Base(file)), text, 0o600))
	}
}

// TestImport_FromAnEmptyModule does what the page says for each package that it lists: in a module with nothing in it the
// package is required, and its examples are built and run.
func TestImport_FromAnEmptyModule(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program for each package: run it without -short")
	}
	page, err := os.ReadFile(filepath.Join(root, importPage))
	must(t, err)
	listed := map[string]string{}
	for _, m := range imported.FindAllStringSubmatch(string(page), -1) {
		listed[m[1]] = m[2]
	}
	if len(listed) < 10 {
		t.Fatalf("%s lists %d packages", importPage, len(listed))
	}
	for _, pkg := range slices.Sorted(maps.Keys(listed)) {
		t.Run(pkg, func(t *testing.T) {
			s := newStranger(t)
			s.takeExamples(pkg)
			if out := s.goes("test", "-vet", "off", "-count", "1", "-run", "^Example", "-v", "."); !strings.Contains(out, "\nPASS") {
				t.Errorf("go test says\n%s", out)
			}
			if got := strconv.Itoa(s.modules(pkg)); got != listed[pkg] {
				t.Errorf("%s says that %s comes with %s modules, these are %s", importPage, pkg, listed[pkg], got)
			}
		})
	}
}
