// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/virtloom/virtloom/domain"
)

// roster is the members of a fleet, and whether any of them can be watched.
type roster struct {
	mu      sync.Mutex
	members map[string]*member
	lost    bool // watchers have received Lost, and no Resync since
	closed  bool
	all     sync.WaitGroup // the goroutines that follow members
}

// add adds a member instead of an earlier one of its name, and follows it; false if the roster is closed.
func (r *roster) add(ctx context.Context, m *member) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	if old := r.members[m.name]; old != nil {
		old.cancel()
	}
	if r.members == nil {
		r.members = map[string]*member{}
	}
	r.members[m.name] = m
	m.silent = m.clock().Now()
	r.all.Go(func() { m.follow(ctx) })
	return true
}

// remove removes the member of a name and returns it; nil if there is none.
func (r *roster) remove(name string) *member {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[name]
	delete(r.members, name)
	return m
}

// get returns the member of a name; nil if there is none.
func (r *roster) get(name string) *member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members[name]
}

// sorted returns the members by name.
func (r *roster) sorted() []*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.members), func(a, b *member) int { return cmp.Compare(a.name, b.name) })
}

// close ends all members, and waits for the goroutines that follow them.
func (r *roster) close() {
	r.mu.Lock()
	r.closed = true
	for _, m := range r.members {
		m.cancel()
	}
	r.mu.Unlock()
	r.all.Wait()
}

// lockedBalance sends Lost when the last member was lost and Resync when one is back, and
// reports whether it sent anything. The caller holds r.mu.
func (r *roster) lockedBalance(hints *domain.Hints, why error) bool {
	up := 0
	for _, m := range r.members {
		if m.up {
			up++
		}
	}
	lost := up == 0 && len(r.members) > 0 && (r.lost || why != nil)
	if lost == r.lost {
		return false
	}
	r.lost = lost
	if lost {
		hints.Tell(domain.Event{Kind: domain.Lost, Err: why})
	} else {
		hints.Tell(domain.Event{Kind: domain.Resync})
	}
	return true
}
