// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	fieldpath "k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmirules"
	"github.com/virtloom/virtloom/template/render"
)

// checkScheduling returns the scheduling settings of a VMI that the API server would reject.
func checkScheduling(f *faults, d *render.Draft) {
	spec := &d.VMI().Spec
	checkLabels(f, "Config.NodeSelectors", d.Config().NodeSelectors)
	checkLabels(f, "spec.nodeSelector", spec.NodeSelector)
	checkNodeLabels(f, d.VMI())
	for i := range spec.Tolerations {
		checkToleration(f, fmt.Sprintf("spec.tolerations[%d]", i), &spec.Tolerations[i])
	}
	for i := range spec.TopologySpreadConstraints {
		checkSpread(f, i, spec.TopologySpreadConstraints)
	}
	if a := spec.Affinity; a != nil {
		checkNodeAffinity(f, "spec.affinity.nodeAffinity", a.NodeAffinity)
		if p := a.PodAffinity; p != nil {
			checkPodTerms(f, "spec.affinity.podAffinity", p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if p := a.PodAntiAffinity; p != nil {
			checkPodTerms(f, "spec.affinity.podAntiAffinity", p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
}

// checkNodeLabels checks names that become part of a node label's name.
func checkNodeLabels(f *faults, vmi *v1.VirtualMachineInstance) {
	label := func(at, prefix, name string) {
		if name != "" && len(vmirules.LabelKey(prefix+name)) > 0 {
			f.add(at, fmt.Sprintf("results in the invalid node label %q", prefix+name), useLabelValue)
		}
	}
	label("spec.architecture", v1.VMArchLabel, strings.ToLower(vmi.Spec.Architecture))
	f.text("spec.architecture", strings.ToLower(vmi.Spec.Architecture), vmirules.LabelValue, useLabelValue)
	if cpu := vmi.Spec.Domain.CPU; cpu != nil {
		label("spec.domain.cpu.model", v1.CPUModelLabel, cpu.Model)
		for i := range cpu.Features {
			label(fmt.Sprintf("spec.domain.cpu.features[%d].name", i), v1.CPUFeatureLabel, cpu.Features[i].Name)
		}
	}
	at := "spec.domain.machine.type"
	if m := vmi.Status.Machine; m != nil && m.Type != "" {
		at = "status.machine.type"
	}
	label(at, v1.SupportedMachineTypeLabel, machineType(vmi))
}

func checkToleration(f *faults, at string, t *corev1.Toleration) {
	if t.Key == "" && t.Operator != corev1.TolerationOpExists {
		f.add(at+".operator", fmt.Sprintf("%q requires a key", t.Operator), "use Exists to tolerate everything, or set a key")
	}
	if t.Key != "" {
		f.text(at+".key", t.Key, vmirules.LabelKey, useLabelName)
	}
	switch t.Operator {
	case "", corev1.TolerationOpEqual:
		f.text(at+".value", t.Value, vmirules.LabelValue, useLabelValue)
	case corev1.TolerationOpExists:
		if t.Value != "" {
			f.add(at+".value", "must be empty for operator Exists", "remove the value, or use Equal")
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		if _, err := strconv.ParseInt(t.Value, 10, 64); err != nil {
			f.add(at+".value", fmt.Sprintf("%q must be a whole number", t.Value), "use a whole number")
		}
	default:
		f.add(at+".operator", fmt.Sprintf("%q is not supported", t.Operator), "use Equal or Exists")
	}
	f.oneOf(at+".effect", string(t.Effect), string(corev1.TaintEffectNoSchedule), string(corev1.TaintEffectPreferNoSchedule),
		string(corev1.TaintEffectNoExecute))
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		f.add(at+".tolerationSeconds", fmt.Sprintf("is not supported for effect %q", t.Effect), "use effect NoExecute, or remove the seconds")
	}
}

func checkSpread(f *faults, i int, all []corev1.TopologySpreadConstraint) {
	c, at := &all[i], fmt.Sprintf("spec.topologySpreadConstraints[%d]", i)
	if c.MaxSkew < 1 {
		f.add(at+".maxSkew", fmt.Sprintf("%d must be positive", c.MaxSkew), "use 1 or more")
	}
	f.text(at+".topologyKey", c.TopologyKey, vmirules.LabelKey, "use a label of nodes, such as topology.kubernetes.io/zone")
	switch c.WhenUnsatisfiable {
	case corev1.DoNotSchedule, corev1.ScheduleAnyway:
	default:
		f.add(at+".whenUnsatisfiable", fmt.Sprintf("%q is not supported", c.WhenUnsatisfiable), "use DoNotSchedule or ScheduleAnyway")
	}
	if c.MinDomains != nil && (*c.MinDomains < 1 || c.WhenUnsatisfiable != corev1.DoNotSchedule) {
		f.add(at+".minDomains", fmt.Sprintf("%d must be positive and requires DoNotSchedule", *c.MinDomains), "use 1 or more, with DoNotSchedule")
	}
	if slices.ContainsFunc(all[:i], func(o corev1.TopologySpreadConstraint) bool {
		return o.TopologyKey == c.TopologyKey && o.WhenUnsatisfiable == c.WhenUnsatisfiable
	}) {
		f.add(at, fmt.Sprintf("{%s, %s} is a duplicate", c.TopologyKey, c.WhenUnsatisfiable), "keep one of them")
	}
	policies := []string{string(corev1.NodeInclusionPolicyHonor), string(corev1.NodeInclusionPolicyIgnore)}
	if p := c.NodeAffinityPolicy; p != nil {
		f.oneOf(at+".nodeAffinityPolicy", string(*p), policies...)
	}
	if p := c.NodeTaintsPolicy; p != nil {
		f.oneOf(at+".nodeTaintsPolicy", string(*p), policies...)
	}
	checkLabelSelector(f, at+".labelSelector", c.LabelSelector)
	checkExtended(f, at, c.LabelSelector, len(c.MatchLabelKeys))
}

func checkLabelSelector(f *faults, at string, s *metav1.LabelSelector) {
	for _, err := range metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, fieldpath.NewPath(at)) {
		f.add(err.Field, err.ErrorBody(), "use a valid label selector")
	}
}

func checkNodeAffinity(f *faults, at string, a *corev1.NodeAffinity) {
	if a == nil {
		return
	}
	if required := a.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		at := at + ".requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
		if len(required.NodeSelectorTerms) == 0 {
			f.add(at, "must not be empty", "add a term, or remove the requirement")
		}
		for i := range required.NodeSelectorTerms {
			checkNodeTerm(f, fmt.Sprintf("%s[%d]", at, i), &required.NodeSelectorTerms[i])
			checkValues(f, fmt.Sprintf("%s[%d]", at, i), &required.NodeSelectorTerms[i])
		}
	}
	for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		p, at := &a.PreferredDuringSchedulingIgnoredDuringExecution[i], fmt.Sprintf("%s.preferredDuringSchedulingIgnoredDuringExecution[%d]", at, i)
		checkWeight(f, at, p.Weight)
		checkNodeTerm(f, at+".preference", &p.Preference)
	}
}

func checkWeight(f *faults, at string, weight int32) {
	if weight < 1 || weight > 100 {
		f.add(at+".weight", fmt.Sprintf("%d is out of range", weight), "use 1 to 100")
	}
}

func checkNodeTerm(f *faults, at string, t *corev1.NodeSelectorTerm) {
	for i := range t.MatchExpressions {
		checkRequirement(f, fmt.Sprintf("%s.matchExpressions[%d]", at, i), &t.MatchExpressions[i])
	}
	for i := range t.MatchFields {
		r, at := &t.MatchFields[i], fmt.Sprintf("%s.matchFields[%d]", at, i)
		if r.Key != "metadata.name" {
			f.add(at+".key", fmt.Sprintf("field %q is not supported", r.Key), "use metadata.name")
		}
		if (r.Operator != corev1.NodeSelectorOpIn && r.Operator != corev1.NodeSelectorOpNotIn) || len(r.Values) != 1 {
			f.add(at, fmt.Sprintf("%s with %d values is not supported for fields", r.Operator, len(r.Values)), "use In or NotIn with one name")
		}
	}
}

func checkRequirement(f *faults, at string, r *corev1.NodeSelectorRequirement) {
	f.text(at+".key", r.Key, vmirules.LabelKey, useLabelName)
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			f.add(at+".values", "must be set", fmt.Sprintf("add the values for operator %s", r.Operator))
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			f.add(at+".values", fmt.Sprintf("must be empty for operator %s", r.Operator), "remove the values, or use In")
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			f.add(at+".values", fmt.Sprintf("%[2]q must be one number for operator %[1]s", r.Operator, r.Values), "use one whole number")
		}
	default:
		f.add(at+".operator", fmt.Sprintf("%q is not supported", r.Operator), "use In, NotIn, Exists, DoesNotExist, Gt or Lt")
	}
}

