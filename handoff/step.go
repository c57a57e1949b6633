// SPDX-License-Identifier: Apache-2.0

package handoff

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ErrFenced means the sender acted on an epoch that is no longer current. It
// must stop acting on the guest and read the lease again.
var ErrFenced = errors.New("handoff: stale epoch")

// ErrRefused means the event does not fit the lease's state or its sender is
// not the node that may send it.
var ErrRefused = errors.New("handoff: event refused")

// Kind names an event.
type Kind string

const (
	// Offer asks Node to run the guest. Sent by the controller.
	Offer Kind = "Offer"
	// Withdraw takes back an offer nobody accepted. Sent by the controller.
	Withdraw Kind = "Withdraw"
	// Accept takes the offer. Sent by the offered node.
	Accept Kind = "Accept"
	// Prepare asks Node to get ready to receive the guest, under Tag. Sent by
	// the controller.
	Prepare Kind = "Prepare"
	// Ready says the target can receive. Sent by the target.
	Ready Kind = "Ready"
	// Begin says the holder starts to move the guest. Sent by the holder,
	// stored before its hypervisor is told.
	Begin Kind = "Begin"
	// TakeOver says the guest runs on the target. Sent by the target.
	TakeOver Kind = "TakeOver"
	// Revert says the move failed and the guest still runs on the holder. Sent
	// by the holder.
	Revert Kind = "Revert"
	// Stall says that the holder neither moves nor runs the guest any more and
	// cannot tell whether the target runs it: its hypervisor stopped half-way
	// through the switch, or its node went down. Sent by the holder.
	Stall Kind = "Stall"
	// Decline answers Stall: the guest has not come to the target, so it is the
	// holder's. Sent by the target.
	Decline Kind = "Decline"
	// Cancel calls off a move that has not begun. Sent by the controller.
	Cancel Kind = "Cancel"
	// Release says the guest has ended. Sent by the holder, or by the
	// controller for a guest that was never accepted.
	Release Kind = "Release"
)

// Event is a wish to change a lease.
type Event struct {
	// Kind says what is asked.
	Kind Kind
	// Epoch is the epoch of the lease the sender acted on.
	Epoch uint64
	// Node is the sending node, or for Offer and Prepare the node asked.
	Node string
	// Tag is the migration's UID for Prepare and Cancel.
	Tag types.UID
	// Within bounds the step that begins with this event; zero means no bound.
	Within time.Duration
	// Message explains the outcome of Revert, Decline, Cancel and Release.
	Message string
}

// transition is one row of the table that Step reads.
type transition struct {
	from []State
	// sender tells whether the event's node may send it.
	sender func(Lease, Event) bool
	// done tells whether the lease already shows the effect of the event.
	done func(Lease, Event) bool
	to   func(Lease, Event) Lease
}

