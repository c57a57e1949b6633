// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"time"

	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/internal/backlog"
)

// spreadBy is the time between two guests that are looked at because of something that
// concerns all.
const spreadBy = 5 * time.Millisecond

// wakeAll has all guests looked at: those without a Pod, which may have waited for it,
// at once, and the others by and by.
func (r *Reconciler) wakeAll(ctx context.Context, q backlog.Queue) {
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
