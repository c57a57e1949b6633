// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// closeAfter is after what time without a sign of life a node gets no more guests. Agents report every 2.2 minutes at
// the latest. That is sooner than KubeVirt, whose bound is that after which guests count as lost: this here is safe at any
// time, as the agent's next report opens the node again.
const closeAfter = 3 * time.Minute

// The label kubevirt.io/schedulable, and no more; an admission policy keeps it to that.
//
// +kubebuilder:rbac:groups="",resources=nodes,verbs=patch

// close marks a node unschedulable for guests whose agent is silent: its kubelet may be alive, and would take the Pods
// of guests that nobody starts. A node that never gave a sign of life is left as it is, as KubeVirt does. It returns
// when the next sign of life is overdue, zero if there is nothing to wait for.
func (n *nodes) close(ctx context.Context, node *metav1.PartialObjectMetadata) (time.Duration, error) {
	beat := beatOf(node)
	if n.closes == 0 || beat == "" || node.Labels[v1.NodeSchedulable] != "true" {
		return 0, nil
	}
	now := n.clock.Now()
	since := n.note(node.Name, beat)
	// Who has just begun has seen no silence; a report that is as old as guests that count as lost is believed to be so.
	if at, said := beaten(beat, now); said && now.Sub(at) >= n.after && now.Sub(at) >= n.closes {
		since = at
	}
	if left := since.Add(n.closes).Sub(now); left > 0 {
		return left, nil
	}
	// Only if nothing was written to the node since: a report that comes now is later than what is concluded here.
	patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"labels":{%q:"false"}}}`, node.ResourceVersion, v1.NodeSchedulable)
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	if err := n.client.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return 0, client.IgnoreNotFound(fmt.Errorf("vmictrl: mark Node %s unschedulable for guests: %w", node.Name, err))
	}
	ctrl.LoggerFrom(ctx).Info("Marked a node unschedulable for guests, as its agent is silent", "node", node.Name, "since", since)
	if n.recorder != nil {
		n.recorder.Eventf(target, nil, corev1.EventTypeNormal, "NodeUnresponsive", "Close", "virt-handler is not responsive, marking node as unresponsive")
	}
	return 0, nil
}
