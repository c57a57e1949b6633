// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"flag"
	"fmt"
	"testing"
	"time"
)

// fullTime bounds a full exploration; it takes less on two idle cores.
const fullTime = 15 * time.Minute

var full = flag.Bool("full", false, "explore for minutes and print what was seen")

// show prints to whoever explores, or into the log of the test.
func show(t *testing.T, format string, args ...any) {
	t.Helper()
	if *full {
		fmt.Printf(format+"\n", args...)
		return
	}
	t.Logf(format, args...)
}

func TestExplore(t *testing.T) {
	limits := Limits{States: 20_000, Settle: 400, Workers: 2}
	walks := Walks{Count: 150, Length: 1000, Workers: 2, Seed: 1}
	if *full {
		began := time.Now()
		limits.States, limits.Settle = 300_000, 400
		walks.Count = 3000
		limits.Stop = func() bool { return time.Since(began) > fullTime }
		walks.Stop = limits.Stop
	}
	total, steps, violations := 0, 0, 0
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			start := time.Now()
			here := limits
			if s.settle > 0 {
				here.Settle = s.settle
			}
			r, err := Search(&s, here)
			if err != nil {
				t.Fatal(err)
			}
			total, steps = total+r.States, steps+r.Steps
			show(t, "%-46s any %d faults: %s, %s", s.Name, s.Faults, r, time.Since(start).Round(time.Second/10))
			if r.Violation != nil {
				violations++
				t.Errorf("%s", r.Violation)
			}
		})
	}
	for _, wild := range []Scenario{Wild(false), Wild(true), WildVM()} {
		t.Run(wild.Name, func(t *testing.T) {
			here := walks
			if wild.machine != "" && !*full {
				here.Count /= 3 // a step of it costs more
			}
			r, err := Walk(&wild, here)
			if err != nil {
				t.Fatal(err)
			}
			if r.Violation != nil {
				violations++
				t.Errorf("%s", r.Violation)
			}
			steps += r.Steps
			show(t, "random, %s: %s of up to %d steps", wild.Name, r, walks.Length)
		})
	}
	show(t, "in all %d distinct states, %d steps, %d violations", total, steps, violations)
}