var transitions = map[Kind]transition{
	Offer: {
		from:   []State{Unclaimed},
		sender: named,
		done:   func(l Lease, e Event) bool { return l.State == Offered && l.Holder == e.Node && l.Epoch == e.Epoch+1 },
		to: func(l Lease, e Event) Lease {
			return Lease{State: Offered, Epoch: l.Epoch + 1, Holder: e.Node, Last: l.Last}
		},
	},
	Withdraw: {
		from:   []State{Offered},
		sender: anyone,
		done:   func(l Lease, e Event) bool { return l.State == Unclaimed && l.Epoch == e.Epoch+1 },
		to:     func(l Lease, _ Event) Lease { return Lease{Epoch: l.Epoch + 1, Last: l.Last} },
	},
	Accept: {
		from:   []State{Offered},
		sender: holder,
		done:   func(l Lease, e Event) bool { return l.State == Owned && l.Holder == e.Node && l.Epoch == e.Epoch },
		to: func(l Lease, _ Event) Lease {
			return Lease{State: Owned, Epoch: l.Epoch, Holder: l.Holder, Last: l.Last}
		},
	},
	Prepare: {
		from:   []State{Owned},
		sender: func(l Lease, e Event) bool { return e.Node != "" && e.Node != l.Holder && e.Tag != "" },
		done: func(l Lease, e Event) bool {
			return l.InMove() && l.Target == e.Node && l.Tag == e.Tag && l.Epoch == e.Epoch+1
		},
		to: func(l Lease, e Event) Lease {
			return Lease{State: Preparing, Epoch: l.Epoch + 1, Holder: l.Holder, Target: e.Node, Tag: e.Tag, Last: l.Last}
		},
	},
	Ready: {
		from:   []State{Preparing},
		sender: target,
		done:   func(l Lease, e Event) bool { return l.State == Prepared && l.Target == e.Node && l.Epoch == e.Epoch },
		to:     moved(Prepared),
	},
	Begin: {
		from:   []State{Prepared},
		sender: holder,
		done:   func(l Lease, e Event) bool { return l.State == Moving && l.Holder == e.Node && l.Epoch == e.Epoch },
		to:     moved(Moving),
	},
	TakeOver: {
		from:   []State{Moving},
		sender: target,
		done:   func(l Lease, e Event) bool { return ended(l, e, ResultMoved) && l.Holder == e.Node },
		to:     func(l Lease, e Event) Lease { return settle(l, e, l.Target, ResultMoved) },
	},
	Revert: {
		from:   []State{Preparing, Prepared, Moving},
		sender: holder,
		done:   func(l Lease, e Event) bool { return ended(l, e, ResultReverted) && l.Holder == e.Node },
		to:     func(l Lease, e Event) Lease { return settle(l, e, l.Holder, ResultReverted) },
	},
	Stall: {
		from:   []State{Moving},
		sender: holder,
		done: func(l Lease, e Event) bool {
			return l.State == Moving && l.Stalled && l.Holder == e.Node && l.Epoch == e.Epoch
		},
		to: func(l Lease, _ Event) Lease {
			l.Stalled, l.Deadline = true, nil
			return l
		},
	},
	Decline: {
		from:   []State{Moving},
		sender: func(l Lease, e Event) bool { return l.Stalled && target(l, e) },
		done: func(l Lease, e Event) bool {
			return ended(l, e, ResultReverted) && l.Holder != e.Node
		},
		to: func(l Lease, e Event) Lease { return settle(l, e, l.Holder, ResultReverted) },
	},
	Cancel: {
		from:   []State{Preparing, Prepared},
		sender: func(l Lease, e Event) bool { return e.Tag == l.Tag },
		done:   func(l Lease, e Event) bool { return ended(l, e, ResultCancelled) },
		to:     func(l Lease, e Event) Lease { return settle(l, e, l.Holder, ResultCancelled) },
	},
	Release: {
		from: []State{Unclaimed, Offered, Owned, Preparing, Prepared, Moving},
		sender: func(l Lease, e Event) bool {
			return l.State == Unclaimed || l.State == Offered && e.Node == "" || l.Holder == e.Node
		},
		done: func(l Lease, e Event) bool { return l.State == Released && ended(l, e, ResultEnded) },
		to: func(l Lease, e Event) Lease {
			n := settle(l, e, "", ResultEnded)
			n.State = Released
			return n
		},
	},
}

// Step applies the event to the lease at the time now and returns the new
// lease. An event whose effect the lease already shows returns the lease
// unchanged. Otherwise the error is [ErrFenced] when the event's epoch is not
// the lease's, and [ErrRefused] when the state or the sender does not fit; the
// returned lease is then the old one.
func Step(l Lease, e Event, now time.Time) (Lease, error) {
	t, known := transitions[e.Kind]
	if !known {
		return l, fmt.Errorf("%w: unknown event %q", ErrRefused, e.Kind)
	}
	if t.done(l, e) {
		return l, nil
	}
	if e.Epoch != l.Epoch {
		return l, fmt.Errorf("%w: %s by %q at epoch %d, the lease is at %d", ErrFenced, e.Kind, e.Node, e.Epoch, l.Epoch)
	}
	if !in(l.State, t.from) || !t.sender(l, e) {
		return l, fmt.Errorf("%w: %s by %q in state %q (holder %q, target %q)", ErrRefused, e.Kind, e.Node, l.State, l.Holder, l.Target)
	}
	n := t.to(l, e)
	if e.Within > 0 && n.State != Released {
		d := metav1.NewTime(now.Add(e.Within))
		n.Deadline = &d
	}
	return n, nil
}

func anyone(Lease, Event) bool     { return true }
func named(_ Lease, e Event) bool  { return e.Node != "" }
func holder(l Lease, e Event) bool { return e.Node != "" && e.Node == l.Holder }
func target(l Lease, e Event) bool { return e.Node != "" && e.Node == l.Target }
func in(s State, states []State) bool {
	for _, have := range states {
		if have == s {
			return true
		}
	}
	return false
}

// moved advances a move without changing its epoch.
func moved(to State) func(Lease, Event) Lease {
	return func(l Lease, _ Event) Lease {
		return Lease{State: to, Epoch: l.Epoch, Holder: l.Holder, Target: l.Target, Tag: l.Tag, Last: l.Last}
	}
}

// settle ends a command: the lease names its owner under a new epoch and keeps
// the outcome under the old one.
func settle(l Lease, e Event, owner string, r Result) Lease {
	return Lease{
		State: Owned, Epoch: l.Epoch + 1, Holder: owner,
		Last: &Outcome{Epoch: l.Epoch, Tag: l.Tag, Result: r, Message: e.Message},
	}
}

// ended tells whether the command of the event's epoch ended with the result.
func ended(l Lease, e Event, r Result) bool {
	return l.Epoch == e.Epoch+1 && l.Last != nil && l.Last.Epoch == e.Epoch && l.Last.Result == r
}
