// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// queue is the queue of a controller's work.
type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// guestQueue is the queue of the guests' controller, for the others beside it.
type guestQueue struct {
	mu sync.Mutex
	q  queue // guarded by mu; nil before the controller has started
}

// source is what hands the queue over.
func (g *guestQueue) source() source.Source {
	return source.Func(func(_ context.Context, q queue) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.q = q
		return nil
	})
}

// get returns the queue; nil if the controller has not started: then it looks at all
// guests when it does.
func (g *guestQueue) get() queue {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.q
}

// spreadBy is the time between two guests that are looked at because of something that
// concerns all.
const spreadBy = 5 * time.Millisecond

// wakeAll has all guests looked at: those without a Pod, which may have waited for it,
// at once, and the others by and by.
func (r *Reconciler) wakeAll(ctx context.Context, q queue) {
	var list v1.VirtualMachineInstanceList
	if err := r.Client.List(ctx, &list); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Could not tell which guests a change concerns")
		return
	}
	var after time.Duration
	for i := range list.Items {
		g := &list.Items[i]
		if waiting(g) {
			q.Add(request(g.Namespace, g.Name))
			continue
		}
		after += spreadBy
		q.AddAfter(request(g.Namespace, g.Name), after)
	}
}
