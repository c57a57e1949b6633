// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// avoidWeight exceeds a scheduler's own preference for empty nodes, and stays below the
	// strongest preferences of a VMI's owner.
	avoidWeight = 50
	// avoidMost bounds the nodes named. With more than that full, the cluster's limit holds
	// migrations back.
	avoidMost = 64
)

// Avoid adds to a target Pod the preference not to run on these nodes. It is a preference
// only: if no other node fits, the Pod is still scheduled to one of them.
//
// A scheduler knows how empty a node is, but not how many VMIs are bound for it, so it sends
// one VMI after the other to the node that was emptied last, to wait there for a slot.
// queue.Admission.Full returns such nodes.
func Avoid(pod *corev1.Pod, nodes []string) {
	if len(nodes) == 0 {
		return
	}
	var term corev1.NodeSelectorTerm
	for _, n := range nodes[:min(len(nodes), avoidMost)] {
		// A requirement on the name takes a single value.
		term.MatchFields = append(term.MatchFields, corev1.NodeSelectorRequirement{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpNotIn, Values: []string{n},
		})
	}
	affinity := &corev1.Affinity{}
	if pod.Spec.Affinity != nil {
		affinity = pod.Spec.Affinity.DeepCopy()
	}
	if affinity.NodeAffinity == nil {
		affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	preferred := &affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	*preferred = append(slices.Clip(*preferred), corev1.PreferredSchedulingTerm{Weight: avoidWeight, Preference: term})
	pod.Spec.Affinity = affinity
}
