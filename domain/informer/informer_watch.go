// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"context"
	"slices"
	"sync"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/relay"
)

// Change is a change of a domain. The receiver must not change the values that it points to.
type Change struct {
	// Name is the name of the domain.
	Name string
	// Old is the state before, New the state now; nil means that there is no such domain.
	// Both may be equal, or nil: a State does not show the change, or the domain was
	// created and removed.
	Old, New *domain.State
	// Why is the last hint about the domain, for logs only: "Started", "DeviceRemoved", or
	// empty.
	Why string
}

// Watch returns a stream of changes, beginning with all cached domains. A slow receiver
// blocks nothing: changes that wait are merged, one per domain, and none is lost. The
// channel is closed when ctx ends, or after Run has ended and the waiting changes have been
// received.
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
		relay.Deliver(ctx, out, w.wake, w.next)
	}()
	return out
}

func (i *Informer) forget(w *changeWatcher) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.watchers, w)
}

// changeWatcher holds the changes that wait for one receiver.
type changeWatcher struct {
	wake chan struct{} // holds one token while there may be work

	mu     sync.Mutex
	order  []string
	waits  map[string]Change
	closed bool
}

// add merges a change into the one that waits for the domain: from the state that was last
// received to the state now.
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

// next removes the first change that waits and returns it.
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
