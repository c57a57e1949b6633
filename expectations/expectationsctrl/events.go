// SPDX-License-Identifier: Apache-2.0

package expectationsctrl

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Observing returns a handler that tells the tracker about every event of objects of kind gk and then passes it to next,
// which enqueues whom it concerns. next may be nil.
func Observing(t *expectations.Tracker, gk schema.GroupKind, next handler.EventHandler) handler.EventHandler {
	if next == nil {
		next = handler.Funcs{}
	}
	return &observing{observer: observer{tracker: t, kind: gk}, next: next}
}

type observer struct {
	tracker *expectations.Tracker
	kind    schema.GroupKind
}

func (o observer) see(obj client.Object, kind expectations.EventKind) {
	if obj != nil {
		o.tracker.Observe(o.kind, obj, kind)
	}
}

func (o observer) seeDelete(e event.DeleteEvent) {
	kind := expectations.Deleted
	if e.DeleteStateUnknown {
		kind = expectations.DeletedUnknown
	}
	o.see(e.Object, kind)
}

type observing struct {
	observer
	next handler.EventHandler
}

// Create observes an object that has come into the cache.
func (o *observing) Create(ctx context.Context, e event.CreateEvent, q queue) {
	o.see(e.Object, expectations.Added)
	o.next.Create(ctx, e, q)
}

// Update observes a new state of an object in the cache.
func (o *observing) Update(ctx context.Context, e event.UpdateEvent, q queue) {
	o.see(e.ObjectNew, expectations.Updated)
	o.next.Update(ctx, e, q)
}

// Delete observes an object that has left the cache.
func (o *observing) Delete(ctx context.Context, e event.DeleteEvent, q queue) {
	o.seeDelete(e)
	o.next.Delete(ctx, e, q)
}

// Generic passes the event on. It is no evidence, as it does not come from the cache.
func (o *observing) Generic(ctx context.Context, e event.GenericEvent, q queue) {
	o.next.Generic(ctx, e, q)
}

// ObservePredicate returns a predicate that tells the tracker about every event and lets it pass. It serves watches whose
// handler cannot be chosen, such as For. Put it before predicates that drop events.
func ObservePredicate(t *expectations.Tracker, gk schema.GroupKind) predicate.Predicate {
	o := observer{tracker: t, kind: gk}
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { o.see(e.Object, expectations.Added); return true },
		UpdateFunc: func(e event.UpdateEvent) bool { o.see(e.ObjectNew, expectations.Updated); return true },
		DeleteFunc: func(e event.DeleteEvent) bool { o.seeDelete(e); return true },
	}
}

// Waker is a source.Source that enqueues owners when a Tracker wakes them. Give its Wake method to expectations.Options
// and the Waker itself to the controller's WatchesRawSource. Owners woken before the controller starts are kept.
type Waker struct {
	mu    sync.Mutex
	queue queue                // guarded by mu; nil before Start
	early []expectations.Owner // guarded by mu; woken before Start
}

// NewWaker returns a Waker for one controller.
func NewWaker() *Waker { return &Waker{} }

// Wake enqueues the owner.
func (w *Waker) Wake(o expectations.Owner) {
	w.mu.Lock()
	q := w.queue
	if q == nil {
		w.early = append(w.early, o)
	}
	w.mu.Unlock()
	if q != nil {
		q.Add(reconcile.Request{NamespacedName: o.Key})
	}
}

// Start is called by the controller with its queue.
func (w *Waker) Start(_ context.Context, q queue) error {
	w.mu.Lock()
	w.queue = q
	early := w.early
	w.early = nil
	w.mu.Unlock()
	for _, o := range early {
		q.Add(reconcile.Request{NamespacedName: o.Key})
	}
	return nil
}
