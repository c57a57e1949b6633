// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// urgentPriority goes before that of migrations that were just made, of which there may be a thousand.
const urgentPriority = 10

// urgent has what a handler enqueues go before other migrations: a target Pod that runs has taken a slot and room on a
// node, and waits for nothing but the hand-over.
type urgent struct{ handler.EventHandler }

// Create implements handler.EventHandler.
func (u urgent) Create(ctx context.Context, e event.CreateEvent, q requestQueue) {
	u.EventHandler.Create(ctx, e, first(q))
}

// Update implements handler.EventHandler.
func (u urgent) Update(ctx context.Context, e event.UpdateEvent, q requestQueue) {
	u.EventHandler.Update(ctx, e, first(q))
}

// Delete implements handler.EventHandler.
func (u urgent) Delete(ctx context.Context, e event.DeleteEvent, q requestQueue) {
	u.EventHandler.Delete(ctx, e, first(q))
}

// Generic implements handler.EventHandler.
func (u urgent) Generic(ctx context.Context, e event.TypedGenericEvent[client.Object], q requestQueue) {
	u.EventHandler.Generic(ctx, e, first(q))
}

// first is the queue with another default of the priority, if it knows priorities.
func first(q requestQueue) requestQueue {
	if p, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		return firstQueue{p}
	}
	return q
}

// firstQueue adds with urgentPriority what is added with none.
type firstQueue struct {
	priorityqueue.PriorityQueue[reconcile.Request]
}

// Add implements workqueue.TypedInterface.
func (q firstQueue) Add(item reconcile.Request) { q.AddWithOpts(priorityqueue.AddOpts{}, item) }

// AddAfter implements workqueue.TypedDelayingInterface.
func (q firstQueue) AddAfter(item reconcile.Request, after time.Duration) {
	q.AddWithOpts(priorityqueue.AddOpts{After: after}, item)
}

// AddRateLimited implements workqueue.TypedRateLimitingInterface.
func (q firstQueue) AddRateLimited(item reconcile.Request) {
	q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true}, item)
}

// AddWithOpts implements priorityqueue.PriorityQueue.
func (q firstQueue) AddWithOpts(o priorityqueue.AddOpts, items ...reconcile.Request) {
	if o.Priority == nil {
		o.Priority = new(urgentPriority)
	}
	q.PriorityQueue.AddWithOpts(o, items...)
}
