// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/handoff"
)

// explored is the graph of all leases reachable within a few epochs by any event
// from any sender, in any order, including stale and future ones.
type explored struct {
	leases map[string]handoff.Lease
	edges  []edge
}

// edge is an event that a lease admits; one without effect leads back to its lease.
type edge struct {
	from, to string
	event    string
	again    bool // admitted once more, at once, without effect
}

func (e edge) is(kinds ...handoff.Kind) bool {
	return slices.ContainsFunc(kinds, func(k handoff.Kind) bool { return strings.HasPrefix(e.event, string(k)) })
}

// key distinguishes leases. Outcomes decide little but repetitions; without them there
// are few leases.
func key(l handoff.Lease) string {
	return fmt.Sprintf("%s/%d/%s/%s/%s/%s/%t/%s/%v", l.State, l.Epoch, l.Holder, l.Target, l.Tag, l.Was, l.Stalled, l.Cause, l.Open)
}

// events are all that can be sent to a lease.
func events(l handoff.Lease) []handoff.Event {
	var all []handoff.Event
	for _, k := range []handoff.Kind{handoff.Claim, handoff.Offer, handoff.Withdraw, handoff.Accept, handoff.Started, handoff.Prepare,
		handoff.Ready, handoff.Begin, handoff.Abort, handoff.TakeOver, handoff.Finalize, handoff.Revert, handoff.Stall,
		handoff.Decline, handoff.Cancel, handoff.Stop, handoff.Release, handoff.Suspect, handoff.Return, handoff.Fence} {
		for _, node := range []string{"", nodeA, nodeB, "c"} {
			for epoch := l.Epoch - min(l.Epoch, 2); epoch <= l.Epoch+1; epoch++ {
				all = append(all, handoff.Event{Kind: k, Node: node, Epoch: epoch, Tag: tag, Evidence: &handoff.Evidence{Kind: handoff.FenceConfirmed}})
			}
		}
	}
	return all
}

func explore(t *testing.T) explored {
	t.Helper()
	const epochs = 6
	x := explored{leases: map[string]handoff.Lease{key(handoff.Lease{}): {}}}
	for todo := []handoff.Lease{{}}; len(todo) > 0; todo = todo[1:] {
		l := todo[0]
		for _, e := range events(l) {
			next, commands, err := handoff.Step(l, e, now)
			if err != nil {
				continue
			}
			checkStep(t, l, e, next)
			checkCommands(t, l, e, next, commands)
			again, _, err := handoff.Step(next, e, now.Add(1))
			x.edges = append(x.edges, edge{from: key(l), to: key(next), event: fmt.Sprint(e.Kind, e.Node, e.Epoch), again: err == nil && again.Equal(next)})
			if _, known := x.leases[key(next)]; next.Epoch <= epochs && !known {
				x.leases[key(next)] = next
				todo = append(todo, next)
			}
		}
	}
	return x
}

func TestStep_Invariants(t *testing.T) {
	x := explore(t)
	if len(x.leases) < 500 || len(x.edges) < 5000 {
		t.Fatalf("explored only %d leases and %d steps; the exploration is broken", len(x.leases), len(x.edges))
	}
	t.Logf("%d leases, %d steps", len(x.leases), len(x.edges))
	for _, e := range x.edges {
		if !e.again && !e.is(handoff.Claim, handoff.Fence) { // a claim is renewed, a fence cannot be recognized again
			t.Errorf("%s in %s, repeated at once, is refused or has an effect again", e.event, e.from)
		}
	}
}

