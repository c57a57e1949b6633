// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var run = flag.Bool("mutate", false, "run the mutants, instead of only seeing whether they fit the code")

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

func TestPlants_FitTheCode(t *testing.T) {
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

// TestPlants_AreCaught runs the named tests on the code with each bug, and first on the
// code as it is: a test that fails anyway catches nothing.
func TestPlants_AreCaught(t *testing.T) {
	if !*run {
		t.Skip("run by make mutate")
	}
	root := rootOf(t)
	sound(t, root)
	var wait sync.WaitGroup
	var mu sync.Mutex
	caught, plants := 0, Plants()
	turn := make(chan struct{}, atOnce)
	for _, p := range plants {
		dir := t.TempDir()
		wait.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			v, err := p.try(t.Context(), root, dir)
			mu.Lock()
			defer mu.Unlock()
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
	}
	wait.Wait()
	fmt.Printf("planted bugs: %d of %d caught\n", caught, len(plants))
}

// sound runs the tests that catch on the code as it is.
func sound(t *testing.T, root string) {
	t.Helper()
	runs := map[string][]string{}
	for _, p := range Plants() {
		runs[p.Package] = append(runs[p.Package], p.Run)
	}
	for pkg, patterns := range runs {
		if out, err := goTest(t.Context(), root, "-run", strings.Join(patterns, "|"), "./"+pkg); err != nil {
			t.Fatalf("%s fails without a mutant: %v\n%s", pkg, err, out)
		}
	}
}
