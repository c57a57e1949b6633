// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"flag"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root, folder = "../..", "../../api"

var update = flag.Bool("update", false, "agree on the API as it is")

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheAPIIsAsAgreed(t *testing.T) {
	now, err := Load(t.Context(), root)
	must(t, err)
	if len(now) < 10 {
		t.Fatalf("only %d packages are public", len(now))
	}
	if *update {
		must(t, WriteBaseline(folder, now))
	}
	agreed, err := ReadBaseline(folder)
	must(t, err)
	gone, added := Compare(agreed, now)
	for _, c := range gone {
		t.Errorf("incompatible: gone is %s", c)
	}
	for _, c := range added {
		t.Errorf("compatible: new is %s", c)
	}
	if t.Failed() {
		t.Error("if this is meant, run: go test ./internal/apitest -update")
	}
}

// unreleased is what the changelog says of the coming release.
func unreleased(text string) string {
	_, text, _ = strings.Cut(text, "\n## Unreleased\n")
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// untold are the changes of which a changelog does not speak.
func untold(changes []Change, changelog string) []Change {
	return slices.DeleteFunc(slices.Clone(changes), func(c Change) bool {
		return slices.ContainsFunc(c.Names(), func(name string) bool { return strings.Contains(changelog, "`"+name+"`") })
	})
}

func TestIncompatibleChangesAreInTheChangelog(t *testing.T) {
	changes, err := ReadIncompatible(folder)
	must(t, err)
	text, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	must(t, err)
	for _, c := range untold(changes, unreleased(string(text))) {
		t.Errorf("under Unreleased, CHANGELOG.md does not say what becomes of users of `%s`, which has changed incompatibly: %s", c.Names()[0], c)
	}
}

func TestAChangeIsToldByItsName(t *testing.T) {
	const log = "# Changelog\n\n## Unreleased\n\n* `vmi.Plan` is smaller\n\n## 1.0.0\n\n* `vmi.Old`\n"
	for name, tt := range map[string]struct {
		line string
		told bool
		name string
	}{
		"field of what is named":      {"type Plan struct, Steps []Step", true, "vmi.Plan.Steps"},
		"method of what is named":     {"method (*Plan) String() string", true, "vmi.Plan.String"},
		"function":                    {"func Decide(Input) Plan", false, "vmi.Decide"},
		"generic type":                {"type Set[K comparable] struct", false, "vmi.Set"},
		"method of an interface":      {"type Sealed interface, Do()", false, "vmi.Sealed.Do"},
		"constant":                    {"const Max untyped int = 3", false, "vmi.Max"},
		"only in an older release":    {"var Old error", false, "vmi.Old"},
		"package":                     {"package vmi", false, "vmi"},
		"a longer name that is named": {"type Planner struct", false, "vmi.Planner"},
	} {
		t.Run(name, func(t *testing.T) {
			c := Change{"vmi", tt.line}
			if got := len(untold([]Change{c}, unreleased(log))) == 0; got != tt.told {
				t.Errorf("told: %v, want %v", got, tt.told)
			}
			if got := c.Names()[0]; got != tt.name {
				t.Errorf("its name is %s, want %s", got, tt.name)
			}
		})
	}
}

// of compiles a package of one file.
func of(t *testing.T, code string) map[string][]string {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "p.go", "package p\n"+code, 0)
	must(t, err)
	conf := types.Config{Importer: importer.Default()}
	pkg, err := conf.Check("p", set, []*ast.File{f}, nil)
	must(t, err)
	return map[string][]string{"p": Lines(pkg)}
}

