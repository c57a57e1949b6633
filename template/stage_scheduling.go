// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// scheduling decides where the Pod may run.
func scheduling(d *Draft) error {
	spec := &d.vmi.Spec
	selectors := nodeSelectors(d)
	for _, key := range slices.Sorted(maps.Keys(selectors)) {
		d.NodeSelector(key, selectors[key])
	}
	if affinity := nodeAffinity(d.vmi); affinity != nil {
		d.Set("spec.affinity", func(p *corev1.Pod) { p.Spec.Affinity = affinity })
	}
	if len(spec.Tolerations) > 0 {
		d.Set("spec.tolerations", func(p *corev1.Pod) { p.Spec.Tolerations = spec.Tolerations })
	}
	if len(spec.TopologySpreadConstraints) > 0 {
		d.Set("spec.topologySpreadConstraints", func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = spec.TopologySpreadConstraints
		})
	}
	if spec.SchedulerName != "" {
		d.Set("spec.schedulerName", func(p *corev1.Pod) { p.Spec.SchedulerName = spec.SchedulerName })
	}
	return nil
}

// nodeSelectors are the labels a node must have: the cluster's, overlaid by the VMI's, and those of the features it uses.
func nodeSelectors(d *Draft) map[string]string {
	vmi := d.vmi
	selectors := map[string]string{v1.NodeSchedulable: "true"}
	if arch := vmi.Spec.Architecture; arch != "" {
		selectors[corev1.LabelArchStable] = strings.ToLower(arch)
	}
	maps.Copy(selectors, d.config.NodeSelectors)
	maps.Copy(selectors, vmi.Spec.NodeSelector)
	require := func(label string) { selectors[label] = "true" }
	if vmi.IsCPUDedicated() {
		require(v1.CPUManager)
	}
	for _, label := range cpuLabels(vmi.Spec.Domain.CPU) {
		require(label)
	}
	if machine := machineType(vmi); machine != "" {
		require(v1.SupportedMachineTypeLabel + machine)
	}
	if hz := tscFrequency(vmi); hz > 0 {
		require(fmt.Sprintf("scheduling.node.kubevirt.io/tsc-frequency-%d", hz))
	}
	if vmi.IsRealtimeEnabled() {
		require(v1.RealtimeLabel)
	}
	return selectors
}

// cpuLabels name the CPU model and the required features. Without a model, features do not restrict nodes.
func cpuLabels(cpu *v1.CPU) (labels []string) {
	if cpu == nil || cpu.Model == "" {
		return nil
	}
	if cpu.Model != v1.CPUModeHostModel && cpu.Model != v1.CPUModeHostPassthrough {
		labels = append(labels, v1.CPUModelLabel+cpu.Model)
	}
	for _, f := range cpu.Features {
		if f.Policy == "" || f.Policy == "require" {
			labels = append(labels, v1.CPUFeatureLabel+f.Name)
		}
	}
	return labels
}

func machineType(vmi *v1.VirtualMachineInstance) string {
	if m := vmi.Status.Machine; m != nil && m.Type != "" {
		return m.Type
	}
	if m := vmi.Spec.Domain.Machine; m != nil {
		return m.Type
	}
	return ""
}

// tscFrequency is the clock frequency a node must offer to a guest that relies on an invariant time stamp counter.
func tscFrequency(vmi *v1.VirtualMachineInstance) int64 {
	hints := vmi.Status.TopologyHints
	if hints == nil || hints.TSCFrequency == nil {
		return 0
	}
	f := vmi.Spec.Domain.Features
	reenlightened := f != nil && f.Hyperv != nil && f.Hyperv.Reenlightenment != nil && isTrue(f.Hyperv.Reenlightenment.Enabled)
	if !reenlightened && !invariantCounter(vmi.Spec.Domain.CPU) {
		return 0
	}
	return *hints.TSCFrequency
}

func invariantCounter(cpu *v1.CPU) bool {
	return cpu != nil && slices.ContainsFunc(cpu.Features, func(f v1.CPUFeature) bool {
		return f.Name == "invtsc" && (f.Policy == "require" || f.Policy == "force")
	})
}

// nodeAffinity adds to the VMI's affinity what keeps it off nodes that cannot give it its CPU.
func nodeAffinity(vmi *v1.VirtualMachineInstance) *corev1.Affinity {
	var avoid []string
	cpu := vmi.Spec.Domain.CPU
	if cpu == nil || cpu.Model == "" || cpu.Model == v1.CPUModeHostModel {
		avoid = append(avoid, v1.NodeHostModelIsObsoleteLabel)
	}
	if cpu != nil {
		for _, f := range cpu.Features {
			if f.Policy == "forbid" {
				avoid = append(avoid, v1.CPUFeatureLabel+f.Name)
			}
		}
	}
	affinity := vmi.Spec.Affinity
	for _, label := range avoid {
		affinity = requireNode(affinity, corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpDoesNotExist})
	}
	return affinity
}

// requireNode adds a requirement to every required term, as terms are alternatives. Without a required selector it makes
// one; a selector without terms, which matches no node, stays so.
func requireNode(a *corev1.Affinity, r corev1.NodeSelectorRequirement) *corev1.Affinity {
	if a == nil {
		a = &corev1.Affinity{}
	}
	if a.NodeAffinity == nil {
		a.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{r}}},
		}
		return a
	}
	for i := range required.NodeSelectorTerms {
		term := &required.NodeSelectorTerms[i]
		term.MatchExpressions = append(term.MatchExpressions, r)
	}
	return a
}
