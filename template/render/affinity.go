// SPDX-License-Identifier: Apache-2.0

package render

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	fieldAffinity    = "spec.affinity"
	fieldRequireNode = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
	fieldPreferNode  = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
	fieldAvoidPods   = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution"
	fieldJoinPods    = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution"
)

// Affinity is the affinity of the Pod, to which stages add. Their terms add up.
type Affinity struct{ draft Draft }

// Affinity returns the affinity of the Pod.
func (d Draft) Affinity() Affinity { return Affinity{d} }

// RequireNode requires a node that satisfies r in addition to other requirements: r is added to every required term, since
// terms are alternatives. Without a required selector it creates one; a selector without terms, which matches no node,
// stays as it is. Requirements of several stages add up.
func (a Affinity) RequireNode(r corev1.NodeSelectorRequirement) {
	a.note(fieldRequireNode, requirementKey(&r))
	node := a.node()
	required := node.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		node.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{r}}},
		}
		return
	}
	for i := range required.NodeSelectorTerms {
		term := &required.NodeSelectorTerms[i]
		term.MatchExpressions = append(term.MatchExpressions, *r.DeepCopy())
	}
}

// requirementKey has the form of a label selector, so that two requirements on one label are two fields.
func requirementKey(r *corev1.NodeSelectorRequirement) string {
	return strings.TrimSpace(r.Key + " " + string(r.Operator) + " " + strings.Join(r.Values, ","))
}

// PreferNode prefers nodes that match a term. Preferences of several stages add up.
func (a Affinity) PreferNode(t corev1.PreferredSchedulingTerm) {
	list := &a.node().PreferredDuringSchedulingIgnoredDuringExecution
	a.note(fieldPreferNode, strconv.Itoa(len(*list)))
	*list = append(*list, t)
}

// AvoidPods keeps the Pod away from other Pods. Terms of several stages add up.
func (a Affinity) AvoidPods(t corev1.PodAffinityTerm) {
	whole := a.whole()
	if whole.PodAntiAffinity == nil {
		whole.PodAntiAffinity = &corev1.PodAntiAffinity{}
	}
	list := &whole.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	a.note(fieldAvoidPods, strconv.Itoa(len(*list)))
	*list = append(*list, t)
}

// JoinPods keeps the Pod together with other Pods. Terms of several stages add up.
func (a Affinity) JoinPods(t corev1.PodAffinityTerm) {
	whole := a.whole()
	if whole.PodAffinity == nil {
		whole.PodAffinity = &corev1.PodAffinity{}
	}
	list := &whole.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	a.note(fieldJoinPods, strconv.Itoa(len(*list)))
	*list = append(*list, t)
}

// note records an addition to a list that stages share. It replaces nothing.
func (a Affinity) note(list, name string) {
	d, f := a.draft, field{base: list, name: name}
	if !d.ledger.has(f) {
		d.ledger.enter(f, origin{stage: d.stage.Name, from: d.from}, d.terms)
	}
}

func (a Affinity) whole() *corev1.Affinity {
	spec := &a.draft.pod.Spec
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	return spec.Affinity
}

func (a Affinity) node() *corev1.NodeAffinity {
	whole := a.whole()
	if whole.NodeAffinity == nil {
		whole.NodeAffinity = &corev1.NodeAffinity{}
	}
	return whole.NodeAffinity
}
