// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var schedulingRules = []Rule{
	{"node-selector", checkNodeSelector, true},
	{"tolerations", checkTolerations, true},
	{"spread", checkSpread, true},
	{"node-affinity", checkNodeAffinity, true},
	{"pod-affinity", checkPodAffinity, true},
}

// schedulingChecker validates what the scheduler reads.
type schedulingChecker struct{ *checker }

func checkNodeSelector(k *checker) {
	k.labels(atSpec.child("nodeSelector"), k.spec.NodeSelector)
}

func checkTolerations(k *checker) {
	for i := range k.spec.Tolerations {
		t, at := &k.spec.Tolerations[i], atSpec.child("tolerations").index(i)
		if t.Key == "" && t.Operator != corev1.TolerationOpExists {
			k.invalid(at.child("operator"), t.Operator, "requires a key", "use Exists to tolerate everything, or set a key")
		}
		if t.Key != "" {
			k.text(at.child("key"), t.Key, LabelKey, useKey)
		}
		oneOf(k, at.child("operator"), t.Operator, corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpLt, corev1.TolerationOpGt)
		schedulingChecker{k}.tolerated(at.child("value"), t)
		oneOf(k, at.child("effect"), t.Effect, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			k.invalid(at.child("tolerationSeconds"), *t.TolerationSeconds, "is supported for effect NoExecute only", "use that effect, or remove the seconds")
		}
	}
}

func (k schedulingChecker) tolerated(at *fieldPath, t *corev1.Toleration) {
	switch t.Operator {
	case "", corev1.TolerationOpEqual:
		k.text(at, t.Value, LabelValue, useLabel)
	case corev1.TolerationOpExists:
		if t.Value != "" {
			k.invalid(at, t.Value, "must be empty for operator Exists", "remove it, or use Equal")
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		if _, err := strconv.ParseInt(t.Value, 10, 64); err != nil {
			k.invalid(at, t.Value, "must be a whole number", "use a whole number")
		}
	}
}

func checkSpread(k *checker) {
	all := k.spec.TopologySpreadConstraints
	for i := range all {
		c, at := &k.spec.TopologySpreadConstraints[i], atSpec.child("topologySpreadConstraints").index(i)
		if c.MaxSkew < 1 {
			k.invalid(at.child("maxSkew"), c.MaxSkew, "must be positive", "use 1 or more")
		}
		k.text(at.child("topologyKey"), c.TopologyKey, LabelKey, "use a label of nodes, such as topology.kubernetes.io/zone")
		if w := c.WhenUnsatisfiable; w == "" {
			k.required(at.child("whenUnsatisfiable"), "must be set", "use DoNotSchedule or ScheduleAnyway")
		} else {
			oneOf(k, at.child("whenUnsatisfiable"), w, corev1.DoNotSchedule, corev1.ScheduleAnyway)
		}
		if c.MinDomains != nil && (*c.MinDomains < 1 || c.WhenUnsatisfiable != corev1.DoNotSchedule) {
			k.invalid(at.child("minDomains"), *c.MinDomains, "must be positive and requires DoNotSchedule", "use 1 or more, with DoNotSchedule")
		}
		if slices.ContainsFunc(all[:i], func(o corev1.TopologySpreadConstraint) bool {
			return o.TopologyKey == c.TopologyKey && o.WhenUnsatisfiable == c.WhenUnsatisfiable
		}) {
			k.invalid(at, c.TopologyKey+", "+string(c.WhenUnsatisfiable), "duplicates another constraint", "keep one of them")
		}
		for _, policy := range []struct {
			field string
			value *corev1.NodeInclusionPolicy
		}{{"nodeAffinityPolicy", c.NodeAffinityPolicy}, {"nodeTaintsPolicy", c.NodeTaintsPolicy}} {
			if policy.value != nil {
				oneOf(k, at.child(policy.field), *policy.value, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
			}
		}
		schedulingChecker{k}.selector(at.child("labelSelector"), c.LabelSelector)
		schedulingChecker{k}.extended(at.child("labelSelector"), c.LabelSelector, len(c.MatchLabelKeys))
	}
}

// extended reports label keys that extend no selector.
func (k schedulingChecker) extended(at *fieldPath, s *metav1.LabelSelector, keys int) {
	if s == nil && keys > 0 {
		k.required(at, "must be set with matchLabelKeys or mismatchLabelKeys", "add the selector, or remove the keys")
	}
}

// selector reports the errors of Kubernetes' validation of a label selector.
func (k schedulingChecker) selector(at *fieldPath, s *metav1.LabelSelector) {
	if s == nil {
		return
	}
	for _, err := range metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, field.NewPath(at.String())) {
		f := Fault{Field: err.Field, Value: err.BadValue, Reason: err.Detail, Remedy: "correct the selector, or remove it"}
		switch err.Type {
		case field.ErrorTypeRequired:
			f.Kind, f.Value = Required, nil
		case field.ErrorTypeForbidden:
			f.Kind, f.Value = Forbidden, nil
		}
		k.faults = append(k.faults, f)
	}
}

func checkNodeAffinity(k *checker) {
	if k.spec.Affinity == nil || k.spec.Affinity.NodeAffinity == nil {
		return
	}
	a, at := k.spec.Affinity.NodeAffinity, atSpec.child("affinity.nodeAffinity")
	if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		at := at.child("requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms")
		if len(r.NodeSelectorTerms) == 0 {
			k.required(at, "must not be empty", "add a term, or remove the affinity")
		}
		for i := range r.NodeSelectorTerms {
			schedulingChecker{k}.nodeTerm(at.index(i), &r.NodeSelectorTerms[i])
			schedulingChecker{k}.nodeValues(at.index(i), &r.NodeSelectorTerms[i])
		}
	}
	for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		p, at := &a.PreferredDuringSchedulingIgnoredDuringExecution[i], at.child("preferredDuringSchedulingIgnoredDuringExecution").index(i)
		schedulingChecker{k}.weight(at, p.Weight)
		schedulingChecker{k}.nodeTerm(at.child("preference"), &p.Preference)
	}
}

