// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

// Priorities of waiting migrations, as KubeVirt orders them.
const (
	// PriorityCritical is spec.priority system-critical.
	PriorityCritical = 100
	// PriorityUser is spec.priority user-triggered.
	PriorityUser = 50
	// PriorityMaintenance is spec.priority system-maintenance.
	PriorityMaintenance = 20
	// PriorityUnset is an absent or unknown spec.priority.
	PriorityUnset = 0
)

// PriorityOf returns the number for a migration's spec.priority.
func PriorityOf(p *v1.MigrationPriority) int {
	if p == nil {
		return PriorityUnset
	}
	switch *p {
	case v1.PrioritySystemCritical:
		return PriorityCritical
	case v1.PriorityUserTriggered:
		return PriorityUser
	case v1.PrioritySystemMaintenance:
		return PriorityMaintenance
	}
	return PriorityUnset
}

// QueueOptions tune a [Queue].
type QueueOptions struct {
	// AgeAfter is the time after which a waiting migration counts as of the
	// next higher priority; after three times AgeAfter every migration counts
	// as critical, and from then on only fairness and age decide about it.
	// Zero means 10 minutes, negative turns ageing off.
	AgeAfter time.Duration
	// Weights are the shares of namespaces among migrations of one priority;
	// a namespace that is absent, or has a weight of zero or less, has 1.
	Weights map[string]float64
	// Unfair turns fairness between namespaces off: among migrations of one
	// priority, age alone decides.
	Unfair bool
}

// Item is a waiting migration.
type Item struct {
	// Key names the migration; its namespace is the unit of fairness.
	Key types.NamespacedName
	// Priority is a number of [PriorityOf].
	Priority int
	// Since is when it began to wait.
	Since time.Time
}

// Queue orders waiting migrations: by priority, raised by waiting, then by
// fairness between namespaces, then by age. It is not safe for concurrent use;
// [Admission] guards its own.
//
// Fairness is by rounds: each migration taken costs its namespace one over its
// weight, and the namespace that has spent least is next. A namespace that joins
// starts level with the least spent of those that wait, so absence earns
// nothing.
type Queue struct {
	opts  QueueOptions
	items map[types.NamespacedName]Item
	// count is the number of items per namespace, spent what each has taken.
	count map[string]int
	spent map[string]float64
}

// NewQueue returns an empty queue.
func NewQueue(o QueueOptions) *Queue {
	if o.AgeAfter == 0 {
		o.AgeAfter = 10 * time.Minute
	}
	return &Queue{opts: o, items: map[types.NamespacedName]Item{}, count: map[string]int{}, spent: map[string]float64{}}
}

// Put adds the item, or changes the priority of the one that waits under the
// same key; its waiting time is kept.
func (q *Queue) Put(it Item) {
	if have, found := q.items[it.Key]; found {
		have.Priority = it.Priority
		q.items[it.Key] = have
		return
	}
	ns := it.Key.Namespace
	if q.count[ns] == 0 {
		q.spent[ns] = max(q.spent[ns], q.floor())
	}
	q.items[it.Key] = it
	q.count[ns]++
}

// floor returns what the least spent waiting namespace has spent.
func (q *Queue) floor() float64 {
	least, first := 0.0, true
	for ns := range q.count {
		if s := q.spent[ns]; first || s < least {
			least, first = s, false
		}
	}
	return least
}

// Remove forgets the item and reports whether it was there.
func (q *Queue) Remove(key types.NamespacedName) bool {
	if _, found := q.items[key]; !found {
		return false
	}
	delete(q.items, key)
	if q.count[key.Namespace]--; q.count[key.Namespace] == 0 {
		delete(q.count, key.Namespace)
	}
	if len(q.items) == 0 {
		clear(q.spent)
	}
	return true
}

// Take removes the item and charges its namespace for it.
func (q *Queue) Take(key types.NamespacedName) bool {
	if _, found := q.items[key]; !found {
		return false
	}
	q.spent[key.Namespace] += q.price(key.Namespace)
	return q.Remove(key)
}

// Len returns the number of waiting items.
func (q *Queue) Len() int { return len(q.items) }

// Contains reports whether the key waits.
func (q *Queue) Contains(key types.NamespacedName) bool {
	_, found := q.items[key]
	return found
}

// Position returns the place of the key, from 1, in the order at the time now;
// 0 when it does not wait.
func (q *Queue) Position(key types.NamespacedName, now time.Time) int {
	return 1 + slices.IndexFunc(q.Order(now), func(it Item) bool { return it.Key == key })
}

func (q *Queue) price(ns string) float64 {
	if w := q.opts.Weights[ns]; w > 0 {
		return 1 / w
	}
	return 1
}

// levels are the priorities in ascending order; ageing climbs them.
var levels = [...]int{PriorityUnset, PriorityMaintenance, PriorityUser, PriorityCritical}

// level returns the item's level after ageing, an index into levels.
func (q *Queue) level(it Item, now time.Time) int {
	l := 0
	for l+1 < len(levels) && it.Priority >= levels[l+1] {
		l++
	}
	if q.opts.AgeAfter > 0 && now.After(it.Since) {
		l += int(min(int64(now.Sub(it.Since)/q.opts.AgeAfter), int64(len(levels))))
	}
	return min(l, len(levels)-1)
}

// Order returns all waiting items, the next one first. It costs O(n log n).
func (q *Queue) Order(now time.Time) []Item {
	var byLevel [len(levels)][]Item
	for _, it := range q.items {
		l := q.level(it, now)
		byLevel[l] = append(byLevel[l], it)
	}
	spent := make(map[string]float64, len(q.count))
	for ns := range q.count {
		spent[ns] = q.spent[ns]
	}
	out := make([]Item, 0, len(q.items))
	for l := len(levels) - 1; l >= 0; l-- {
		slices.SortFunc(byLevel[l], older)
		if q.opts.Unfair {
			out = append(out, byLevel[l]...)
			continue
		}
		out = q.interleave(out, byLevel[l], spent)
	}
	return out
}

// older orders by age, then by name, so that the order is total.
func older(a, b Item) int {
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
}

// interleave appends items, which are in order of age, to out by rounds of
// their namespaces, and adds to spent what each round costs.
func (q *Queue) interleave(out, items []Item, spent map[string]float64) []Item {
	byNS := map[string][]Item{}
	for _, it := range items {
		byNS[it.Key.Namespace] = append(byNS[it.Key.Namespace], it)
	}
	turn := turns{}
	for ns, list := range byNS {
		turn.push(namespaceTurn{spent: spent[ns], items: list})
	}
	for len(turn) > 0 {
		t := turn.pop()
		it := t.items[0]
		out = append(out, it)
		t.spent += q.price(it.Key.Namespace)
		spent[it.Key.Namespace] = t.spent
		if t.items = t.items[1:]; len(t.items) > 0 {
			turn.push(t)
		}
	}
	return out
}
