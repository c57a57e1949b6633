// SPDX-License-Identifier: Apache-2.0

package expectationsctrl

import (
	"context"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/virtloom/virtloom/expectations"
)

// Observing returns a predicate that passes every event to the gate and accepts it. Attach puts it before all others;
// use it directly for watches that no builder makes. Events of objects whose kind the client's scheme does not know
// are not observed, but such objects cannot be written either.
func (g *Gate) Observing() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { g.observe(e.Object, expectations.Added); return true },
		UpdateFunc: func(e event.UpdateEvent) bool { g.observe(e.ObjectNew, expectations.Updated); return true },
		DeleteFunc: func(e event.DeleteEvent) bool {
			kind := expectations.Deleted
			if e.DeleteStateUnknown {
				kind = expectations.DeletedUnknown
			}
			g.observe(e.Object, kind)
			return true
		},
	}
}

func (g *Gate) observe(obj client.Object, kind expectations.EventKind) {
	if gk, known := g.kinds.learn(obj); known {
		g.tracker.Observe(gk, obj, kind)
	}
}

// kinds records the representation in which the objects of a kind arrive: as their own type, unstructured, or as metadata.
type kinds struct {
	scheme *runtime.Scheme
	typed  sync.Map // of schema.GroupVersionKind by reflect.Type
	seen   sync.Map // of empty client.Object by schema.GroupKind; the first representation seen counts
}

// learn returns the kind of an object that arrived; known is false for nil and for types outside the scheme.
func (k *kinds) learn(obj client.Object) (gk schema.GroupKind, known bool) {
	var gvk schema.GroupVersionKind
	switch o := obj.(type) {
	case nil:
		return gk, false
	case runtime.Unstructured, *metav1.PartialObjectMetadata:
		gvk = o.GetObjectKind().GroupVersionKind()
	default:
		if gvk, known = k.ofType(o); !known {
			return gk, false
		}
	}
	gk = gvk.GroupKind()
	if _, before := k.seen.Load(gk); !before {
		if empty, ok := reflect.New(reflect.TypeOf(obj).Elem()).Interface().(client.Object); ok {
			empty.GetObjectKind().SetGroupVersionKind(gvk)
			k.seen.LoadOrStore(gk, empty)
		}
	}
	return gk, true
}

func (k *kinds) ofType(obj client.Object) (schema.GroupVersionKind, bool) {
	t := reflect.TypeOf(obj)
	if gvk, known := k.typed.Load(t); known {
		return gvk.(schema.GroupVersionKind), true
	}
	gvk, err := apiutil.GVKForObject(obj, k.scheme)
	if err != nil {
		return gvk, false
	}
	if all, _, _ := k.scheme.ObjectKinds(obj); len(all) == 1 { // else the kind depends on the object
		k.typed.Store(t, gvk)
	}
	return gvk, true
}

// empty returns an object to read one of the kind into, or nil if none has arrived yet.
func (k *kinds) empty(gk schema.GroupKind) client.Object {
	prototype, known := k.seen.Load(gk)
	if !known {
		return nil
	}
	obj, _ := prototype.(client.Object).DeepCopyObject().(client.Object)
	return obj
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Source returns a source that enqueues the owners whose writes have become visible. It serves one controller; owners
// woken before that controller has started are kept.
func (g *Gate) Source() source.Source { return g.wakes }

// wakes carries owners from the tracker to the controller's queue.
type wakes struct {
	mu    sync.Mutex
	queue queue                // guarded by mu; nil before Start
	early []expectations.Owner // guarded by mu; woken before Start
}

func (w *wakes) wake(o expectations.Owner) {
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
func (w *wakes) Start(_ context.Context, q queue) error {
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
