// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"errors"
	"testing"
	"time"

	"github.com/virtloom/virtloom/handoff"
)

func TestLease_HoldsAndMayRun(t *testing.T) {
	offered := lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA))
	stalled := lead(t, moving(t), ev(handoff.Stall, nodeA))
	adrift := lead(t, moving(t), ev(handoff.Suspect, nodeA))
	type who struct{ holdsA, runA, runB, startA bool }
	for name, tt := range map[string]struct {
		lease handoff.Lease
		turn  handoff.Responsible
		want  who
	}{
		"unclaimed": {handoff.Lease{}, handoff.ByController, who{}},
		"claimed":   {lead(t, handoff.Lease{}, ev(handoff.Claim, "")), handoff.ByController, who{}},
		"offered":   {offered, handoff.ByNode, who{}},
		"accepted":  {lead(t, offered, ev(handoff.Accept, nodeA)), handoff.ByNode, who{holdsA: true, runA: true, startA: true}},
		"started":   {owned(t), handoff.ByNode, who{holdsA: true, runA: true}},
		"preparing": {lead(t, owned(t), ev(handoff.Prepare, nodeB)), handoff.ByTargetNode, who{holdsA: true, runA: true}},
		"prepared":  {prepared(t), handoff.ByNode, who{holdsA: true, runA: true}},
		"moving":    {moving(t), handoff.ByNode, who{holdsA: true, runA: true, runB: true}},
		"stalled":   {stalled, handoff.ByTargetNode, who{holdsA: true, runA: true, runB: true}},
		"arrived":   {lead(t, moving(t), ev(handoff.TakeOver, nodeB)), handoff.ByNode, who{runB: true}},
		"releasing": {lead(t, owned(t), ev(handoff.Stop, "")), handoff.ByNode, who{holdsA: true, runA: true}},
		"lost":      {lead(t, owned(t), ev(handoff.Suspect, nodeA)), handoff.ByController, who{holdsA: true, runA: true}},
		"adrift":    {adrift, handoff.ByController, who{holdsA: true, runA: true, runB: true}},
		"fenced":    {lead(t, adrift, fence(nodeA, handoff.FenceConfirmed)), handoff.ByTargetNode, who{runB: true}},
		"released":  {lead(t, owned(t), ev(handoff.Release, nodeA)), handoff.ByNobody, who{}},
	} {
		t.Run(name, func(t *testing.T) {
			l := tt.lease
			got := who{l.Holds(nodeA), l.MayRun(nodeA), l.MayRun(nodeB), l.MayStart(nodeA)}
			if got != tt.want || l.Responsible() != tt.turn {
				t.Errorf("got %+v, turn %s; want %+v, %s", got, l.Responsible(), tt.want, tt.turn)
			}
			if l.MayRun("") || l.Holds("") || l.MayStart("") {
				t.Error("a node without a name holds or may run the VMI")
			}
		})
	}
}

// TestMayStart_OnlyAsItsOwner looks at a start that was not reported done when the state
// changed: from the domain's end on, and while its node is silent, it is no longer carried out.
func TestMayStart_OnlyAsItsOwner(t *testing.T) {
	accepted := lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA), ev(handoff.Accept, nodeA))
	if !accepted.MayStart(nodeA) {
		t.Fatal("the owner may not start the domain")
	}
	for _, s := range []handoff.State{
		handoff.Offered, handoff.Preparing, handoff.Prepared, handoff.Moving, handoff.Arrived, handoff.Releasing, handoff.Lost, handoff.Fenced, handoff.Released,
	} {
		l := accepted
		if l.State = s; l.MayStart(nodeA) {
			t.Errorf("in state %s the domain may be started", s)
		}
	}
}

// TestOverdue_NeedsADeadline: a step without a deadline is never overdue.
func TestOverdue_NeedsADeadline(t *testing.T) {
	if l := owned(t); l.Deadline != nil || l.Overdue(time.Now().Add(999*time.Hour)) {
		t.Errorf("a lease with deadline %v is overdue", l.Deadline)
	}
	l := lead(t, owned(t), ev(handoff.Suspect, nodeA))
	for _, tt := range []struct {
		at   time.Duration
		want bool
	}{{-time.Second, false}, {0, true}, {time.Second, true}} {
		if got := l.Overdue(l.Deadline.Add(tt.at)); got != tt.want {
			t.Errorf("%s from the deadline: overdue is %t, want %t", tt.at, got, tt.want)
		}
	}
}

// TestRelease_NotWhileTheTargetMayHaveTheGuest: a holder that returns from silence cannot
// report the end of a domain that it was migrating.
func TestRelease_NotWhileTheTargetMayHaveTheGuest(t *testing.T) {
	adrift := lead(t, moving(t), ev(handoff.Suspect, nodeA))
	e := ev(handoff.Release, nodeA)
	e.Epoch = adrift.Epoch
	if _, _, err := handoff.Step(adrift, e, time.Now()); !errors.Is(err, handoff.ErrRefused) {
		t.Errorf("got %v, want ErrRefused", err)
	}
}

func TestEqual_EveryField(t *testing.T) {
	base := lead(t, moving(t), ev(handoff.Abort, ""), ev(handoff.Stall, nodeA))
	for name, change := range map[string]func(*handoff.Lease){
		"state":    func(l *handoff.Lease) { l.State = handoff.Lost },
		"epoch":    func(l *handoff.Lease) { l.Epoch++ },
		"holder":   func(l *handoff.Lease) { l.Holder = "c" },
		"target":   func(l *handoff.Lease) { l.Target = "c" },
		"tag":      func(l *handoff.Lease) { l.Tag = "other" },
		"was":      func(l *handoff.Lease) { l.Was = handoff.Owned },
		"stalled":  func(l *handoff.Lease) { l.Stalled = false },
		"cause":    func(l *handoff.Lease) { l.Cause = "other" },
		"deadline": func(l *handoff.Lease) { l.Deadline = due(1) },
		"open":     func(l *handoff.Lease) { l.Open = l.Open[1:] },
		"outcomes": func(l *handoff.Lease) { l.Outcomes = nil },
	} {
		other := base
		if change(&other); base.Equal(other) || other.Equal(base) {
			t.Errorf("%s: %+v equals %+v", name, other, base)
		}
	}
	if !base.Equal(base) {
		t.Error("a lease differs from itself")
	}
}
