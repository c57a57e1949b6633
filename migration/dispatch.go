// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// front is how many places of the queue are told exactly. Those behind are told
// that they are further back, so that one freed slot rewrites a few conditions
// and not one per waiting migration. The exact place is always in [Verdict].
const front = 5

// answer is the part of a verdict that a waiting migration is told. It holds
// nothing that changes without the migration's own prospects changing.
type answer struct {
	limit Limit
	node  string
	max   int
	place int
}

func (v Verdict) answer() answer {
	var a answer
	if v.Position > 0 && v.Position <= front {
		a.place = v.Position
	}
	if len(v.Blockers) > 0 {
		b := v.Blockers[0]
		a.limit, a.node, a.max = b.Limit, b.Node, b.Max
	}
	return a
}

// Text explains the verdict to a reader, in words that stay true until the
// migration is woken again.
func (v Verdict) Text() string {
	var parts []string
	switch a := v.answer(); {
	case a.limit == LimitCluster:
		parts = append(parts, fmt.Sprintf("all %d slots of the cluster are taken (%s)", a.max, a.limit))
	case a.limit == LimitOutbound:
		parts = append(parts, fmt.Sprintf("all %d slots for leaving node %s are taken (%s)", a.max, a.node, a.limit))
	case a.limit == LimitInbound:
		parts = append(parts, fmt.Sprintf("all %d slots for entering node %s are taken (%s)", a.max, a.node, a.limit))
	default:
		parts = append(parts, "others are admitted first")
	}
	switch place := v.answer().place; {
	case place > 0:
		parts = append(parts, fmt.Sprintf("place %d in the queue", place))
	case v.Position > 0:
		parts = append(parts, fmt.Sprintf("behind the first %d in the queue", front))
	}
	return strings.Join(parts, ", ")
}

// lockedDispatch hands out every slot that can be handed out and returns the
// keys of the migrations whose answer changed by anything since the last time.
func (a *Admission) lockedDispatch(now time.Time) []types.NamespacedName {
	woken := a.lockedArrivals()
	order := a.queue.Order(now)
	left := order[:0]
	for _, it := range order {
		c := a.waiting[it.Key]
		if len(a.slots) >= a.limits.Cluster || a.outbound[c.SourceNode] >= a.limits.Outbound {
			left = append(left, it)
			continue
		}
		a.queue.Take(it.Key)
		a.lockedUnqueue(it.Key)
		a.lockedGrant(c)
		woken = append(woken, it.Key)
	}
	for i, it := range left {
		v := Verdict{Position: i + 1, Blockers: a.lockedBlockers(a.waiting[it.Key])}
		if told, asked := a.told[it.Key]; asked && told != v.answer() {
			a.told[it.Key] = v.answer()
			woken = append(woken, it.Key)
		}
	}
	return woken
}

// lockedArrivals hands out inbound slots to holders that know their target:
// higher priority first, then the older one.
func (a *Admission) lockedArrivals() []types.NamespacedName {
	var want []*slot
	for _, s := range a.slots {
		if !s.inbound && s.claim.TargetNode != "" {
			want = append(want, s)
		}
	}
	slices.SortFunc(want, func(x, y *slot) int {
		return cmp.Or(cmp.Compare(y.claim.Priority, x.claim.Priority), older(
			Item{Key: x.claim.Key, Since: x.claim.Since}, Item{Key: y.claim.Key, Since: y.claim.Since}))
	})
	var woken []types.NamespacedName
	for _, s := range want {
		if a.inbound[s.claim.TargetNode] < a.limits.Inbound {
			a.lockedEnter(s)
			woken = append(woken, s.claim.Key)
		}
	}
	return woken
}

// lockedVerdict explains the standing of the key.
func (a *Admission) lockedVerdict(key types.NamespacedName, now time.Time) Verdict {
	s, held := a.slots[key]
	if !held {
		c, waits := a.waiting[key]
		if !waits {
			return Verdict{}
		}
		return a.lockedWaiting(c, a.queue.Position(key, now), a.queue.Len())
	}
	v := Verdict{Asked: true, Held: true, Inbound: s.inbound, Waiting: a.queue.Len()}
	if node := s.claim.TargetNode; node != "" && !s.inbound {
		v.Blockers = []Blocker{{
			Limit: LimitInbound, Node: node, Used: a.inbound[node], Max: a.limits.Inbound,
			Holders: a.lockedHolders(func(h *slot) bool { return h.inbound && h.claim.TargetNode == node }),
		}}
	}
	return v
}

// lockedWaiting explains why a claim waits at the position.
func (a *Admission) lockedWaiting(c Claim, position, waiting int) Verdict {
	v := Verdict{Asked: true, Position: position, Waiting: waiting, Blockers: a.lockedBlockers(c)}
	for i := range v.Blockers {
		b := &v.Blockers[i]
		b.Holders = a.lockedHolders(func(h *slot) bool { return b.Limit == LimitCluster || h.claim.SourceNode == b.Node })
	}
	return v
}

// lockedBlockers returns the limits in the way of a waiting claim, without their
// holders. The node's comes first: it lifts later than the cluster's.
func (a *Admission) lockedBlockers(c Claim) []Blocker {
	var out []Blocker
	if used := a.outbound[c.SourceNode]; used >= a.limits.Outbound {
		out = append(out, Blocker{Limit: LimitOutbound, Node: c.SourceNode, Used: used, Max: a.limits.Outbound})
	}
	if used := len(a.slots); used >= a.limits.Cluster {
		out = append(out, Blocker{Limit: LimitCluster, Used: used, Max: a.limits.Cluster})
	}
	return out
}

func (a *Admission) lockedHolders(match func(*slot) bool) []types.NamespacedName {
	var keys []types.NamespacedName
	for key, s := range a.slots {
		if match(s) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(x, y types.NamespacedName) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return keys
}

// lockedTell notes what the migration is told, so that it is woken only when
// that changes. Holders that wait for nothing need no note.
func (a *Admission) lockedTell(key types.NamespacedName, v Verdict) {
	if v.Position > 0 {
		a.told[key] = v.answer()
		return
	}
	delete(a.told, key)
}
