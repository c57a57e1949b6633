// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"testing"
	"time"

	"github.com/virtloom/virtloom/handoff"
)

// stepAt applies the event at that time, under the epoch of the lease.
func stepAt(t *testing.T, l handoff.Lease, e handoff.Event, at time.Time) handoff.Lease {
	t.Helper()
	e.Epoch = l.Epoch
	next, _, err := handoff.Step(l, e, at)
	if err != nil {
		t.Fatalf("%s: %v", e.Kind, err)
	}
	return next
}

// TestDeadline_IsThatOfTheStep: an event that begins no step leaves the deadline alone. A controller that aborts a migration
// would otherwise give an unresponsive holder the whole time again.
func TestDeadline_IsThatOfTheStep(t *testing.T) {
	later := now.Add(time.Minute)
	abort := ev(handoff.Abort, "")
	if got := stepAt(t, moving(t), abort, later); !got.Deadline.Equal(due(handoff.DefaultMoveWithin)) {
		t.Errorf("after an abort the deadline is %s, want that of the migration", got.Deadline)
	}
	abort.Within = time.Hour
	if got := stepAt(t, moving(t), abort, later); !got.Deadline.Equal(due(time.Minute + time.Hour)) {
		t.Errorf("after an abort that names a time the deadline is %s, want that time", got.Deadline)
	}
	stall := ev(handoff.Stall, nodeA)
	if got := stepAt(t, moving(t), stall, later); !got.Deadline.Equal(due(time.Minute + handoff.FenceAfter)) {
		t.Errorf("after a stall the deadline is %s, want that of the target's answer", got.Deadline)
	}
	fenced := lead(t, moving(t), ev(handoff.Suspect, nodeA), fence(nodeA, handoff.FenceConfirmed))
	if got := stepAt(t, fenced, ev(handoff.Decline, nodeB), later); !got.Deadline.Equal(due(time.Minute + handoff.Fenced.Within())) {
		t.Errorf("after the target has declined the deadline is %s, want that of what follows", got.Deadline)
	}
}

// TestDeadline_NoneWhereNoPartyWaits: a VMI that has ended, or is offered to no node, is never late, whatever limit the
// event sets.
func TestDeadline_NoneWhereNoPartyWaits(t *testing.T) {
	for _, tt := range []struct {
		lease handoff.Lease
		event handoff.Event
	}{
		{owned(t), handoff.Event{Kind: handoff.Release, Node: nodeA, Within: time.Hour}},
		{lead(t, handoff.Lease{}, ev(handoff.Claim, "")), handoff.Event{Kind: handoff.Withdraw, Within: time.Hour}},
	} {
		if got := lead(t, tt.lease, tt.event); got.Deadline != nil {
			t.Errorf("in state %q the deadline is %s, want none", got.State, got.Deadline)
		}
	}
}

// TestClaim_RepeatedRenewsTheDeadline: the Pod takes longer than expected, and the controller waits for it.
func TestClaim_RepeatedRenewsTheDeadline(t *testing.T) {
	claimed := lead(t, handoff.Lease{}, ev(handoff.Claim, ""))
	if got := stepAt(t, claimed, ev(handoff.Claim, ""), now.Add(time.Minute)); !got.Deadline.Equal(due(time.Minute + handoff.Claimed.Within())) {
		t.Errorf("the deadline is %s", got.Deadline)
	}
}
