// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Step applies the event to the lease at the time now. It returns the new lease and
// the commands that it issues, to be carried out by the nodes once, and only if, the
// new lease is stored. The commands are also in [Lease.Open].
//
// An event whose effect the lease already shows returns the lease unchanged and no
// command. Otherwise the error is [ErrFenced] when the event's epoch is not the
// lease's, [ErrRefused] when the state or the sender does not fit, and
// [ErrTooEarly] when an unresponsive node may still act; the lease returned is then the
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
	case fromHolder:
		return e.Node != "" && e.Node == l.Holder || t.event == Stop && e.Node == ""
	case fromTarget:
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

// due returns when the step that begins now is overdue, rounded up to the second, the
// precision of the annotation.
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

// goneOn are the causes of the steps that may follow an event under the same epoch
// and leave its effect in place.
var goneOn = map[Kind][]Cause{
	Accept:   {causeStarted},
	Prepare:  {CauseTargetReady, causeMoveBegun, causeAbortAsked, causeStalled},
	Begin:    {causeAbortAsked, causeStalled},
	TakeOver: {causeFinalized},
}

// applied reports whether the lease already shows the effect of the event. The sender
// relies on that answer, so an event for which the lease cannot prove it is refused, and
// its sender reads the lease. That holds for Fence, as the lease does not keep the name
// of the fenced node.
func applied(l Lease, e Event) bool {
	return slices.ContainsFunc(transitions, func(t transition) bool {
		epoch := e.Epoch
		if t.epoch {
			epoch++
		}
		caused := t.event == e.Kind && (l.Cause == t.cause || slices.Contains(goneOn[e.Kind], l.Cause))
		return caused && l.Epoch == epoch && t.leadsTo(l) && concerns(l, e)
	})
}

// leadsTo reports whether the row may have produced the lease, or an earlier one.
func (t transition) leadsTo(l Lease) bool {
	switch t.to {
	case same:
		return slices.Contains(t.from, l.State)
	case back:
		return canBeLost(l.State)
	}
	return l.State == t.to || l.Cause != t.cause
}

// concerns reports whether the event is about the nodes that the lease, having applied
// it, names. After Release and Decline it names them no more, and their statement holds
// for every sender.
func concerns(l Lease, e Event) bool {
	byHolder := l.Holder == e.Node && e.Node != ""
	switch e.Kind {
	case Offer, Accept, Started, Revert, TakeOver, Finalize, Stall, Suspect, Return:
		return byHolder
	case Begin:
		return byHolder && l.opened(CommandMigrateOut, e.Epoch)
	case Stop:
		return byHolder || e.Node == ""
	case Prepare, Ready, Cancel, Abort:
		return concernsMove(l, e)
	case Withdraw, Release, Decline:
		return true
	}
	return false
}

func concernsMove(l Lease, e Event) bool {
	switch e.Kind {
	case Prepare:
		return l.Target == e.Node && l.Tag == e.Tag && l.opened(CommandMigrateIn, e.Epoch+1)
	case Ready:
		return l.Target == e.Node
	case Abort:
		return l.Tag == e.Tag && l.opened(CommandAbort, e.Epoch)
	}
	_, ended := l.MoveOutcome(e.Tag)
	return ended
}

func (l Lease) isOpen(k CommandKind) bool { _, open := l.Command(k); return open }

// opened reports whether the command was issued under the epoch and has no outcome.
func (l Lease) opened(k CommandKind, epoch uint64) bool {
	c, open := l.Command(k)
	return open && c.Epoch == epoch
}
