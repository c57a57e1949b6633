// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// resyncRetry is the pause after a resync that failed.
const resyncRetry = time.Second

// resyncer has VMIs reconciled that no event announces.
type resyncer struct{ *Reconciler }

// resyncs requests a pass over everything on the node: at the start, when a lost connection is
// restored, because passes that failed meanwhile back off, and periodically without a cause.
func (r resyncer) resyncs() source.Source {
	return source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		go r.resync(ctx, q)
		return nil
	})
}

func (r resyncer) resync(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	log := ctrl.LoggerFrom(ctx).WithName("resync")
	pause := time.NewTimer(0)
	defer pause.Stop()
	last := r.Informer.Connection()
	for {
		c := r.Informer.Connection()
		switch {
		case c.Since.Equal(last.Since):
		case c.Up:
			log.Info("Connected to the hypervisor")
			pause.Reset(0)
		default:
			log.Error(c.Err, "Lost the connection to the hypervisor")
		}
		last = c
		select {
		case <-c.Changed:
		case <-pause.C:
			pause.Reset(r.everything(ctx, q))
		case <-ctx.Done():
			return
		}
	}
}

// everything requests a pass over every VMI and returns when to do so again.
func (r resyncer) everything(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) time.Duration {
	keys, err := r.all(ctx)
	for key := range keys {
		q.Add(reconcile.Request{NamespacedName: key})
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).WithName("resync").Error(err, "Listing the VMIs of the node failed, retrying")
		return resyncRetry
	}
	return r.Resync
}

// all returns every VMI known to this node: by a domain, an object or files. With an error it
// returns those it found.
func (r resyncer) all(ctx context.Context) (map[types.NamespacedName]bool, error) {
	keys := map[types.NamespacedName]bool{}
	var errs []error
	for _, st := range r.Informer.List() {
		// A domain that is not known to be foreign may be ours.
		if key, named := keyOf(st.Name); named && (st.Ours() || st.Domain == nil) {
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
			errs = append(errs, fmt.Errorf("domainctrl: list the VMIs of the node: %w", err))
		}
		for i := range list.Items {
			keys[types.NamespacedName{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name}] = true
		}
	}
	return keys, errors.Join(errs...)
}
