// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"
	"sync"
)

// Hints carries events from a driver to its watchers, for those who write a
// driver: it keeps the promises of [Hypervisor.Watch]. Telling never blocks; what
// a slow watcher has not fetched is merged per domain. The zero value is ready.
type Hints struct {
	mu       sync.Mutex
	watchers map[*watcher]struct{}
	closed   bool
}

// watcher is what waits for one receiver.
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

// Watch returns a channel that begins with a Resync and is closed when ctx ends
// or Close is called.
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
		deliver(ctx, out, w.wake, w.next)
	}()
	return out
}

// Tell passes an event on to all watchers.
func (h *Hints) Tell(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		w.add(e)
	}
}

// Close ends all watches, after what they still have to deliver.
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

// add merges an event into what waits. Whoever lists again needs no hint about
// single domains, and whoever has lost the connection none to list, nor to be told
// once more that it is lost.
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

// next takes the first event that waits.
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

// deliver sends what waits, one after the other, until ctx ends or there is nothing
// more to come; wake tells that there may be something.
func deliver[T any](ctx context.Context, out chan<- T, wake <-chan struct{}, next func() (v T, ok, closed bool)) {
	for {
		v, ok, closed := next()
		if closed {
			return
		}
		if !ok {
			select {
			case <-wake:
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case out <- v:
		case <-ctx.Done():
			return
		}
	}
}