// checkValues checks the values of a required term. Those of a preferred one may be invalid: it then prefers nothing.
func checkValues(f *faults, at string, t *corev1.NodeSelectorTerm) {
	for i := range t.MatchExpressions {
		for j, value := range t.MatchExpressions[i].Values {
			f.text(fmt.Sprintf("%s.matchExpressions[%d].values[%d]", at, i, j), value, vmirules.LabelValue, useLabelValue)
		}
	}
}

func checkPodTerms(f *faults, at string, required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
	for i := range required {
		checkPodTerm(f, fmt.Sprintf("%s.requiredDuringSchedulingIgnoredDuringExecution[%d]", at, i), &required[i])
	}
	for i := range preferred {
		at := fmt.Sprintf("%s.preferredDuringSchedulingIgnoredDuringExecution[%d]", at, i)
		checkWeight(f, at, preferred[i].Weight)
		checkPodTerm(f, at+".podAffinityTerm", &preferred[i].PodAffinityTerm)
	}
}

func checkPodTerm(f *faults, at string, t *corev1.PodAffinityTerm) {
	f.text(at+".topologyKey", t.TopologyKey, vmirules.LabelKey, "use a label of nodes, such as kubernetes.io/hostname")
	for i, namespace := range t.Namespaces {
		f.text(fmt.Sprintf("%s.namespaces[%d]", at, i), namespace, validation.IsDNS1123Label, useDNSLabel)
	}
	checkLabelSelector(f, at+".labelSelector", t.LabelSelector)
	checkLabelSelector(f, at+".namespaceSelector", t.NamespaceSelector)
	checkExtended(f, at, t.LabelSelector, len(t.MatchLabelKeys)+len(t.MismatchLabelKeys))
}

// checkExtended checks that the selector exists that the label keys extend.
func checkExtended(f *faults, at string, s *metav1.LabelSelector, keys int) {
	if s == nil && keys > 0 {
		f.add(at+".labelSelector", "must be set with matchLabelKeys or mismatchLabelKeys", "add the selector, or remove the keys")
	}
}
