// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// NeverRetry makes the controller repeat a failed pass only upon a watch event.
func (r *Reconciler) NeverRetry() {
	r.limiter = workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Hour, time.Hour)
}
