// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"slices"
	"sync"
)

// Change is how a domain looked before and how it looks now. What it points to must
// not be changed.
type Change struct {
	// Name is the domain's.
	Name string
	// Old is what was known before, New what is known now; nil means that there is
	// no such domain. Both may look the same, or be nil: something happened to the
	// domain that a State does not show, or it came and went.
	Old, New *State
	// Why is the last hint about it, for logs only: "Started", "DeviceRemoved", or
	// empty.
	Why string
}

// Watch returns a stream of changes. It begins with all domains that are known. It
// blocks nothing: changes that wait are merged, one per domain, and none is lost. The
// channel is closed when ctx ends, or after Run has ended and what waited has been
// fetched.
func (i *Informer) Watch(ctx context.Context) <-chan Change {
	w := &changeWatcher{wake: make(chan struct{}, 1), waits: map[string]Change{}}
	i.mu.Lock()
	for name, rec := range i.records {
		if rec.state != nil {
			w.order = append(w.order, name)
			w.waits[name] = Change{Name: name, New: rec.state}
		}
	}
	slices.Sort(w.order)
	if i.watchers == nil {
		i.watchers = map[*changeWatcher]struct{}{}
	}
	i.watchers[w] = struct{}{}
	if i.ended {
		w.close()
	}
	i.mu.Unlock()
	out := make(chan Change)
	go func() {
		defer close(out)
		defer i.forget(w)
		deliver(ctx, out, w.wake, w.next)
	}()
	return out
}

func (i *Informer) forget(w *changeWatcher) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.watchers, w)
}

// changeWatcher is what waits for one receiver.
type changeWatcher struct {
	wake chan struct{} // holds one token while there may be work

	mu     sync.Mutex
	order  []string
	waits  map[string]Change
	closed bool
}

// add merges a change into what waits: from how the receiver saw the domain last to
// how it is now.
func (w *changeWatcher) add(c Change) {
	w.mu.Lock()
	if before, waits := w.waits[c.Name]; waits {
		c.Old = before.Old
	} else {
		w.order = append(w.order, c.Name)
	}
	w.waits[c.Name] = c
	w.mu.Unlock()
	w.signal()
}

func (w *changeWatcher) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
}

func (w *changeWatcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// next takes the first change that waits.
func (w *changeWatcher) next() (c Change, ok, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.order) == 0 {
		return Change{}, false, w.closed
	}
	c = w.waits[w.order[0]]
	delete(w.waits, c.Name)
	w.order = w.order[1:]
	return c, true, false
}
