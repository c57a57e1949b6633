// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"strings"
	"testing"
	"time"

	"github.com/virtloom/virtloom/expectations"
)

// classicalGate counts, as controllers have long done: what is expected is a number
// for each owner, any event lowers it, an error lowers it, and after a while it
// counts as met.
type classicalGate struct {
	adds, dels int
	since      time.Time
}

func (g *classicalGate) reset(slot) { *g = classicalGate{} }

func (g *classicalGate) take(n note) {
	switch {
	case n.kind == noteExpect:
		g.since = clockAt(n.at)
		switch n.verb {
		case create:
			g.adds++
		case remove:
			g.dels++
		}
	case n.kind == noteExists:
		g.adds, g.dels = 0, 0
	case n.kind == noteObserve && n.event == expectations.Added:
		g.adds--
	case n.kind == noteObserve && n.event != expectations.Updated:
		g.dels--
	}
}

func (g *classicalGate) check(now time.Time) outlook {
	return outlook{open: (g.adds > 0 || g.dels > 0) && now.Sub(g.since) < tick}
}

func TestClassicalExpectations_Duplicates(t *testing.T) {
	for name, b := range map[string]budget{
		"a request fails that was carried out":           budget{}.plus(answerLoss),
		"an event is later than the expectation is old":  budget{}.plus(timePassing),
		"a watch reconnects to a server that is behind":  budget{}.plus(oldList, relist),
		"a controller restarts at a server that is late": budget{}.plus(oldList, crash),
	} {
		t.Run(name, func(t *testing.T) {
			s := Scenario{Faults: 2, lag: 1, allow: b}
			r, err := Search(&s, Limits{Workers: 2, States: 8_000})
			if err != nil {
				t.Fatal(err)
			}
			if r.Violation != nil {
				t.Errorf("ours: %s", r)
			}
			s.gate = func() gate { return &classicalGate{} }
			s.randomNames, s.credulous = true, true
			if r, err = Search(&s, Limits{Workers: 2, States: 8_000}); err != nil {
				t.Fatal(err)
			}
			if r.Violation == nil || !strings.Contains(r.Violation.Rule, "two launcher Pods") {
				t.Fatalf("classical: %s, want two launcher Pods", r)
			}
			show(t, "classical expectations, %s: %s (%d steps), ours: none", name, r.Violation.Rule, len(r.Violation.Script))
		})
	}
}
