// SPDX-License-Identifier: Apache-2.0

// Package backlog tells a controller whether so much waits for it that what is only told can wait too: when a
// thousand objects are made at once, each write that could be spared is one that somebody waits behind.
package backlog

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

const (
	// Again is after what time it is seen whether what was postponed is still outdone by other work.
	Again = time.Second
	// Patience is for how long something is postponed at most.
	Patience = 30 * time.Second
)

// Queue is the queue of a controller's work.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Backlog is the queue of a controller and the objects of which something has not been written as others wait.
// The zero value is ready; its methods are safe for concurrent use.
type Backlog struct {
	mu sync.Mutex
	// queue is nil before the controller has started; guarded by mu.
	queue Queue
	// since has when the oldest of what is postponed was, by object; guarded by mu.
	since map[types.NamespacedName]time.Time
}

// Source is watched by the controller whose queue it is. Until its context ends, what has been patient for long enough
// is enqueued as all else is, as what waits with a low priority may never come to its turn.
func (b *Backlog) Source(now clock.PassiveClock) source.Source {
	return source.Func(func(ctx context.Context, q Queue) error {
		b.Use(q)
		go wait.UntilWithContext(ctx, func(context.Context) {
			for _, key := range b.impatient(now.Now()) {
				q.Add(reconcile.Request{NamespacedName: key})
			}
		}, Again)
		return nil
	})
}

// impatient are the objects of which something has been postponed for too long.
func (b *Backlog) impatient(now time.Time) []types.NamespacedName {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []types.NamespacedName
	for key, since := range b.since {
		if !now.Before(since.Add(Patience)) {
			out = append(out, key)
		}
	}
	return out
}

// Use has q be the queue.
func (b *Backlog) Use(q Queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = q
}

// Queue returns the queue; nil if the controller has not started: then it looks at all objects when it does.
func (b *Backlog) Queue() Queue {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queue
}

// Put notes that something of the object is postponed, since first.
func (b *Backlog) Put(key types.NamespacedName, first time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since == nil {
		b.since = map[types.NamespacedName]time.Time{}
	}
	b.since[key] = first
}

// Done notes that nothing of the object is postponed.
func (b *Backlog) Done(key types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.since, key)
}

// Outdone reports whether so many objects wait, beside those that only have something postponed, that all workers
// have something else to do, and this one has not been patient for too long. It also returns since when it has.
func (b *Backlog) Outdone(key types.NamespacedName, workers int, now time.Time) (since time.Time, yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	since, known := b.since[key]
	others := len(b.since)
	if known {
		others--
	} else {
		since = now
	}
	return since, b.queue != nil && b.queue.Len()-others > workers && now.Before(since.Add(Patience))
}

// Later is the result of a pass that postponed something: if nothing of its own is due before, it goes on after that
// time, when nobody else waits.
func Later(result reconcile.Result, after time.Duration) reconcile.Result {
	if result.RequeueAfter == 0 || result.RequeueAfter > after {
		result.RequeueAfter, result.Priority = after, new(handler.LowPriority)
	}
	return result
}

// Usual has a pass at a later time wait as others do. Without it, it would have the priority of the pass before, as one
// that is only repeated, within Again, shall have.
func Usual(result *reconcile.Result) {
	if result.RequeueAfter > Again && result.Priority == nil {
		result.Priority = new(0)
	}
}
