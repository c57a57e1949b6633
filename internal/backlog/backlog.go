// SPDX-License-Identifier: Apache-2.0

// Package backlog lets a controller defer optional writes under load: when a thousand objects are created at once, every
// write that is not needed delays another object.
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
	// Again is the interval at which a deferred write is reconsidered.
	Again = time.Second
	// Patience is the maximum time that a write is deferred.
	Patience = 30 * time.Second
)

// Queue is the queue of a controller's work.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Backlog is the queue of a controller and its objects with deferred writes. The zero value is ready; its methods are
// safe for concurrent use.
type Backlog struct {
	mu sync.Mutex
	// queue is nil before the controller has started; guarded by mu.
	queue Queue
	// beside reports whether another controller of the process has a backlog; nil without one, set before the start.
	beside func() bool
	// since is when the oldest deferred write of each object was deferred; guarded by mu.
	since map[types.NamespacedName]time.Time
}

// Source returns the source to be watched by the controller that owns the queue. Until its context ends, objects whose
// writes were deferred for Patience are enqueued with normal priority, because those with low priority may starve.
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

// impatient returns the objects with a write that was deferred for too long.
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

// Beside makes writes wait for another controller's objects too, while busy reports that it has many of them: both load one
// API server. It must be called before the controller starts; nil changes nothing. Two backlogs may be beside each other.
func (b *Backlog) Beside(busy func() bool) { b.beside = busy }

// Busy reports whether so many objects wait, not counting those with deferred writes only, that all workers have other work.
func (b *Backlog) Busy(workers int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lockedBusy(len(b.since), workers)
}

// lockedBusy reports whether more objects wait than there are workers, not counting so many with deferred writes.
func (b *Backlog) lockedBusy(deferred, workers int) bool {
	return b.queue != nil && b.queue.Len()-deferred > workers
}

// Use sets the queue.
func (b *Backlog) Use(q Queue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = q
}

// Queue returns the queue; nil if the controller has not started: it then reconciles all objects when it does.
func (b *Backlog) Queue() Queue {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queue
}

// Put records that a write of the object is deferred, since first.
func (b *Backlog) Put(key types.NamespacedName, first time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since == nil {
		b.since = map[types.NamespacedName]time.Time{}
	}
	b.since[key] = first
}

// Done records that the object has no deferred writes.
func (b *Backlog) Done(key types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.since, key)
}

// Saturated reports whether so many objects wait, not counting those with deferred writes only, that all workers have
// other work, here or beside, and the write has not been deferred for Patience yet. It also returns since when it has
// been deferred.
func (b *Backlog) Saturated(key types.NamespacedName, workers int, now time.Time) (since time.Time, yes bool) {
	busy := b.beside != nil && b.beside() // it may ask for Busy of this one, so the lock is not held
	b.mu.Lock()
	defer b.mu.Unlock()
	since, known := b.since[key]
	others := len(b.since)
	if known {
		others--
	} else {
		since = now
	}
	return since, b.queue != nil && (busy || b.lockedBusy(others, workers)) && now.Before(since.Add(Patience))
}

// Later returns the result of a pass that deferred a write: unless the object is requeued earlier, it is requeued after
// that time with low priority.
func Later(result reconcile.Result, after time.Duration) reconcile.Result {
	if result.RequeueAfter == 0 || result.RequeueAfter > after {
		result.RequeueAfter, result.Priority = after, new(handler.LowPriority)
	}
	return result
}

// Usual resets the priority of a delayed requeue to normal. Otherwise it would inherit the priority of the current pass,
// which is right only for a repetition within Again.
func Usual(result *reconcile.Result) {
	if result.RequeueAfter > Again && result.Priority == nil {
		result.Priority = new(0)
	}
}