func (k schedulingChecker) weight(at *fieldPath, weight int32) {
	if weight < 1 || weight > 100 {
		k.invalid(at.child("weight"), weight, "is out of range", "use 1 to 100")
	}
}

func (k schedulingChecker) nodeTerm(at *fieldPath, t *corev1.NodeSelectorTerm) {
	for i := range t.MatchExpressions {
		r, at := &t.MatchExpressions[i], at.child("matchExpressions").index(i)
		k.text(at.child("key"), r.Key, LabelKey, useKey)
		n, fits := len(r.Values), true
		switch r.Operator {
		case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
			fits = n > 0
		case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
			fits = n == 0
		case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
			fits = n == 1
		default:
			k.invalid(at.child("operator"), r.Operator, "is not supported", "use In, NotIn, Exists, DoesNotExist, Gt or Lt")
		}
		if !fits {
			k.invalid(at.child("values"), n, "is not a valid number of values for "+string(r.Operator), "use one or more for In and NotIn, one for Gt and Lt, none otherwise")
		}
	}
	k.nodeFields(at, t)
}

// nodeFields reports conditions on fields of nodes that the API server does not support.
func (k schedulingChecker) nodeFields(at *fieldPath, t *corev1.NodeSelectorTerm) {
	for i := range t.MatchFields {
		r, at := &t.MatchFields[i], at.child("matchFields").index(i)
		if r.Key != "metadata.name" {
			k.invalid(at.child("key"), r.Key, "field is not supported", "use metadata.name")
		}
		if (r.Operator != corev1.NodeSelectorOpIn && r.Operator != corev1.NodeSelectorOpNotIn) || len(r.Values) != 1 {
			k.invalid(at, r.Operator, fmt.Sprintf("with %d values is not supported for fields", len(r.Values)), "use In or NotIn with one name")
		}
	}
}

// nodeValues checks the values of a required term. Those of a preferred one may be invalid: it then prefers nothing.
func (k schedulingChecker) nodeValues(at *fieldPath, t *corev1.NodeSelectorTerm) {
	for i := range t.MatchExpressions {
		for j, value := range t.MatchExpressions[i].Values {
			k.text(at.child("matchExpressions").index(i).child("values").index(j), value, LabelValue, useLabel)
		}
	}
}

func checkPodAffinity(k *checker) {
	if a := k.spec.Affinity; a != nil && a.PodAffinity != nil {
		schedulingChecker{k}.podTerms(atSpec.child("affinity.podAffinity"), a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a := k.spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		schedulingChecker{k}.podTerms(atSpec.child("affinity.podAntiAffinity"), a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

func (k schedulingChecker) podTerms(at *fieldPath, required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
	term := func(at *fieldPath, t *corev1.PodAffinityTerm) {
		k.text(at.child("topologyKey"), t.TopologyKey, LabelKey, "use a label of nodes, such as kubernetes.io/hostname")
		k.selector(at.child("labelSelector"), t.LabelSelector)
		k.selector(at.child("namespaceSelector"), t.NamespaceSelector)
		k.extended(at.child("labelSelector"), t.LabelSelector, len(t.MatchLabelKeys)+len(t.MismatchLabelKeys))
		for i, namespace := range t.Namespaces {
			k.text(at.child("namespaces").index(i), namespace, validation.IsDNS1123Label, useDNSLabel)
		}
	}
	for i := range required {
		term(at.child("requiredDuringSchedulingIgnoredDuringExecution").index(i), &required[i])
	}
	for i := range preferred {
		at := at.child("preferredDuringSchedulingIgnoredDuringExecution").index(i)
		k.weight(at, preferred[i].Weight)
		term(at.child("podAffinityTerm"), &preferred[i].PodAffinityTerm)
	}
}
