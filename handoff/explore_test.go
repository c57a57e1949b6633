// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"fmt"
	"testing"

	"github.com/virtloom/virtloom/handoff"
)

// TestStepKeepsItsPromises explores every lease reachable within a few epochs by
// any event from any sender, in any order, stale and future ones included.
func TestStepKeepsItsPromises(t *testing.T) {
	kinds := []handoff.Kind{handoff.Claim, handoff.Offer, handoff.Withdraw, handoff.Accept, handoff.Started, handoff.Prepare,
		handoff.Ready, handoff.Begin, handoff.Abort, handoff.TakeOver, handoff.Finalize, handoff.Revert, handoff.Stall,
		handoff.Decline, handoff.Cancel, handoff.Stop, handoff.Release, handoff.Suspect, handoff.Return, handoff.Fence}
	nodes := []string{"", nodeA, nodeB, "c"}
	const epochs = 6
	// Outcomes do not decide anything but repetitions; without them there are few leases.
	id := func(l handoff.Lease) string {
		return fmt.Sprintf("%s/%d/%s/%s/%s/%s/%t/%s/%v", l.State, l.Epoch, l.Holder, l.Target, l.Tag, l.Was, l.Stalled, l.Cause, l.Open)
	}
	seen := map[string]bool{id(handoff.Lease{}): true}
	edges := 0
	for todo := []handoff.Lease{{}}; len(todo) > 0; todo = todo[1:] {
		l := todo[0]
		for _, k := range kinds {
			for _, node := range nodes {
				for epoch := l.Epoch - min(l.Epoch, 1); epoch <= l.Epoch+1; epoch++ {
					e := handoff.Event{Kind: k, Node: node, Epoch: epoch, Tag: tag, Evidence: &handoff.Evidence{Kind: handoff.FenceConfirmed}}
					next, commands, err := handoff.Step(l, e, now)
					if err != nil {
						continue
					}
					edges++
					checkStep(t, l, e, next)
					checkCommands(t, l, e, next, commands)
					if next.Epoch <= epochs && !seen[id(next)] {
						seen[id(next)] = true
						todo = append(todo, next)
					}
				}
			}
		}
	}
	if len(seen) < 500 || edges < 5000 {
		t.Fatalf("explored only %d leases and %d steps; the exploration is broken", len(seen), edges)
	}
	t.Logf("%d leases, %d steps", len(seen), edges)
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
		t.Fatalf("%+v after %+v lets %d nodes run outside of a move", next, e, runners)
	case next.Epoch < l.Epoch:
		t.Fatalf("%+v after %+v went back in epochs", next, e)
	case l.Holder != "" && next.Holder != l.Holder && next.Epoch == l.Epoch:
		t.Fatalf("%+v after %+v changed the holder within an epoch", next, e)
	case l.State == handoff.Released && next.State != handoff.Released:
		t.Fatalf("%+v after %+v came back after the end", next, e)
	case next.State == handoff.Unclaimed && l.State != handoff.Unclaimed && l.State != handoff.Claimed && l.State != handoff.Offered:
		t.Fatalf("%+v after %+v lost an accepted guest", next, e)
	case next.Turn() == handoff.Nobody && next.State != handoff.Released:
		t.Fatalf("%+v after %+v is nobody's turn", next, e)
	case next.Deadline == nil && !ended && next.State != handoff.Owned:
		t.Fatalf("%+v after %+v has no deadline", next, e)
	case next.Cause == handoff.CauseNone && l.State != next.State:
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
