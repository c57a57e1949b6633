// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// reference is the order of a queue written down from the documentation of
// [Queue] and [Options], with no thought of speed: each question is answered
// by looking at everything.
type reference struct {
	opts    Options
	items   map[types.NamespacedName]referenceItem
	levels  [4]referenceLevel
	blocked map[string]bool
}

type referenceItem struct {
	Item
	level int
}

type referenceLevel struct {
	virtual  int64
	accounts map[string]int64
}

func newReference(o Options) *reference {
	if o.AgeAfter == 0 {
		o.AgeAfter = 10 * time.Minute
	}
	r := &reference{opts: o, items: map[types.NamespacedName]referenceItem{}, blocked: map[string]bool{}}
	for i := range r.levels {
		r.levels[i].accounts = map[string]int64{}
	}
	return r
}

func (r *reference) clone() *reference {
	c := &reference{opts: r.opts, items: maps.Clone(r.items), levels: r.levels, blocked: maps.Clone(r.blocked)}
	for i := range c.levels {
		c.levels[i].accounts = maps.Clone(c.levels[i].accounts)
	}
	return c
}

func (r *reference) namespace(it Item) string {
	if r.opts.Unfair {
		return ""
	}
	return it.Key.Namespace
}

func (r *reference) price(ns string) int64 {
	if w, found := r.opts.Weights[ns]; found && w > 0 && !r.opts.Unfair {
		return int64(720720 / min(max(w, 0.001), 1000))
	}
	return 720720
}

func (r *reference) base(it Item) int {
	switch p := it.Priority; {
	case p >= 100:
		return 3
	case p >= 50:
		return 2
	case p >= 20:
		return 1
	}
	return 0
}

// risesAt is when the item leaves its level, and false if it never does.
func (r *reference) risesAt(it referenceItem) (time.Time, bool) {
	if r.opts.AgeAfter < 0 || it.level == 3 {
		return time.Time{}, false
	}
	return it.Since.Add(time.Duration(it.level-r.base(it.Item)+1) * r.opts.AgeAfter), true
}

func (r *reference) levelAt(it Item, now time.Time) int {
	l := r.base(it)
	for r.opts.AgeAfter > 0 && l < 3 && !now.Before(it.Since.Add(time.Duration(l-r.base(it)+1)*r.opts.AgeAfter)) {
		l++
	}
	return l
}

// age lets items rise, one after the other as they were due.
func (r *reference) age(now time.Time) {
	for {
		var due *referenceItem
		var at time.Time
		for _, it := range r.items {
			t, rises := r.risesAt(it)
			if !rises || t.After(now) {
				continue
			}
			if due == nil || t.Before(at) || t.Equal(at) && older(&it.Item, &due.Item) < 0 {
				due, at = &it, t
			}
		}
		if due == nil {
			return
		}
		r.leave(due.Key)
		r.join(due.Item, now)
	}
}

func (r *reference) present(level int, ns string) bool {
	for _, it := range r.items {
		if it.level == level && (ns == "" || r.namespace(it.Item) == ns) {
			return true
		}
	}
	return false
}

func (r *reference) join(it Item, now time.Time) {
	at, ns := r.levelAt(it, now), r.namespace(it)
	l := &r.levels[at]
	if !r.present(at, ns) {
		l.accounts[ns] = max(l.accounts[ns], l.virtual)
	}
	r.items[it.Key] = referenceItem{Item: it, level: at}
}

func (r *reference) leave(key types.NamespacedName) {
	at := r.items[key].level
	delete(r.items, key)
	if !r.present(at, "") {
		l := &r.levels[at]
		for _, spent := range l.accounts {
			l.virtual = max(l.virtual, spent)
		}
		clear(l.accounts)
	}
}

// put adds or changes an item.
func (r *reference) put(it Item, now time.Time) {
	if have, found := r.items[it.Key]; found {
		it.Since = have.Since
		if it == have.Item {
			return
		}
		r.leave(it.Key)
	}
	r.join(it, now)
}

// before orders items of one level.
func (r *reference) before(a, b Item) bool {
	l := r.levels[r.items[a.Key].level]
	if x, y := l.accounts[r.namespace(a)], l.accounts[r.namespace(b)]; x != y {
		return x < y
	}
	if r.opts.Order != nil {
		if c := r.opts.Order(a, b); c != 0 {
			return c < 0
		}
	}
	return older(&a, &b) < 0
}

// next returns the item to be served, passing over those in closed lanes.
func (r *reference) next(closed func(lane string) bool) (Item, bool) {
	var best referenceItem
	found := false
	for _, it := range r.items {
		if closed(it.Lane) {
			continue
		}
		if !found || it.level > best.level || it.level == best.level && r.before(it.Item, best.Item) {
			best, found = it, true
		}
	}
	return best.Item, found
}

func (r *reference) take(key types.NamespacedName) {
	it := r.items[key]
	l, ns := &r.levels[it.level], r.namespace(it.Item)
	l.virtual = max(l.virtual, l.accounts[ns])
	l.accounts[ns] = l.virtual + r.price(ns)
	r.leave(key)
}

// charge books an item that is not in the queue.
func (r *reference) charge(it Item, now time.Time) {
	l, ns := &r.levels[r.levelAt(it, now)], r.namespace(it)
	l.accounts[ns] = max(l.accounts[ns], l.virtual) + r.price(ns)
}

// order serves everything, on a copy, with all lanes open.
func (r *reference) order() []Item {
	c := r.clone()
	var out []Item
	for {
		it, found := c.next(func(string) bool { return false })
		if !found {
			return out
		}
		out = append(out, it)
		c.take(it.Key)
	}
}

func (r *reference) position(key types.NamespacedName) int {
	return 1 + slices.IndexFunc(r.order(), func(it Item) bool { return it.Key == key })
}
