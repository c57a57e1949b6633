// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestInstrument_AllKinds: each mutant is one change, and none of them is in force by itself.
func TestInstrument_AllKinds(t *testing.T) {
	src := `package p

func f(a, b int) (int, error) {
	if a < b && b > 0 {
		a++
	}
	switch {
	case a == 3:
		g()
	}
	return a, nil
}

func h(s []int) bool { return len(s) >= 2 }
`
	out, all, err := instrument("p.go", []byte(src), 1)
	if err != nil {
		t.Fatal(err)
	}
	var whats []string
	for _, s := range all {
		whats = append(whats, s.What)
	}
	want := []string{
		"negated: a < b && b > 0", "the limit belongs to the other side: a < b", "the limit belongs to the other side: b > 0", "left out: a++",
		"negated: a == 3", "left out: g()", "returns zero: return a, nil",
		"the limit belongs to the other side: len(s) >= 2", "negated: len(s) >= 2",
	}
	slices.Sort(whats)
	slices.Sort(want)
	if !slices.Equal(whats, want) {
		t.Errorf("got %q, want %q", whats, want)
	}
	for _, text := range []string{"mutantNot(", "mutantLT(", "if !mutantIs(", "return *new(int), *new(error) }; return a, nil"} {
		if !strings.Contains(string(out), text) {
			t.Errorf("no %q in:\n%s", text, out)
		}
	}
	if strings.Contains(string(out), " < b") {
		t.Errorf("an operator is left:\n%s", out)
	}
}

// core is what "never two, never none" rests on, with how many of a hundred mutants its own
// tests must kill, and those that survive because they change nothing: by a part of the
// line, with the reason.
var core = []struct {
	pkg   string
	files []string
	least float64
	same  map[string]string
}{
	{pkg: "handoff", files: []string{"step.go", "lease.go", "command.go", "table.go", "fence.go"}, least: 95},
	{pkg: "expectations", files: []string{"check.go", "classify.go", "entry.go", "reading.go"}, least: 95},
}

func TestSites_AreKilled(t *testing.T) {
	if !*run {
		t.Skip("run by make mutate")
	}
	for _, c := range core {
		t.Run(c.pkg, func(t *testing.T) {
			root := rootOf(t)
			binary, all := built(t, root, c.pkg, c.files)
			if out, err := tried(t, root, c.pkg, binary, 0); err != nil {
				t.Fatalf("the tests fail without a mutant: %v\n%s", err, out)
			}
			survived := survivors(t, root, c.pkg, binary, all)
			killed, open := len(all)-len(survived), 0
			for _, s := range survived {
				why := ""
				for part, reason := range c.same {
					if strings.Contains(s.At+" "+s.What, part) {
						why = reason
					}
				}
				if why == "" {
					open++
				}
				fmt.Printf("SURVIVED  %s: %s  %s\n", s.At, s.What, why)
			}
			fmt.Printf("%s: %d mutants, %d killed, %d survived, of which %d are explained\n", c.pkg, len(all), killed, len(survived), len(survived)-open)
			if share := 100 - 100*float64(open)/float64(len(all)); share < c.least {
				t.Errorf("%s: %.1f %% are killed or explained, want %.0f %%", c.pkg, share, c.least)
			}
		})
	}
}

// built compiles the tests of a package with all mutants of the files in it.
func built(t *testing.T, root, pkg string, files []string) (binary string, all []Site) {
	t.Helper()
	dir, replace := t.TempDir(), map[string]string{}
	put := func(name string, text []byte) {
		t.Helper()
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, text, 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, pkg, name)] = at
	}
	for _, name := range files {
		src, err := os.ReadFile(filepath.Join(root, pkg, name))
		if err != nil {
			t.Fatal(err)
		}
		out, found, err := instrument(name, src, len(all)+1)
		if err != nil {
			t.Fatal(err)
		}
		put(name, out)
		all = append(all, found...)
	}
	put("mutant_support.go", []byte("package "+filepath.Base(pkg)+"\n"+support))
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	table := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(table, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(dir, "tests")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "libvirt_dlopen", "-vet", "off", "-overlay", table, "-o", binary, "./"+pkg)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary, all
}

// tried runs the package's tests with a mutant in force. One that hangs is killed too.
func tried(t *testing.T, root, pkg, binary string, number int) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, "-test.short", "-test.failfast", "-test.timeout", "3m")
	cmd.Dir = filepath.Join(root, pkg)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", chosen, number))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.Bytes(), err
}

func survivors(t *testing.T, root, pkg, binary string, all []Site) []Site {
	t.Helper()
	var wait sync.WaitGroup
	var mu sync.Mutex
	var survived []Site
	turn := make(chan struct{}, atOnce)
	for _, s := range all {
		wait.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			if _, err := tried(t, root, pkg, binary, s.Number); err == nil {
				mu.Lock()
				defer mu.Unlock()
				survived = append(survived, s)
			}
		})
	}
	wait.Wait()
	slices.SortFunc(survived, func(a, b Site) int { return a.Number - b.Number })
	return survived
}
