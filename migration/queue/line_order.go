// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"
)

// position returns the place of the node, from 1, as if all lanes were open.
func (l *line) position(n *node) int {
	at := 1
	for i := topLevel; i > n.level; i-- {
		at += l.levels[i].n
	}
	lv, a := &l.levels[n.level], n.spot.account
	rank := a.items.rank(n, l.less)
	at += rank
	due := a.due(rank, lv)
	for _, o := range lv.present {
		if o != a {
			at += l.ahead(o, lv, due, n)
		}
	}
	return at
}

// due returns the account of the namespace when its item of the rank is taken, if
// nothing changes until then.
func (a *account) due(rank int, lv *level) int64 {
	if rank == 0 {
		return a.spent
	}
	return max(a.spent, lv.virtual) + int64(rank)*a.price
}

// ahead counts the account's items that are taken before the node, which is
// another namespace's and due at the given account.
func (l *line) ahead(a *account, lv *level, due int64, n *node) int {
	count := 0
	tie := a.spent == due
	if a.spent < due {
		count = 1
		if left := due - max(a.spent, lv.virtual); left > 0 {
			count += int((left - 1) / a.price)
			tie = left%a.price == 0
		}
	}
	if count >= a.items.n {
		return a.items.n
	}
	if tie && l.before(a.items.at(count), n) {
		count++
	}
	return count
}

// upcoming is a namespace in a forecast.
type upcoming struct {
	account *account
	due     int64
	// rank is the next item's; chunk and at are its position.
	rank, chunk, at int
	place           int
}

func (u *upcoming) node() *node { return u.account.items.chunks[u.chunk][u.at] }

// order returns all items in order, as if all lanes were open.
func (l *line) order() []Item {
	out := make([]Item, 0, l.n)
	for i := topLevel; i >= 0; i-- {
		out = l.forecast(&l.levels[i], out)
	}
	return out
}

func (l *line) forecast(lv *level, out []Item) []Item {
	turns := heap[*upcoming]{
		less: func(a, b *upcoming) bool {
			return a.due < b.due || a.due == b.due && l.before(a.node(), b.node())
		},
		place: func(u *upcoming) *int { return &u.place },
	}
	for _, a := range lv.present {
		turns.fix(&upcoming{account: a, due: a.due(0, lv)})
	}
	out = slices.Grow(out, lv.n)
	for turns.len() > 0 {
		u := turns.top()
		out = append(out, u.node().Item)
		u.rank++
		u.due = u.account.due(u.rank, lv)
		if u.at++; u.at == len(u.account.items.chunks[u.chunk]) {
			u.chunk, u.at = u.chunk+1, 0
		}
		if u.rank == u.account.items.n {
			turns.remove(u)
		} else {
			turns.fix(u)
		}
	}
	return out
}
