// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// levels are the priorities in ascending order; ageing climbs them.
var levels = [...]int{PriorityUnset, PriorityMaintenance, PriorityUser, PriorityCritical}

const topLevel = len(levels) - 1

// turn is the cost of an item to a namespace of weight 1. All weights from 1 to 16
// divide it.
const turn = 720720

const (
	// maxWeight and its inverse bound the weights, so that accounts cannot
	// overflow within 10^10 items.
	maxWeight = 1000
	// idleAccounts is how many accounts of absent namespaces are kept per level
	// before irrelevant ones are swept, and maxIdleAccounts how many are kept that
	// could still cost a namespace one turn.
	idleAccounts    = 64
	maxIdleAccounts = 1024
)

// line is the order of [Queue] and of the waiting claims of [Admission]. It has no
// clock and no lock.
//
// level ──▶ accounts of namespaces ──▶ spots: the namespace's items in one lane
//
// A spot is sorted. A namespace keeps its spots of open lanes in a heap by their
// heads, and a level its namespaces with such a spot in a heap by account, then
// head. So the next item is at the top of the highest level's heap.
type line struct {
	opts   Options
	n      int
	levels [len(levels)]level
	lanes  map[string]*lane
	// held counts the held lanes.
	held int
	// rising holds the nodes below the top level by the time they rise.
	rising heap[*node]

	less      func(a, b *node) bool
	freeSpots []*spot
	freeLanes []*lane
	spare     []*account
}

// node is an item and its place in the line.
type node struct {
	Item
	level int
	spot  *spot
	// rises is when the node enters the next level.
	rises  time.Time
	rising int
	// job is the node's job in a Queue.
	job *job
}

// level holds the items of one priority, after ageing.
type level struct {
	n int
	// virtual is the account with which the last item was taken, latest the
	// highest account so far.
	virtual, latest int64
	accounts        map[string]*account
	// present are the accounts with items.
	present []*account
	// open are the accounts with items in open lanes.
	open    heap[*account]
	sweepAt int
}

// account is a namespace in a level.
type account struct {
	namespace string
	// price is the cost of an item, spent the cost of all items taken.
	price, spent int64
	items        ranked
	spots        map[*lane]*spot
	recent       *spot // the spot used last
	open         heap[*spot]
	present      int // place in level.present, from 1
	turn         int // place in level.open, from 1
}

// lane is a group of items that can be blocked together.
type lane struct {
	name string
	// blocked closes the lane until it is unblocked, held until anything in it
	// changes.
	blocked, held bool
	spots         []*spot
}

func (l *lane) closed() bool { return l.blocked || l.held }

// spot holds the items of an account in a lane.
type spot struct {
	lane    *lane
	account *account
	level   *level
	items   ranked
	turn    int // place in account.open, from 1
	place   int // place in lane.spots, from 0
}

func newLine(o Options) *line {
	// Three times the longest is still a duration.
	const longest = 50 * 365 * 24 * time.Hour
	if o.AgeAfter == 0 {
		o.AgeAfter = 10 * time.Minute
	}
	o.AgeAfter, o.Weights = min(o.AgeAfter, longest), maps.Clone(o.Weights)
	l := &line{opts: o, lanes: map[string]*lane{}}
	l.less = l.before
	l.rising = heap[*node]{
		less: func(a, b *node) bool {
			return a.rises.Before(b.rises) || a.rises.Equal(b.rises) && older(&a.Item, &b.Item) < 0
		},
		place: func(n *node) *int { return &n.rising },
	}
	for i := range l.levels {
		l.levels[i].accounts = map[string]*account{}
		l.levels[i].open = heap[*account]{less: l.accountBefore, place: func(a *account) *int { return &a.turn }}
	}
	return l
}

// before orders the items of one namespace: by the caller's order, then by age, then by
// name, so that the order is total.
func (l *line) before(a, b *node) bool {
	if l.opts.Order != nil {
		if c := l.opts.Order(a.Item, b.Item); c != 0 {
			return c < 0
		}
	}
	return older(&a.Item, &b.Item) < 0
}

func older(a, b *Item) int {
	if c := a.Since.Compare(b.Since); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
}

func (l *line) accountBefore(a, b *account) bool {
	if a.spent != b.spent {
		return a.spent < b.spent
	}
	return l.before(a.open.top().items.first(), b.open.top().items.first())
}

func (l *line) spotBefore(a, b *spot) bool { return l.before(a.items.first(), b.items.first()) }

// baseLevel returns the level of a priority without ageing, an index into levels.
func baseLevel(priority int) int {
	at := 0
	for at < topLevel && priority >= levels[at+1] {
		at++
	}
	return at
}

// place sets the node's level at the time, and when it rises from there.
func (l *line) place(n *node, now time.Time) {
	n.level, n.rises = baseLevel(n.Priority), time.Time{}
	if l.opts.AgeAfter < 0 || n.level == topLevel {
		return
	}
	base := n.level
	if now.After(n.Since) {
		n.level += int(min(now.Sub(n.Since)/l.opts.AgeAfter, time.Duration(topLevel-base)))
	}
	if n.level < topLevel {
		n.rises = n.Since.Add(time.Duration(n.level-base+1) * l.opts.AgeAfter)
	}
}

// age raises every item that has waited long enough. A clock that goes backwards lowers
// no level.
func (l *line) age(now time.Time) {
	for l.rising.len() > 0 {
		n := l.rising.top()
		if now.Before(n.rises) {
			return
		}
		l.remove(n)
		l.place(n, now)
		l.enter(n)
	}
}

