// SPDX-License-Identifier: Apache-2.0

package template

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// affinity copies the VMI's affinity and avoids nodes that cannot provide its CPU.
func affinity(d *render.Draft) error {
	if a := d.VMI().Spec.Affinity; a != nil {
		d.From("spec.affinity").Set("spec.affinity", func(p *corev1.Pod) { p.Spec.Affinity = a.DeepCopy() }) // extended below
	}
	avoid := func(from, label string) {
		d.From(from).Affinity().RequireNode(corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpDoesNotExist})
	}
	if arch := d.VMI().Spec.Architecture; arch != "" && d.Config().GateEnabled(gateCrossArch) {
		preferArch(d, strings.ToLower(arch))
	}
	cpu := d.VMI().Spec.Domain.CPU
	if cpu == nil || cpu.Model == "" || cpu.Model == v1.CPUModeHostModel {
		avoid("spec.domain.cpu.model", v1.NodeHostModelIsObsoleteLabel)
	}
	if cpu == nil {
		return nil
	}
	for _, f := range cpu.Features {
		if f.Policy == "forbid" {
			avoid("spec.domain.cpu.features", v1.CPUFeatureLabel+f.Name)
		}
	}
	return nil
}

// preferArch prefers nodes with the VMI's native architecture over those that emulate it.
func preferArch(d *render.Draft, arch string) {
	d.From("spec.architecture").Affinity().PreferNode(corev1.PreferredSchedulingTerm{
		Weight: 100, // the maximum
		Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{arch}},
		}},
	})
}
