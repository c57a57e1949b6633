// SPDX-License-Identifier: Apache-2.0

package template

import corev1 "k8s.io/api/core/v1"

const (
	fieldAffinity    = "spec.affinity"
	fieldRequireNode = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
	fieldPreferNode  = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"
	fieldAvoidPods   = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution"
	fieldJoinPods    = "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution"
)

// RequireNode asks for a node that fulfils r, whatever else is asked for: r is added to every required term, as terms are
// alternatives. Without a required selector it makes one; a selector without terms, which matches no node, stays so.
// Several stages may add requirements; they do not conflict.
func (d Draft) RequireNode(r corev1.NodeSelectorRequirement) {
	d.note(field{base: fieldRequireNode, name: r.Key})
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
		term.MatchExpressions = append(term.MatchExpressions, r)
	}
}

// PreferNode prefers nodes that match a term. Preferences of several stages add up.
func (d Draft) PreferNode(t corev1.PreferredSchedulingTerm) {
	d.note(field{base: fieldPreferNode, name: termKey(t.Preference)})
	node := d.nodeAffinity()
	node.PreferredDuringSchedulingIgnoredDuringExecution = append(node.PreferredDuringSchedulingIgnoredDuringExecution, t)
}

func termKey(t corev1.NodeSelectorTerm) string {
	if len(t.MatchExpressions) > 0 {
		return t.MatchExpressions[0].Key
	}
	return ""
}

// AvoidPods keeps the Pod away from others. Terms of several stages add up.
func (d Draft) AvoidPods(t corev1.PodAffinityTerm) {
	d.note(field{base: fieldAvoidPods, name: t.TopologyKey})
	a := d.affinity()
	if a.PodAntiAffinity == nil {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{}
	}
	a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution =
		append(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, t)
}

// JoinPods keeps the Pod together with others. Terms of several stages add up.
func (d Draft) JoinPods(t corev1.PodAffinityTerm) {
	d.note(field{base: fieldJoinPods, name: t.TopologyKey})
	a := d.affinity()
	if a.PodAffinity == nil {
		a.PodAffinity = &corev1.PodAffinity{}
	}
	a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution =
		append(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, t)
}

// note records a contribution to a list that stages share.
func (d Draft) note(f field) {
	o := origin{stage: d.stage.Name, from: d.from}
	if before, ok := d.ledger.owners[f]; ok && before.stage != o.stage {
		o.overrode = before.stage
	}
	d.ledger.enter(f, o, d.terms)
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