// TestStep_NoEffectMeansApplied: a sender that gets success without effect relies on
// the event having been applied.
func TestStep_NoEffectMeansApplied(t *testing.T) {
	x := explore(t)
	// happened holds for each lease the events on any path that leads to it.
	happened := map[string]map[string]bool{}
	for name := range x.leases {
		happened[name] = map[string]bool{}
	}
	for changed := true; changed; {
		changed = false
		for _, e := range x.edges {
			into, known := happened[e.to]
			if e.from == e.to || !known {
				continue
			}
			before := len(into)
			into[e.event] = true
			for h := range happened[e.from] {
				into[h] = true
			}
			changed = changed || len(into) > before
		}
	}
	for _, e := range x.edges {
		// That a domain has ended, or was declined, holds for every sender.
		if e.from == e.to && !happened[e.from][e.event] && !e.is(handoff.Claim, handoff.Release, handoff.Decline) {
			t.Errorf("%s is admitted in %s, where it can never have happened", e.event, e.from)
		}
	}
}

func checkStep(t *testing.T, l handoff.Lease, e handoff.Event, next handoff.Lease) {
	t.Helper()
	starters, runners := 0, 0
	for _, n := range []string{nodeA, nodeB, "c"} {
		if next.MayStart(n) {
			starters++
		}
		if next.MayRun(n) {
			runners++
		}
	}
	ended := next.State == handoff.Released || next.State == handoff.Fenced || next.State == handoff.Unclaimed
	switch {
	case starters > 1:
		t.Fatalf("%+v after %+v lets %d nodes start", next, e, starters)
	case runners > 1 && !next.Switching():
		t.Fatalf("%+v after %+v lets %d nodes run outside of a migration", next, e, runners)
	case next.Epoch < l.Epoch:
		t.Fatalf("%+v after %+v went back in epochs", next, e)
	case l.Holder != "" && next.Holder != l.Holder && next.Epoch == l.Epoch:
		t.Fatalf("%+v after %+v changed the holder within an epoch", next, e)
	case l.State == handoff.Released && next.State != handoff.Released:
		t.Fatalf("%+v after %+v came back after the end", next, e)
	case next.State == handoff.Unclaimed && l.State != handoff.Unclaimed && l.State != handoff.Claimed && l.State != handoff.Offered:
		t.Fatalf("%+v after %+v lost an accepted VMI", next, e)
	case next.Responsible() == handoff.ByNobody && next.State != handoff.Released:
		t.Fatalf("%+v after %+v is nobody's turn", next, e)
	case next.Deadline == nil && !ended && next.State != handoff.Owned:
		t.Fatalf("%+v after %+v has no deadline", next, e)
	case next.Target == "" && next.Tag != "":
		t.Fatalf("%+v after %+v names a migration outside of one", next, e)
	case next.Cause == "" && l.State != next.State:
		t.Fatalf("%+v after %+v has no cause", next, e)
	}
	raw, err := next.MarshalJSON()
	var read handoff.Lease
	if err == nil {
		err = read.UnmarshalJSON(raw)
	}
	if err != nil || !read.Equal(next) {
		t.Fatalf("%+v is read as %+v from %s: %v", next, read, raw, err)
	}
}

func checkCommands(t *testing.T, l handoff.Lease, e handoff.Event, next handoff.Lease, commands []handoff.Command) {
	t.Helper()
	ids := map[string]bool{}
	for _, c := range next.Open {
		if ids[c.ID] {
			t.Fatalf("%+v after %+v has two commands %s", next, e, c.ID)
		}
		ids[c.ID] = true
	}
	for _, c := range commands {
		if _, ended := l.Outcome(c.ID); ended || !ids[c.ID] || c.Epoch != next.Epoch {
			t.Fatalf("%+v after %+v issues %+v", next, e, c)
		}
		if ofMove := c.Kind != handoff.CommandStart && c.Kind != handoff.CommandStop; ofMove != (c.Tag == tag) || !ofMove && c.Tag != "" {
			t.Fatalf("%+v after %+v issues %+v under the wrong tag", next, e, c)
		}
	}
	for _, c := range l.Open {
		if _, ended := next.Outcome(c.ID); !ids[c.ID] && !ended {
			t.Fatalf("%+v after %+v forgot %+v", next, e, c)
		}
	}
	if len(next.Open) > 0 && (next.State == handoff.Released || next.State == handoff.Offered || next.State == handoff.Unclaimed) {
		t.Fatalf("%+v after %+v leaves commands open", next, e)
	}
}
