// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"time"

	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/virtloom/virtloom/internal/backlog"
)

// spreadBy is the interval between two VMIs that are enqueued for a change that concerns all.
const spreadBy = 5 * time.Millisecond

// wakeAll enqueues all VMIs: those without a Pod, which may have waited for the change, at once,
// and the others one by one.
func (r watcher) wakeAll(ctx context.Context, q backlog.Queue) {
	var list v1.VirtualMachineInstanceList
	if err := r.Client.List(ctx, &list); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing VirtualMachineInstances failed, change ignored")
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
