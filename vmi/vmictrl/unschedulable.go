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

// closeAfter is the time without a heartbeat after which a node is marked unschedulable. Agents report every 2.2 minutes
// at the latest. That is sooner than KubeVirt, which waits until VMIs count as lost: it is safe at any time, as the
// agent's next heartbeat makes the node schedulable again.
const closeAfter = 3 * time.Minute

// The label kubevirt.io/schedulable only; an admission policy enforces that.
//
// +kubebuilder:rbac:groups="",resources=nodes,verbs=patch

// close marks a node unschedulable for VMIs if its agent is unresponsive: its kubelet may be alive, and would run Pods
// that no controller hands off. A node that never sent a heartbeat is left unchanged, as by KubeVirt. It returns when the next
// heartbeat is overdue, zero if there is nothing to wait for.
func (n *nodes) close(ctx context.Context, node *metav1.PartialObjectMetadata) (time.Duration, error) {
	beat := beatOf(node)
	if n.closes == 0 || beat == "" || node.Labels[v1.NodeSchedulable] != "true" {
		return 0, nil
	}
	now := n.clock.Now()
	since := n.note(node.Name, beat)
	// A new process has not observed the silence; a heartbeat as old as that of lost VMIs is trusted.
	if at, said := beaten(beat, now); said && now.Sub(at) >= n.after && now.Sub(at) >= n.closes {
		since = at
	}
	if left := since.Add(n.closes).Sub(now); left > 0 {
		return left, nil
	}
	// The resourceVersion makes the patch fail if the node was written since: a heartbeat that arrives now is newer.
	patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"labels":{%q:"false"}}}`, node.ResourceVersion, v1.NodeSchedulable)
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	if err := n.client.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return 0, client.IgnoreNotFound(fmt.Errorf("vmictrl: mark Node %s unschedulable for VirtualMachineInstances: %w", node.Name, err))
	}
	ctrl.LoggerFrom(ctx).Info("Marked node unschedulable, node agent is unresponsive", "node", node.Name, "since", since)
	if n.recorder != nil {
		n.recorder.Eventf(target, nil, corev1.EventTypeNormal, "NodeUnresponsive", "Close", "virt-handler is not responsive, marking node as unresponsive")
	}
	return 0, nil
}
