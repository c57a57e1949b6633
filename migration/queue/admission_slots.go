// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// lockedTake stores a claim: with its slots when it acts or holds them already,
// else in the queue.
func (a *Admission) lockedTake(c Claim, now time.Time) {
	c.Since = c.Since.Round(0)
	s := a.claims[c.Key]
	switch {
	case s == nil && !c.Acting:
		s = &slot{claim: c}
		s.node.Item = c.item()
		a.claims[c.Key] = s
		a.line.add(&s.node, now)
	case s == nil:
		s = &slot{claim: c, state: holds}
		s.node.Item = c.item()
		a.claims[c.Key] = s
		a.lockedMove(s, c)
	case s.claim == c:
	case s.state != waits:
		a.lockedUnbook(s)
		a.lockedMove(s, c)
	case c.Acting:
		a.line.remove(&s.node)
		s.state = holds
		a.lockedMove(s, c)
	default:
		a.line.change(&s.node, c.item(), now)
		c.Since = s.claim.Since
		if s.claim = c; a.limits.Bandwidth > 0 {
			// It may fit now, which the line cannot know.
			a.sources = append(a.sources, c.SourceNode)
		}
	}
}

// lockedMove updates a claim that acts, or holds slots.
func (a *Admission) lockedMove(s *slot, c Claim) {
	if s.claim.TargetNode != c.TargetNode {
		s.inbound, s.owed = false, false
	}
	s.claim = c
	if c.Arriving {
		s.state, s.inbound, s.owed = holds, c.TargetNode != "", false
	}
	a.lockedBook(s)
}

// lockedBook counts what the claim, which is not in the queue, has and waits for.
// The claim must not change until lockedUnbook.
func (a *Admission) lockedBook(s *slot) {
	s.rate = a.limits.rate(s.claim.Bandwidth)
	from := a.lockedNode(s.claim.SourceNode)
	switch {
	case s.state == holds:
		enlist(&a.holders, s, byKey)
		enlist(&from.out, s, byKey)
		from.outRate += s.rate
		if s.stuck() && !s.owed {
			enlist(&a.idle, s, byUrgency)
		}
	case s.wants():
		enlist(&a.wanting, s, byUrgency)
		from.wants++
		from.wantRate += s.rate
		fallthrough
	default:
		enlist(&a.lenders, s, byKey)
	}
	if s.entering() {
		to := a.lockedNode(s.claim.TargetNode)
		if s.inbound {
			enlist(&to.in, s, byKey)
			to.inRate += s.rate
		} else {
			enlist(&to.arrivals, s, byUrgency)
		}
	}
	a.lockedTouch(s)
}

// lockedUnbook reverts lockedBook.
func (a *Admission) lockedUnbook(s *slot) {
	from := a.lockedNode(s.claim.SourceNode)
	switch {
	case s.state == holds:
		strike(&a.holders, s, byKey)
		strike(&from.out, s, byKey)
		from.outRate -= s.rate
		strike(&a.idle, s, byUrgency)
	case s.wants():
		strike(&a.wanting, s, byUrgency)
		from.wants--
		from.wantRate -= s.rate
		fallthrough
	default:
		strike(&a.lenders, s, byKey)
	}
	if s.entering() {
		to := a.lockedNode(s.claim.TargetNode)
		if s.inbound {
			to.inRate -= s.rate
		}
		strike(&to.in, s, byKey)
		strike(&to.arrivals, s, byUrgency)
	}
	a.lockedTouch(s)
}

// lockedTouch marks the nodes of the claim as changed.
func (a *Admission) lockedTouch(s *slot) {
	a.sources = append(a.sources, s.claim.SourceNode)
	if s.claim.TargetNode != "" {
		a.targets = append(a.targets, s.claim.TargetNode)
	}
}

func (a *Admission) lockedNode(name string) *usage {
	u := a.nodes[name]
	if u == nil {
		u = &usage{}
		a.nodes[name] = u
	}
	return u
}

// lockedLanes opens and closes the lanes of changed nodes, and removes nodes without claims.
func (a *Admission) lockedLanes() {
	for _, name := range a.sources {
		taken := 0
		if u := a.nodes[name]; u != nil {
			if taken = len(u.out) + u.wants; taken+len(u.in)+len(u.arrivals) == 0 {
				delete(a.nodes, name)
			}
		}
		// A limit of zero closes all lanes, also those of nodes not known here.
		a.line.block(name, taken > 0 && taken >= a.limits.Outbound)
	}
	a.sources = a.sources[:0]
}

// maxBudget exceeds any network's bandwidth, and is small enough that the rates of a node's
// migrations can be added up.
const maxBudget = 1 << 53

// budget returns the bandwidth shared by a node's migrations, in bytes per second; zero for
// none.
func (l Limits) budget() int64 { return min(max(l.Bandwidth, 0), maxBudget) }

// rate returns what a migration of the bandwidth takes from a node's budget.
func (l Limits) rate(bandwidth int64) int64 {
	if bandwidth <= 0 {
		return l.budget()
	}
	return min(bandwidth, l.budget())
}

// fits reports whether the rate fits into a node's budget. No rate exceeds the budget, so a
// single migration always fits.
func (l Limits) fits(used, rate int64) bool { return l.Bandwidth <= 0 || used+rate <= l.budget() }

func byKey(x, y *slot) int { return compareKeys(x.claim.Key, y.claim.Key) }

func compareKeys(x, y types.NamespacedName) int {
	return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
}

// byUrgency orders acting claims: higher priority first, then the older one.
func byUrgency(x, y *slot) int {
	return cmp.Or(cmp.Compare(y.claim.Priority, x.claim.Priority), x.claim.Since.Compare(y.claim.Since), byKey(x, y))
}

// enlist inserts the claim into the sorted list.
func enlist(list *[]*slot, s *slot, order func(x, y *slot) int) {
	at, _ := slices.BinarySearchFunc(*list, s, order)
	*list = slices.Insert(*list, at, s)
}

// strike removes the claim from the sorted list; a missing claim is not an error.
func strike(list *[]*slot, s *slot, order func(x, y *slot) int) {
	if at, found := slices.BinarySearchFunc(*list, s, order); found {
		*list = slices.Delete(*list, at, at+1)
	}
}
