// SPDX-License-Identifier: Apache-2.0

package vmctrl

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/internal/optional"
	"github.com/virtloom/virtloom/internal/readonly"
)

// Observe makes the Reconciler a read-only observer, instead of SetupWithManager: [Reconciler.Plan] then returns what the
// controller would do. Client must read from the cache that the index is added to, and its RESTMapper must know the
// served kinds. Without a Gate the caches are assumed to have observed all writes. An observer does not ask whether the service account of
// a VM may copy what a missing DataVolume copies: the controller reports in condition Failure that it may not.
func (r *Reconciler) Observe(ctx context.Context, ix client.FieldIndexer) error {
	if err := r.complete(); err != nil {
		return err
	}
	r.Client, r.observes = readonly.Client{Source: r.Client}, true
	var err error
	if r.kinds, err = optional.Served(r.Client.RESTMapper(), watcher{r}.optional()); err != nil {
		return fmt.Errorf("vmctrl: %w", err)
	}
	if err := ix.IndexField(ctx, &appsv1.ControllerRevision{}, revisionByVM, ofControllingVM); err != nil {
		return fmt.Errorf("vmctrl: index %s: %w", revisionByVM, err)
	}
	return nil
}

// Pending returns the writes for a VM that the caches have not observed yet, the oldest first.
func (r *Reconciler) Pending(key types.NamespacedName) []expectations.Pending {
	if r.Gate == nil {
		return nil
	}
	return r.Gate.Tracker().Pending(key)
}
