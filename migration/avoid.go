// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// avoidWeight makes the wish stronger than a scheduler's own liking for empty
	// nodes, and weaker than the strongest wishes of a guest's owner.
	avoidWeight = 50
	// avoidMost is how many nodes are named at most. With more than that full, the
	// cluster's limit is what holds migrations back.
	avoidMost = 64
)

// Avoid adds to a target Pod the wish to be put on none of these nodes. It is a wish
// only: a node that is the only one still takes the Pod.
//
// A scheduler knows how empty a node is, and not how many guests are on their way there, so it
// sends one guest after the other to the node that was emptied last, to
// wait there for a slot. [Admission.Full] names such nodes.
func Avoid(pod *corev1.Pod, nodes []string) {
	if len(nodes) == 0 {
		return
	}
	var term corev1.NodeSelectorTerm
	for _, n := range nodes[:min(len(nodes), avoidMost)] {
		// A requirement on the name takes one value.
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
