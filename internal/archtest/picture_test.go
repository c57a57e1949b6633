// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// graph are the packages that each package imports.
type graph map[string][]string

// floor returns the length of the longest way down from a package.
func (g graph) floor(name string) int {
	floor := 0
	for _, below := range g[name] {
		floor = max(floor, 1+g.floor(below))
	}
	return floor
}

// reaches reports whether a package depends on another one.
func (g graph) reaches(name, other string) bool {
	return slices.ContainsFunc(g[name], func(below string) bool { return below == other || g.reaches(below, other) })
}

// picture draws the packages by floor, each with its imports that do not follow from its other imports.
func (g graph) picture() string {
	floors := map[int][]string{}
	for _, name := range slices.Sorted(maps.Keys(g)) {
		floors[g.floor(name)] = append(floors[g.floor(name)], name)
	}
	var b strings.Builder
	for floor := len(floors) - 1; floor > 0; floor-- {
		fmt.Fprintf(&b, "floor %d\n", floor)
		for _, name := range floors[floor] {
			arrows := slices.DeleteFunc(slices.Sorted(slices.Values(g[name])), func(below string) bool {
				return slices.ContainsFunc(g[name], func(other string) bool { return g.reaches(other, below) })
			})
			fmt.Fprintf(&b, "  %-29s ─▶ %s\n", name, strings.Join(arrows, "  "))
		}
	}
	b.WriteString("floor 0\n")
	line := " "
	for _, name := range floors[0] {
		if len(line)+len(name) > 130 {
			b.WriteString(line + "\n")
			line = " "
		}
		line += " " + name
	}
	b.WriteString(line + "\n")
	return b.String()
}

// TestArchitecture_DrawsEdges compares the picture in docs/architecture.md with the table.
func TestArchitecture_DrawsEdges(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	const fence = "```\n"
	_, drawn, found := strings.Cut(string(text), fence+"floor ")
	if !found {
		t.Fatal("docs/architecture.md has no picture of the packages")
	}
	drawn, _, _ = strings.Cut(drawn, fence)
	want := graph(edges).picture()
	if diff := cmp.Diff(want, "floor "+drawn); diff != "" {
		t.Errorf("docs/architecture.md draws other arrows (-want +got):\n%s\nwant:\n%s", diff, want)
	}
}

func TestPicture_Reduced(t *testing.T) {
	got := graph{"a": {"c", "b", "d"}, "b": {"d"}, "c": {}, "d": {}}.picture()
	const want = "floor 2\n  a                             ─▶ b  c\nfloor 1\n  b                             ─▶ d\nfloor 0\n  c d\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("picture differs (-want +got):\n%s", diff)
	}
}
