// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Step applies the event to the lease at the time now. It returns the new lease and
// the commands that it issues: what its nodes must do once, and only if, the new
// lease is stored. Both can be found again in [Lease.Open].
//
// An event whose effect the lease already shows returns the lease unchanged and no
// command. Otherwise the error is [ErrFenced] when the event's epoch is not the
// lease's, [ErrRefused] when the state or the sender does not fit, and
// [ErrTooEarly] when a silent node may still act; the lease returned is then the
// old one.
func Step(l Lease, e Event, now time.Time) (Lease, []Command, error) {
	if applied(l, e) {
		return l, nil, nil
	}
	if e.Epoch != l.Epoch {
		return l, nil, fmt.Errorf("%w: %s by %q at epoch %d, the lease is at %d", ErrFenced, e.Kind, e.Node, e.Epoch, l.Epoch)
	}
	t, err := admit(l, e, now)
	if err != nil {
		return l, nil, err
	}
	return t.apply(l, e, now)
}

// admit finds the row for the event and checks that it may be applied.
func admit(l Lease, e Event, now time.Time) (transition, error) {
	t, found := rowFor(e.Kind, l.State)
	why := ""
	switch {
	case !found:
		why = "it does not fit the state"
	case !t.sentBy(l, e):
		why = "it is not for this node to send"
	case t.when != nil:
		why = t.when(l, e)
	}
	if why != "" {
		return t, fmt.Errorf("%w: %s by %q in state %q (holder %q, target %q): %s", ErrRefused, e.Kind, e.Node, l.State, l.Holder, l.Target, why)
	}
	if e.Kind == Fence && e.Evidence.Kind != FenceConfirmed && !l.Overdue(now) {
		return t, fmt.Errorf("%w: %s of %q, of which there is %s, waits for the lease's deadline (%s)",
			ErrTooEarly, e.Kind, e.Node, e.Evidence.Kind, l.deadline())
	}
	return t, nil
}

func (l Lease) deadline() string {
	if l.Deadline == nil {
		return "none"
	}
	return l.Deadline.UTC().Format(time.RFC3339)
}

func (t transition) sentBy(l Lease, e Event) bool {
	switch t.sender {
	case HolderNode:
		return e.Node != "" && e.Node == l.Holder || t.event == Stop && e.Node == ""
	case TargetNode:
		return e.Node != "" && e.Node == l.Target
	default:
		return true
	}
}

func (t transition) apply(l Lease, e Event, now time.Time) (Lease, []Command, error) {
	n := l
	n.Cause = t.cause
	if e.Kind == Fence {
		n.Cause = e.Evidence.cause()
	}
	switch t.to {
	case same:
	case back:
		n.State = l.Was
	default:
		n.State = t.to
	}
	if t.epoch {
		n.Epoch++
	}
	if t.to == Lost {
		n.Was = l.State
	}
	if t.change != nil {
		t.change(&n, e)
	}
	if t.to != same || e.Within > 0 || n.Stalled != l.Stalled || n.Target != l.Target {
		n.Deadline = n.due(e, now) // a new step begins
	}
	return n, issued(l, n), nil
}

// due says when the step that begins now is overdue, rounded up to the second,
// which is what the annotation keeps.
func (l Lease) due(e Event, now time.Time) *metav1.Time {
	rule := states[l.State]
	if l.Stalled || l.Switching() && l.State == Fenced {
		rule = states[Lost] // the target may be silent as well
	}
	within := e.Within
	if within <= 0 {
		within = rule.within
	}
	within = max(within, rule.least)
	if within <= 0 || l.State == Released || l.State == Unclaimed {
		return nil
	}
	at := now.Add(within)
	if whole := at.Truncate(time.Second); !whole.Equal(at) {
		at = whole.Add(time.Second)
	}
	due := metav1.NewTime(at.UTC())
	return &due
}

// issued returns the commands of n that l did not have.
func issued(l, n Lease) []Command {
	var fresh []Command
	for _, c := range n.Open {
		if !slices.Contains(l.Open, c) {
			fresh = append(fresh, c)
		}
	}
	return fresh
}

// applied tells whether the lease already shows the effect of the event.
func applied(l Lease, e Event) bool {
	switch e.Kind {
	case Offer:
		return l.State == Offered && l.Holder == e.Node && l.Epoch == e.Epoch+1
	case Withdraw:
		return l.State == Unclaimed && l.Epoch == e.Epoch+1
	case Accept:
		return l.State == Owned && l.Holder == e.Node && l.Epoch == e.Epoch
	case Started:
		return l.State == Owned && l.Holder == e.Node && l.Epoch == e.Epoch && !l.isOpen(CommandStart)
	case Prepare:
		return l.InMove() && l.Target == e.Node && l.Tag == e.Tag && l.Epoch == e.Epoch+1
	case Ready:
		return l.State == Prepared && l.Target == e.Node && l.Epoch == e.Epoch
	case Begin:
		return l.State == Moving && l.Holder == e.Node && l.Epoch == e.Epoch
	case Abort:
		return l.State == Moving && l.Tag == e.Tag && l.Epoch == e.Epoch && l.isOpen(CommandAbort)
	case Stall:
		return l.State == Moving && l.Stalled && l.Holder == e.Node && l.Epoch == e.Epoch
	default:
		return ended(l, e)
	}
}

// ended tells whether the lease shows the effect of an event that ends something.
func ended(l Lease, e Event) bool {
	next := l.Epoch == e.Epoch+1
	switch e.Kind {
	case TakeOver:
		return (l.State == Arrived || l.State == Owned) && l.Holder == e.Node && next && l.wasMoved(ResultMoved)
	case Finalize:
		return l.State == Owned && l.Cause == CauseFinalized && l.Holder == e.Node && l.Epoch == e.Epoch
	case Revert:
		return l.State == Owned && l.Cause == CauseReverted && l.Holder == e.Node && next
	case Decline:
		return (l.State == Owned || l.State == Fenced) && l.Cause == CauseDeclined && l.Holder != e.Node && next
	case Cancel:
		return l.State == Owned && l.Cause == CauseCancelled && next
	case Stop:
		return l.State == Releasing && l.Epoch == e.Epoch
	case Release:
		return l.State == Released && next
	case Return:
		return l.Cause == CauseReturned && l.Holder == e.Node && l.Epoch == e.Epoch
	case Suspect:
		return l.State == Lost && l.Holder == e.Node && next
	case Fence:
		return l.State == Fenced && l.Holder != e.Node && l.Target != e.Node && next
	default:
		return false
	}
}

func (l Lease) isOpen(k CommandKind) bool { _, open := l.Command(k); return open }

// wasMoved tells whether the newest outcome of a move is r.
func (l Lease) wasMoved(r Result) bool {
	o, known := findOutcome(l.Outcomes, func(o Outcome) bool { return o.ID == CommandMigrateIn.id(o.Epoch) })
	return known && o.Result == r
}