// add inserts the node, whose item is set.
func (l *line) add(n *node, now time.Time) {
	l.place(n, now)
	l.enter(n)
}

// change gives the node, which is in the line, another priority, lane and size; its waiting
// time is kept. It is removed and inserted again.
func (l *line) change(n *node, it Item, now time.Time) {
	it.Since = n.Since
	if n.Item == it {
		return
	}
	l.remove(n)
	n.Item = it
	l.add(n, now)
}

func (l *line) enter(n *node) {
	lv := &l.levels[n.level]
	a := l.account(lv, n.Key.Namespace)
	if a.items.n == 0 {
		a.spent = max(a.spent, lv.virtual)
		lv.latest = max(lv.latest, a.spent)
		lv.present = append(lv.present, a)
		a.present = len(lv.present)
	}
	s := l.spot(lv, a, n.Lane)
	n.spot = s
	a.items.insert(n, l.less)
	s.items.insert(n, l.less)
	lv.n++
	l.n++
	if !n.rises.IsZero() {
		l.rising.fix(n)
	}
	l.stir(s.lane)
	if s.items.first() == n {
		l.refresh(s)
	}
}

// remove takes the node out without charging its namespace.
func (l *line) remove(n *node) {
	s := n.spot
	a, lv := s.account, s.level
	a.items.remove(n, l.less)
	s.items.remove(n, l.less)
	n.spot = nil
	lv.n--
	l.n--
	l.rising.remove(n)
	l.stir(s.lane)
	l.refresh(s)
	if s.items.n == 0 && len(a.spots) > 1 {
		l.dropSpot(s)
	}
	if a.items.n > 0 {
		return
	}
	last := len(lv.present) - 1
	lv.present[a.present-1] = lv.present[last]
	lv.present[a.present-1].present = a.present
	lv.present[last] = nil
	lv.present, a.present = lv.present[:last], 0
	if lv.n == 0 {
		// The line is empty, so no account is behind another.
		lv.virtual = lv.latest
	}
	l.sweep(lv)
}

// next returns the first item whose lane is open, or nil.
func (l *line) next() *node {
	for i := topLevel; i >= 0; i-- {
		if open := &l.levels[i].open; open.len() > 0 {
			return open.top().open.top().items.first()
		}
	}
	return nil
}

// take removes the node, which is the next one, and charges its namespace. An
// account that has fallen behind, because its lanes were closed, is charged from
// the present on: that earns a namespace one turn at most.
func (l *line) take(n *node) {
	lv, a := n.spot.level, n.spot.account
	lv.virtual = max(a.spent, lv.virtual)
	a.spent = lv.virtual + a.price
	lv.latest = max(lv.latest, a.spent)
	l.remove(n)
	if l.held > 0 {
		// The namespace has moved back in all its lanes.
		for ln := range a.spots {
			l.stir(ln)
		}
	}
}

// charge books an item that was taken before this line existed.
func (l *line) charge(it Item, now time.Time) {
	n := node{Item: it}
	l.place(&n, now)
	lv := &l.levels[n.level]
	a := l.account(lv, it.Key.Namespace)
	a.spent = max(a.spent, lv.virtual) + a.price
	lv.latest = max(lv.latest, a.spent)
	if a.turn > 0 {
		lv.open.fix(a)
	}
}

func (l *line) price(namespace string) int64 {
	w := l.opts.Weights[namespace]
	if !(w > 0) {
		return turn
	}
	return int64(turn / min(max(w, 1.0/maxWeight), maxWeight))
}

// account returns the account of the namespace in the level.
func (l *line) account(lv *level, namespace string) *account {
	if l.opts.Unfair {
		namespace = ""
	}
	a := lv.accounts[namespace]
	if a != nil {
		return a
	}
	if last := len(l.spare) - 1; last >= 0 {
		a, l.spare = l.spare[last], l.spare[:last]
	} else {
		a = &account{
			spots: map[*lane]*spot{},
			open:  heap[*spot]{less: l.spotBefore, place: func(s *spot) *int { return &s.turn }},
		}
	}
	a.namespace, a.price, a.spent = namespace, l.price(namespace), 0
	lv.accounts[namespace] = a
	return a
}

// sweep drops accounts of namespaces without items: first those which would start as
// if new, then, if there are very many, those least ahead; newcomers then start no
// better.
func (l *line) sweep(lv *level) {
	idle := len(lv.accounts) - len(lv.present)
	if idle <= max(lv.sweepAt, idleAccounts) {
		return
	}
	var ahead []*account
	for _, a := range lv.accounts {
		switch {
		case a.items.n > 0:
		case a.spent <= lv.virtual:
			l.forget(lv, a)
		default:
			ahead = append(ahead, a)
		}
	}
	if len(ahead) > maxIdleAccounts {
		slices.SortFunc(ahead, func(a, b *account) int {
			return cmp.Or(cmp.Compare(a.spent, b.spent), cmp.Compare(a.namespace, b.namespace))
		})
		for _, a := range ahead[:len(ahead)/2] {
			lv.virtual = max(lv.virtual, a.spent)
			l.forget(lv, a)
		}
		ahead = ahead[len(ahead)/2:]
	}
	lv.sweepAt = 2*len(ahead) + len(lv.present)
}
