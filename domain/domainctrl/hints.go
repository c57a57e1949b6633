// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/virtloom/virtloom/domain"
)

// hints turns what the hypervisor tells into passes over guests. After a lost
// connection everything is looked at again, since what happened meanwhile was
// told to nobody.
func (r *Reconciler) hints() source.Source {
	return source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		hints, err := r.Hypervisor.Watch(ctx)
		if err != nil {
			return fmt.Errorf("domainctrl: watch the hypervisor: %w", err)
		}
		go func() {
			for h := range hints {
				r.hint(ctx, h, q)
			}
		}()
		return nil
	})
}

func (r *Reconciler) hint(ctx context.Context, h domain.Event, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	log := ctrl.LoggerFrom(ctx).WithName("hints")
	switch h.Kind {
	case domain.Changed:
		if key, ours := keyOf(h.Domain); ours {
			q.Add(reconcile.Request{NamespacedName: key})
		}
	case domain.Lost:
		log.Error(h.Err, "Lost the connection to the hypervisor")
	case domain.Resync:
		keys, err := r.all(ctx)
		if err != nil {
			log.Error(err, "Could not list what to look at again")
		}
		for key := range keys {
			q.Add(reconcile.Request{NamespacedName: key})
		}
	}
}

// all returns every guest this node knows of: by a domain or by an object.
func (r *Reconciler) all(ctx context.Context) (map[types.NamespacedName]bool, error) {
	keys := map[types.NamespacedName]bool{}
	for _, c := range []cache.Cache{r.Caches.Owned, r.Caches.Incoming} {
		var list v1.VirtualMachineInstanceList
		if err := c.List(ctx, &list); err != nil {
			return keys, fmt.Errorf("domainctrl: list the guests of the node: %w", err)
		}
		for i := range list.Items {
			keys[types.NamespacedName{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name}] = true
		}
	}
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	states, err := r.Hypervisor.List(ctx)
	if err != nil {
		return keys, fmt.Errorf("domainctrl: list the domains of the node: %w", err)
	}
	for i := range states {
		if states[i].Ours() {
			keys[states[i].Metadata.Of()] = true
		}
	}
	return keys, nil
}

// keyOf splits the name of a domain; a namespace holds no underscore.
func keyOf(name string) (types.NamespacedName, bool) {
	ns, n, ours := strings.Cut(name, "_")
	return types.NamespacedName{Namespace: ns, Name: n}, ours && ns != "" && n != ""
}
