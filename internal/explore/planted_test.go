// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"strings"
	"testing"
	"time"

	"github.com/virtloom/virtloom/expectations"
)

// planted are the bugs, each with a scenario that is small enough to be explored
// completely without it.
var planted = []struct {
	name string
	bugs bugs
	in   Scenario
	rule string
}{
	{"epoch checking", bugs{epochs: true}, Scenario{lag: 2}, "the guest is destroyed on a although nobody asked for that"},
	{"tombstone distrust", bugs{tombstones: true}, Scenario{lag: 1, Faults: 2, allow: budget{}.plus(oldList, relist)},
		"the guest is destroyed on a although nobody asked for that"},
	{"ambiguous-write retention", bugs{ambiguous: true}, Scenario{lag: 1, Faults: 1, allow: budget{}.plus(delay, deletion)},
		"the object is let go although a Pod of it may still come of an earlier request"},
	{"intent naming", bugs{names: true}, Scenario{lag: 1, Faults: 2, allow: budget{}.plus(oldList, crash)}, "there are two launcher Pods"},
	{"persist before act", bugs{persist: true}, Scenario{lag: 1, harmOnly: true, allow: budget{}.plus(deletion)}, "a start is carried out twice"},
	{"persist before act, in a move", bugs{persist: true}, Scenario{lag: 1, Start: moves, harmOnly: true},
		"the guest is destroyed on b although nobody asked for that"},
	{"held arrival", bugs{haste: true}, Scenario{lag: 1, Faults: 1, Start: begins, holding: true, allow: budget{}.plus(moveFailure)},
		"what the guest was before it moved runs again on b"},
}

func TestPlantedBugsAreFound(t *testing.T) {
	found := 0
	for _, p := range planted {
		t.Run(p.name, func(t *testing.T) {
			s := p.in
			r, err := Search(&s, Limits{Workers: 2})
			if err != nil {
				t.Fatal(err)
			}
			if r.Violation != nil || !r.Complete {
				t.Fatalf("without the bug: %s", r)
			}
			s.bugs = p.bugs
			start := time.Now()
			r, err = Search(&s, Limits{Workers: 2})
			if err != nil {
				t.Fatal(err)
			}
			if r.Violation == nil || r.Violation.Rule != p.rule {
				t.Fatalf("got %s, want %q broken", r, p.rule)
			}
			m, err := s.newMachine(newGuests())
			if err != nil {
				t.Fatal(err)
			}
			w, err := s.first(m)
			if err != nil {
				t.Fatal(err)
			}
			again := &replay{m: m, w: w}
			if err := again.run(strings.Join(r.Violation.Script, "\n")); err == nil || !strings.Contains(err.Error(), p.rule) {
				t.Errorf("the printed script gives %v when it is replayed, want %q broken", err, p.rule)
			}
			found++
			show(t, "planted, %s off: found after %d states, %s: %s\n    %s", p.name, r.States, time.Since(start).Round(time.Millisecond),
				r.Violation.Rule, strings.Join(r.Violation.Script, "\n    "))
		})
	}
	show(t, "planted bugs: %d of %d found", found, len(planted))
}

// classicalGate counts, as controllers have long done: what is expected is a number
// for each owner, any event lowers it, an error lowers it, and after a while it
// counts as met.
type classicalGate struct {
	adds, dels int
	since      time.Time
}

func (g *classicalGate) reset() { *g = classicalGate{} }

func (g *classicalGate) take(n note) {
	switch {
	case n.kind == noteExpect:
		*g = classicalGate{since: clockAt(n.at)}
		switch n.verb {
		case create:
			g.adds = 1
		case remove:
			g.dels = 1
		}
	case n.kind == noteRefuse, n.kind == noteExists:
		g.adds, g.dels = 0, 0
	case n.kind == noteObserve && n.event == expectations.Added:
		g.adds--
	case n.kind == noteObserve && n.event != expectations.Updated:
		g.dels--
	}
}

func (g *classicalGate) check(now time.Time) expectations.State {
	if g.adds <= 0 && g.dels <= 0 || now.Sub(g.since) >= tick {
		return expectations.Satisfied
	}
	return expectations.Waiting
}

func TestClassicalExpectationsMakeDuplicates(t *testing.T) {
	for name, b := range map[string]budget{
		"a request fails that was carried out":           budget{}.plus(answerLoss),
		"an event is later than the expectation is old":  budget{}.plus(timePassing),
		"a watch reconnects to a server that is behind":  budget{}.plus(oldList, relist),
		"a controller restarts at a server that is late": budget{}.plus(oldList, crash),
	} {
		t.Run(name, func(t *testing.T) {
			s := Scenario{Faults: 2, lag: 1, allow: b}
			r, err := Search(&s, Limits{Workers: 2})
			if err != nil {
				t.Fatal(err)
			}
			if r.Violation != nil || !r.Complete {
				t.Errorf("ours: %s", r)
			}
			s.gate = func() gate { return &classicalGate{} }
			s.bugs = bugs{names: true, ambiguous: true}
			if r, err = Search(&s, Limits{Workers: 2}); err != nil {
				t.Fatal(err)
			}
			if r.Violation == nil || !strings.Contains(r.Violation.Rule, "two launcher Pods") {
				t.Fatalf("classical: %s, want two launcher Pods", r)
			}
			show(t, "classical expectations, %s: %s (%d steps), ours: none", name, r.Violation.Rule, len(r.Violation.Script))
		})
	}
}
