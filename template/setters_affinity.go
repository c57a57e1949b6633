// SPDX-License-Identifier: Apache-2.0

package template

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

// RequireNode requires a node that satisfies r in addition to other requirements: r is added to every required term, since
// terms are alternatives. Without a required selector it creates one; a selector without terms, which matches no node,
// stays as it is. Requirements of several stages add up.
func (d Draft) RequireNode(r corev1.NodeSelectorRequirement) {
	d.note(field{base: fieldRequireNode, name: requirementKey(&r)})
	node := d.nodeAffinity()
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
func (d Draft) PreferNode(t corev1.PreferredSchedulingTerm) {
	node := d.nodeAffinity()
	d.note(field{base: fieldPreferNode, name: strconv.Itoa(len(node.PreferredDuringSchedulingIgnoredDuringExecution))})
	node.PreferredDuringSchedulingIgnoredDuringExecution = append(node.PreferredDuringSchedulingIgnoredDuringExecution, t)
}

// AvoidPods keeps the Pod away from other Pods. Terms of several stages add up.
func (d Draft) AvoidPods(t corev1.PodAffinityTerm) {
	a := d.affinity()
	if a.PodAntiAffinity == nil {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{}
	}
	d.note(field{base: fieldAvoidPods, name: strconv.Itoa(len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution))})
	a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution =
		append(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, t)
}

// JoinPods keeps the Pod together with other Pods. Terms of several stages add up.
func (d Draft) JoinPods(t corev1.PodAffinityTerm) {
	a := d.affinity()
	if a.PodAffinity == nil {
		a.PodAffinity = &corev1.PodAffinity{}
	}
	d.note(field{base: fieldJoinPods, name: strconv.Itoa(len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution))})
	a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution =
		append(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, t)
}

// note records an addition to a list that stages share. It replaces nothing.
func (d Draft) note(f field) {
	if !d.ledger.has(f) {
		d.ledger.enter(f, origin{stage: d.stage.Name, from: d.from}, d.terms)
	}
}

func (d Draft) affinity() *corev1.Affinity {
	if d.pod.Spec.Affinity == nil {
		d.pod.Spec.Affinity = &corev1.Affinity{}
	}
	return d.pod.Spec.Affinity
}

func (d Draft) nodeAffinity() *corev1.NodeAffinity {
	a := d.affinity()
	if a.NodeAffinity == nil {
		a.NodeAffinity = &corev1.NodeAffinity{}
	}
	return a.NodeAffinity
}
