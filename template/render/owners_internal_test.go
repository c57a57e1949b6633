// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestOwners_MapSemantics compares the table with a map, over fields with many hash collisions and more than fit at first.
func TestOwners_MapSemantics(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	table := newOwners()
	for round := range 3 {
		naive := map[field]origin{}
		for range 5000 {
			n := rng.IntN(800)
			f := field{base: fieldVolumes, name: fmt.Sprintf("begins-alike-%d-ends-alike", n)}
			if n%3 == 0 {
				f = field{base: fieldContainers, name: "compute", sub: ".env", item: fmt.Sprint(n)}
			}
			switch o := (origin{stage: fmt.Sprint(n, round), from: "spec"}); rng.IntN(3) {
			case 0:
				table.put(f, o)
				naive[f] = o
			case 1:
				table.remove(f)
				delete(naive, f)
			default:
				if got := table.get(f); got != naive[f] {
					t.Fatalf("%s has %v, want %v", f, got, naive[f])
				}
			}
		}
		set := 0
		for _, entry := range table.entries {
			if entry.origin.stage != "" {
				set++
			}
			if entry.origin != naive[entry.field] {
				t.Errorf("%s is listed with %v, want %v", entry.field, entry.origin, naive[entry.field])
			}
		}
		if set != len(naive) {
			t.Errorf("%d fields are listed, want %d", set, len(naive))
		}
		table.clear()
	}
}
