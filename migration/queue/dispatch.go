// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// lockedDispatch hands out every free slot: to claims that can enter their target, to lenders
// that want theirs back, by lending, and then to the queue. It returns the keys of the
// migrations that may proceed, except one.
func (a *Admission) lockedDispatch(except types.NamespacedName) []types.NamespacedName {
	for {
		if a.lockedArrivals() {
			a.lockedTakeBack()
			continue
		}
		if a.lockedTakeBack() || a.lockedLend() {
			continue
		}
		if !a.lockedAdmit() {
			break
		}
	}
	var woken []types.NamespacedName
	for _, key := range a.woken {
		if key != except {
			woken = append(woken, key)
		}
	}
	a.woken = a.woken[:0]
	return woken
}

// lockedArrivals hands out the slots at changed target nodes. It reports whether a
// lender could enter, if it had its slots.
func (a *Admission) lockedArrivals() bool {
	called := false
	for _, name := range a.lockedTargets() {
		if u := a.nodes[name]; u != nil && len(u.arrivals) > 0 {
			called = a.lockedEnter(u) || called
		}
		a.sources = append(a.sources, name) // removed if it has no claims left
	}
	return called
}

// lockedTargets returns the changed targets, each once: one look at a node calls one lender.
func (a *Admission) lockedTargets() []string {
	if len(a.targets) == 0 {
		return nil
	}
	names := slices.Clone(a.targets)
	a.targets = a.targets[:0]
	slices.Sort(names)
	return slices.Compact(names)
}

// lockedEnter admits claims to the node. It stops at a lender that has not asked for its
// slots yet, and skips one that asked and could not get them.
func (a *Admission) lockedEnter(u *usage) (called bool) {
	for i := 0; i < len(u.arrivals) && len(u.in) < a.limits.Inbound; {
		s := u.arrivals[i]
		switch {
		case !a.limits.fits(u.inRate, s.rate):
			return false
		case s.state == lends && s.owed:
			i++
			continue
		}
		a.lockedUnbook(s)
		called = s.state == lends
		s.inbound, s.owed = !called, called
		a.lockedBook(s)
		if called {
			return true
		}
		a.woken = append(a.woken, s.claim.Key)
	}
	return false
}

// lockedTakeBack returns their slots to lenders that want them, and reports whether
// any got them. What a lender waits for is not given to those behind it.
func (a *Admission) lockedTakeBack() bool {
	if len(a.wanting) == 0 {
		return false
	}
	reserved, got := map[string]*usage{}, false
	short := 0
	for _, s := range slices.Clone(a.wanting) {
		u, r := a.lockedNode(s.claim.SourceNode), reserved[s.claim.SourceNode]
		if r == nil {
			r = &usage{}
			reserved[s.claim.SourceNode] = r
		}
		if len(a.holders)+short >= a.limits.Cluster || len(u.out)+r.wants >= a.limits.Outbound ||
			!a.limits.fits(u.outRate+r.wantRate, s.rate) {
			short++
			r.wants++
			r.wantRate += s.rate
			continue
		}
		a.lockedUnbook(s)
		s.state = holds
		a.lockedBook(s)
		got = true
		if s.claim.TargetNode == "" {
			a.woken = append(a.woken, s.claim.Key)
		}
	}
	return got
}

// lockedLend lets a claim that cannot use its slots lend them, the least urgent
// first, and reports whether there was one.
func (a *Admission) lockedLend() bool {
	last := len(a.idle) - 1
	if last < 0 || len(a.lenders) >= a.limits.Lent {
		return false
	}
	s := a.idle[last]
	a.lockedUnbook(s)
	s.state = lends
	a.lockedBook(s)
	return true
}

// lockedAdmit hands out the rest to the queue, and reports whether any claim got a slot.
func (a *Admission) lockedAdmit() bool {
	a.lockedLanes()
	got := false
	for a.limits.Outbound > 0 && len(a.holders)+len(a.wanting) < a.limits.Cluster {
		n := a.line.next()
		if n == nil {
			break
		}
		s := a.claims[n.Key]
		u := a.lockedNode(n.Lane)
		if !a.limits.fits(u.outRate+u.wantRate, a.limits.rate(s.claim.Bandwidth)) {
			a.line.holdBack(n)
			continue
		}
		a.line.take(n)
		s.state = holds
		a.lockedBook(s)
		a.lockedLanes()
		a.woken = append(a.woken, s.claim.Key)
		got = true
	}
	return got
}