func TestWhatBreaksUsersIsIncompatible(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after string
		gone, added   int
	}{
		"nothing":                                 {"func F(a int)", "func F(b int)", 0, 0},
		"names of parameters within types":        {"var F []func(a int)", "var F []func(b int)", 0, 0},
		"what is not exported":                    {"func f() int { return 1 }", "type x struct{ A int }", 0, 0},
		"a function more":                         {"", "func F() {}", 0, 1},
		"a function less":                         {"func F() {}", "", 1, 0},
		"another result":                          {"func F() int { return 0 }", "func F() string { return \"\" }", 1, 1},
		"variadic":                                {"func F([]int) {}", "func F(...int) {}", 1, 1},
		"another constraint":                      {"func F[K any](K) {}", "func F[K comparable](K) {}", 1, 1},
		"another value of a constant":             {"const C = 1", "const C = 2", 1, 1},
		"a field more":                            {"type T struct{ A int }", "type T struct{ A, B int }", 0, 1},
		"a field less":                            {"type T struct{ A, B int }", "type T struct{ A int }", 1, 0},
		"a field of another name in files":        {"type T struct{ A int `json:\"a\"` }", "type T struct{ A int `json:\"b\"` }", 1, 1},
		"a hidden field more":                     {"type T struct{ A int }", "type T struct{ A, b int }", 0, 0},
		"no longer comparable":                    {"type T struct{ A int }", "type T struct{ A int; b []int }", 1, 0},
		"a method more":                           {"type T struct{}", "type T struct{}\nfunc (T) M() {}", 0, 1},
		"a method that needs a pointer now":       {"type T struct{}\nfunc (T) M() {}", "type T struct{}\nfunc (*T) M() {}", 1, 1},
		"an embedded method less":                 {"type e struct{}\nfunc (e) M() {}\ntype T struct{ e }", "type T struct{}", 1, 0},
		"a method more that users implement":      {"type I interface{ A() }", "type I interface{ A(); B() }", 1, 1},
		"a method more that nobody implements":    {"type I interface{ A(); x() }", "type I interface{ A(); B(); x() }", 0, 1},
		"an interface that is closed":             {"type I interface{ A() }", "type I interface{ A(); x() }", 1, 2},
		"another underlying type":                 {"type T int", "type T string", 1, 1},
		"an alias of what it was":                 {"type T struct{ A int }", "type u struct{ A int }\ntype T = u", 3, 1},
		"a constraint of fewer types":             {"type N interface{ int | string }", "type N interface{ int }", 1, 1},
		"types of other packages by their import": {"import \"io\"\nvar R io.Reader", "import \"io\"\nvar R io.Writer", 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			complete := strings.NewReplacer("func F(a int)", "func F(a int) {}", "func F(b int)", "func F(b int) {}")
			gone, added := Compare(of(t, complete.Replace(tt.before)), of(t, complete.Replace(tt.after)))
			if len(gone) != tt.gone || len(added) != tt.added {
				t.Errorf("gone are %v, want %d; new are %v, want %d", gone, tt.gone, added, tt.added)
			}
		})
	}
}

func TestWhatWasLostIsNotedUntilItIsBack(t *testing.T) {
	dir := t.TempDir()
	must(t, writeIncompatible(dir, nil))
	agree := func(pkgs map[string][]string, want ...string) {
		t.Helper()
		must(t, WriteBaseline(dir, pkgs))
		read, err := ReadBaseline(dir)
		must(t, err)
		if diff := cmp.Diff(pkgs, read); diff != "" {
			t.Errorf("read is not what was written:\n%s", diff)
		}
		noted, err := ReadIncompatible(dir)
		must(t, err)
		var got []string
		for _, c := range noted {
			got = append(got, c.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("noted is %q, want %q", got, want)
		}
	}
	agree(map[string][]string{"a": {"package a", "func F()"}, "a/b": {"package b"}})
	agree(map[string][]string{"a": {"package a", "func G()"}}, "a/b: package b", "a: func F()")
	agree(map[string][]string{"a": {"package a"}}, "a/b: package b", "a: func F()", "a: func G()")
	agree(map[string][]string{"a": {"package a", "func F()"}}, "a/b: package b", "a: func G()")
}

func TestWhatIsPublic(t *testing.T) {
	for path, want := range map[string]bool{
		"/vmi": true, "/domain/libvirt": true, "/domain/domaintest": true, "": false, "/internal/rig": false, "/refdaemon/health": false,
		"/examples/queue": false, "/hack/guest/ociimage": false, "/domain/launcher/launcherpb": false, "/vmi/internal/x": false, "x/vmi": false,
	} {
		if got := Public(module + path); got != want {
			t.Errorf("%q is public: %v", path, got)
		}
	}
}
