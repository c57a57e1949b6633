// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"flag"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var (
	run  = flag.Bool("mutate", false, "run the mutants, instead of only seeing whether they fit the code")
	only = flag.String("only", "", "with -mutate: run only the mutants whose name this regular expression matches")
)

// atOnce is how many mutants are tried side by side: half of each is compiling.
const atOnce = 2

func rootOf(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func TestPlants_Apply(t *testing.T) {
	root, names := rootOf(t), map[string]bool{}
	for _, p := range Plants() {
		if _, err := p.mutated(root); err != nil {
			t.Error(err)
		}
		if names[p.Name] || p.Package == "" || p.Run == "" || p.Old == p.New {
			t.Errorf("plant %q: the name is taken, or it says not where it is caught", p.Name)
		}
		names[p.Name] = true
	}
	if len(names) < 30 {
		t.Errorf("%d plants, want at least 30", len(names))
	}
}

// chosen returns the plants that -only names, all of them without it.
func chosen(t *testing.T, plants []Plant) []Plant {
	t.Helper()
	name, err := regexp.Compile(*only)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(plants, func(p Plant) bool { return !name.MatchString(p.Name) })
}

// TestPlants_Caught runs the named tests on the code with each bug, and first on the
// code as it is: a test that fails anyway catches nothing.
func TestPlants_Caught(t *testing.T) {
	if !*run {
		t.Skip("run by make mutate")
	}
	caught, plants := 0, chosen(t, Plants())
	sound(t, plants)
	each(t, plants, func(p Plant, v Verdict, err error) {
		switch {
		case err != nil:
			t.Errorf("%s: %v", p.Name, err)
		case !v.Killed:
			fmt.Printf("SURVIVED  %-58s %s\n", p.Name, p.File)
			t.Errorf("%s: %s in %s does not notice", p.Name, p.Run, p.Package)
		default:
			caught++
			fmt.Printf("killed    %-58s %-28s by %s in %s\n", p.Name, p.File, v.By, p.Package)
		}
	})
	fmt.Printf("planted bugs: %d of %d caught\n", caught, len(plants))
}

// each tries plants side by side, and calls back one at a time.
func each(t *testing.T, plants []Plant, then func(Plant, Verdict, error)) {
	t.Helper()
	root := rootOf(t)
	var wait sync.WaitGroup
	var mu sync.Mutex
	turn := make(chan struct{}, atOnce)
	for _, p := range plants {
		dir := t.TempDir()
		wait.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			v, err := p.try(t.Context(), root, dir)
			mu.Lock()
			defer mu.Unlock()
			then(p, v, err)
		})
	}
	wait.Wait()
}

func TestGeneric_Apply(t *testing.T) {
	root := rootOf(t)
	plants, err := generic(root, core)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, p := range plants {
		if _, err := p.mutated(root); err != nil {
			t.Error(err)
		}
		if names[p.Name] || p.Old == p.New {
			t.Errorf("%q is there twice, or changes nothing", p.Name)
		}
		names[p.Name] = true
	}
	for name := range explained {
		if !names[name] {
			t.Errorf("what is explained is no change any more: %q", name)
		}
	}
}

// TestGeneric_Caught allows one in twenty to survive unexplained.
func TestGeneric_Caught(t *testing.T) {
	if !*run {
		t.Skip("run by make mutate")
	}
	plants, err := generic(rootOf(t), core)
	if err != nil {
		t.Fatal(err)
	}
	plants = chosen(t, plants)
	tried, killed, excused := 0, 0, 0
	each(t, plants, func(p Plant, v Verdict, err error) {
		switch why, known := explained[p.Name]; {
		case err != nil: // most do not compile
			return
		case v.Killed:
			killed++
		case known:
			fmt.Printf("explained %s: %s\n", p.Name, why)
			excused++
			return
		default:
			fmt.Printf("SURVIVED  %s\n", p.Name)
		}
		tried++
	})
	fmt.Printf("changes of the safety core: %d of %d caught, %d explained, %d do not compile or change nothing\n",
		killed, tried, excused, len(plants)-tried-excused)
	if 20*(tried-killed) > tried {
		t.Errorf("%d of %d survive", tried-killed, tried)
	}
}

// sound runs the tests that catch on the code as it is.
func sound(t *testing.T, plants []Plant) {
	t.Helper()
	root, runs := rootOf(t), map[string][]string{}
	for _, p := range plants {
		runs[p.Package] = append(runs[p.Package], p.Run)
	}
	for pkg, patterns := range runs {
		if out, err := goTest(t.Context(), root, "-run", strings.Join(patterns, "|"), "./"+pkg); err != nil {
			t.Fatalf("%s fails without a mutant: %v\n%s", pkg, err, out)
		}
	}
}
