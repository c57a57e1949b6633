// SPDX-License-Identifier: Apache-2.0

package handoff_test

import (
	"testing"

	"github.com/virtloom/virtloom/handoff"
)

func TestWhoHoldsAndWhoMayRun(t *testing.T) {
	offered := lead(t, handoff.Lease{}, ev(handoff.Offer, nodeA))
	stalled := lead(t, moving(t), ev(handoff.Stall, nodeA))
	adrift := lead(t, moving(t), ev(handoff.Suspect, nodeA))
	type who struct{ holdsA, runA, runB, startA bool }
	for name, tt := range map[string]struct {
		lease handoff.Lease
		turn  handoff.Party
		want  who
	}{
		"unclaimed": {handoff.Lease{}, handoff.Controller, who{}},
		"claimed":   {lead(t, handoff.Lease{}, ev(handoff.Claim, "")), handoff.Controller, who{}},
		"offered":   {offered, handoff.HolderNode, who{}},
		"accepted":  {lead(t, offered, ev(handoff.Accept, nodeA)), handoff.HolderNode, who{holdsA: true, runA: true, startA: true}},
		"started":   {owned(t), handoff.HolderNode, who{holdsA: true, runA: true}},
		"preparing": {lead(t, owned(t), ev(handoff.Prepare, nodeB)), handoff.TargetNode, who{holdsA: true, runA: true}},
		"prepared":  {prepared(t), handoff.HolderNode, who{holdsA: true, runA: true}},
		"moving":    {moving(t), handoff.HolderNode, who{holdsA: true, runA: true, runB: true}},
		"stalled":   {stalled, handoff.TargetNode, who{holdsA: true, runA: true, runB: true}},
		"arrived":   {lead(t, moving(t), ev(handoff.TakeOver, nodeB)), handoff.HolderNode, who{runB: true}},
		"releasing": {lead(t, owned(t), ev(handoff.Stop, "")), handoff.HolderNode, who{holdsA: true, runA: true}},
		"lost":      {lead(t, owned(t), ev(handoff.Suspect, nodeA)), handoff.Controller, who{holdsA: true, runA: true}},
		"adrift":    {adrift, handoff.Controller, who{holdsA: true, runA: true, runB: true}},
		"fenced":    {lead(t, adrift, fence(nodeA, handoff.FenceConfirmed)), handoff.TargetNode, who{runB: true}},
		"released":  {lead(t, owned(t), ev(handoff.Release, nodeA)), handoff.Nobody, who{}},
	} {
		t.Run(name, func(t *testing.T) {
			l := tt.lease
			got := who{l.Holds(nodeA), l.MayRun(nodeA), l.MayRun(nodeB), l.MayStart(nodeA)}
			if got != tt.want || l.Turn() != tt.turn {
				t.Errorf("got %+v, turn %s; want %+v, %s", got, l.Turn(), tt.want, tt.turn)
			}
			if l.MayRun("") || l.Holds("") || l.MayStart("") {
				t.Error("nobody may do something")
			}
		})
	}
}

func TestEqualSeesEveryField(t *testing.T) {
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
