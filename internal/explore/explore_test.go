// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"os"
	"strconv"
	"testing"
	"time"
)

var faults = budget{crash: 1, answerLoss: 1, requestLoss: 1, delay: 1, relist: 1, oldList: 1}

func with(n uint8, b budget, more ...fault) budget {
	b[noFault] = n
	for _, f := range more {
		b[f]++
	}
	return b
}

func try(t *testing.T, s *Scenario, l Limits) {
	t.Helper()
	start := time.Now()
	r, err := Search(s, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s with %d faults: %s in %s", s.Name, s.allow[0], r, time.Since(start))
	if r.Violation != nil {
		t.Fatalf("%s", r.Violation)
	}
}

func TestBoot(t *testing.T) {
	for _, n := range []uint8{0, 1, 2} {
		try(t, &Scenario{Name: "boot", lag: lagFlag(), allow: with(n, faults, deletion)}, Limits{States: 3_000_000, Settle: 100, Workers: 2})
	}
}

func TestBootTime(t *testing.T) {
	for _, n := range []uint8{0, 1, 2} {
		try(t, &Scenario{Name: "boot and time", lag: lagFlag(), allow: with(n, faults, timePassing, timePassing, timePassing, timePassing, deafness, cut)}, Limits{States: 3_000_000, Settle: 100, Workers: 2})
	}
}

func TestMove(t *testing.T) {
	for _, n := range []uint8{0, 1, 2} {
		try(t, &Scenario{Name: "move", Start: "settle\nexpect a=running", lag: lagFlag(), allow: with(n, faults, moveWish, cancellation, moveFailure, moveBreak)}, Limits{States: 3_000_000, Settle: 100, Workers: 2})
	}
}

func TestLoss(t *testing.T) {
	for _, restart := range []bool{false, true} {
		for _, n := range []uint8{0, 1, 2, 3} {
			try(t, &Scenario{Name: "loss", lag: lagFlag(), Start: "settle\nexpect a=running", restart: restart,
				allow: with(n, faults, timePassing, timePassing, timePassing, timePassing, deafness, cut, death, eviction)}, Limits{States: 3_000_000, Settle: 100, Workers: 2})
		}
	}
}

func TestMoveLoss(t *testing.T) {
	for _, n := range []uint8{0, 1, 2} {
		try(t, &Scenario{Name: "loss in a move", lag: lagFlag(), Start: "settle\nuser asks for m1\nexpect a=running", restart: true,
			allow: with(n, faults, timePassing, timePassing, timePassing, timePassing, deafness, cut, death, eviction, moveFailure, moveBreak)}, Limits{States: 3_000_000, Settle: 100, Workers: 2})
	}
}

func lagFlag() int { n, _ := strconv.Atoi(os.Getenv("LAG")); return n }
