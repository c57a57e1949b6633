// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/virtloom/virtloom/domain"
)

// resyncRetry is how soon a look at everything that failed is repeated.
const resyncRetry = time.Second

// hints turns what the hypervisor tells into passes over guests. After a lost
// connection everything is looked at again, since what happened meanwhile was
// told to nobody, and from time to time without a cause: a hint is no promise.
func (r *Reconciler) hints() source.Source {
	return source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		hints, err := r.Hypervisor.Watch(ctx)
		if err != nil {
			return fmt.Errorf("domainctrl: watch the hypervisor: %w", err)
		}
		go r.follow(ctx, hints, q)
		return nil
	})
}

func (r *Reconciler) follow(ctx context.Context, hints <-chan domain.Event, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	log := ctrl.LoggerFrom(ctx).WithName("hints")
	resync := time.NewTimer(r.Resync)
	defer resync.Stop()
	for {
		again := false
		select {
		case h, open := <-hints:
			if !open {
				return
			}
			switch h.Kind {
			case domain.Changed:
				if key, ours := keyOf(h.Domain); ours {
					q.Add(reconcile.Request{NamespacedName: key})
				}
			case domain.Lost:
				log.Error(h.Err, "Lost the connection to the hypervisor")
			case domain.Resync:
				again = true
			}
		case <-resync.C:
			again = true
		case <-ctx.Done():
			return
		}
		if again {
			resync.Reset(r.everything(ctx, q))
		}
	}
}

// everything asks for a pass over every guest and says when to do so again.
func (r *Reconciler) everything(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) time.Duration {
	keys, err := r.all(ctx)
	for key := range keys {
		q.Add(reconcile.Request{NamespacedName: key})
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).WithName("hints").Error(err, "Could not list all there is to look at")
		return resyncRetry
	}
	return r.Resync
}

// all returns every guest this node knows of: by a domain, an object or files.
// With an error it returns those it found.
func (r *Reconciler) all(ctx context.Context) (map[types.NamespacedName]bool, error) {
	keys := map[types.NamespacedName]bool{}
	var errs []error
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	states, err := r.Hypervisor.List(ctx)
	if err != nil {
		errs = append(errs, fmt.Errorf("domainctrl: list the domains of the node: %w", err))
	}
	for i := range states {
		if key, ours := keyOf(states[i].Name); ours {
			keys[key] = true
		}
	}
	owners, err := r.Workspace.Owners()
	errs = append(errs, err)
	for _, key := range owners {
		keys[key] = true
	}
	for _, c := range []cache.Cache{r.Caches.Owned, r.Caches.Incoming} {
		var list v1.VirtualMachineInstanceList
		if err := c.List(ctx, &list); err != nil {
			errs = append(errs, fmt.Errorf("domainctrl: list the guests of the node: %w", err))
		}
		for i := range list.Items {
			keys[types.NamespacedName{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name}] = true
		}
	}
	return keys, errors.Join(errs...)
}

// keyOf splits the name of a domain; a namespace holds no underscore.
func keyOf(name string) (types.NamespacedName, bool) {
	ns, n, ours := strings.Cut(name, "_")
	return types.NamespacedName{Namespace: ns, Name: n}, ours && ns != "" && n != ""
}
