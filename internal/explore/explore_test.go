// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"flag"
	"fmt"
	"testing"
	"time"
)

var full = flag.Bool("full", false, "explore for minutes and print what was seen")

func TestExplore(t *testing.T) {
	limits := Limits{States: 8_000, Settle: 200, Workers: 2}
	walks := Walks{Count: 60, Length: 400, Workers: 2, Seed: 1}
	if *full {
		limits.States, limits.Settle = 700_000, 100
		walks.Count = 5000
	}
	total := 0
	for _, s := range Scenarios() {
		start := time.Now()
		r, err := Search(&s, limits)
		if err != nil {
			t.Fatal(err)
		}
		total += r.States
		if *full {
			fmt.Printf("%-46s %d faults: %s in %s\n", s.Name, s.Faults, r, time.Since(start).Round(time.Millisecond))
		}
		if r.Violation != nil {
			t.Errorf("%s: %s", s.Name, r.Violation)
		}
	}
	wild := Wild()
	r, err := Walk(&wild, walks)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	if r.Violation != nil {
		t.Errorf("%s", r.Violation)
	}
	if *full {
		fmt.Printf("%d distinct states, %s\n", total, r)
	}
}
