// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"sync"

	"github.com/virtloom/virtloom/domain/internal/relay"
)

// Hints carries events from a driver to its watchers and keeps the promises of
// [Hypervisor.Watch]; it is for authors of drivers. [Hints.Tell] never blocks: events that
// a slow watcher has not received are merged per domain. The zero value is ready to use;
// methods are safe for concurrent use.
type Hints struct {
	mu       sync.Mutex
	watchers map[*watcher]struct{}
	closed   bool
}

// watcher holds the events that wait for one receiver.
type watcher struct {
	wake chan struct{} // holds one token while there may be work

	mu      sync.Mutex
	lost    *Event
	down    bool // Lost was delivered, and no Resync since
	resync  bool
	order   []string
	changed map[string]string // domain → why
	closed  bool
}

// Watch returns a channel of events. The first is a Resync; it is closed when ctx ends, or
// after Close once the waiting events have been received.
func (h *Hints) Watch(ctx context.Context) <-chan Event {
	w := &watcher{wake: make(chan struct{}, 1), changed: map[string]string{}}
	h.mu.Lock()
	if h.watchers == nil {
		h.watchers = map[*watcher]struct{}{}
	}
	h.watchers[w] = struct{}{}
	if h.closed {
		w.close()
	} else {
		w.add(Event{Kind: Resync})
	}
	h.mu.Unlock()
	out := make(chan Event)
	go func() {
		defer close(out)
		defer h.forget(w)
		relay.Deliver(ctx, out, w.wake, w.next)
	}()
	return out
}

// Tell sends an event to all watchers.
func (h *Hints) Tell(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		w.add(e)
	}
}

// Close ends all watches once they have delivered the events that wait.
func (h *Hints) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for w := range h.watchers {
		w.close()
	}
}

func (h *Hints) forget(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
}

// add merges an event into those that wait. A Resync replaces hints about single domains,
// and Lost replaces both; a second Lost without a Resync between them is dropped.
func (w *watcher) add(e Event) {
	w.mu.Lock()
	switch e.Kind {
	case Lost:
		if !w.down {
			w.lost = &e
		}
		w.resync = false
		w.drop()
	case Resync:
		w.resync = true
		w.drop()
	case Changed:
		if w.resync {
			break
		}
		if _, waits := w.changed[e.Domain]; !waits {
			w.order = append(w.order, e.Domain)
		}
		w.changed[e.Domain] = e.Why
	}
	w.mu.Unlock()
	w.signal()
}

func (w *watcher) drop() { w.order, w.changed = nil, map[string]string{} }

func (w *watcher) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
}

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// next removes the first event that waits and returns it.
func (w *watcher) next() (e Event, ok, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.lost != nil:
		e, w.lost, w.down = *w.lost, nil, true
	case w.resync:
		e, w.resync, w.down = Event{Kind: Resync}, false, false
	case len(w.order) > 0:
		name := w.order[0]
		w.order = w.order[1:]
		e = Event{Kind: Changed, Domain: name, Why: w.changed[name]}
		delete(w.changed, name)
	default:
		return Event{}, false, w.closed
	}
	return e, true, false
}
