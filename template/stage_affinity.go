// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// affinity takes the VMI's affinity over and keeps the guest off nodes that cannot give it its CPU.
func affinity(d *Draft) error {
	if a := d.vmi.Spec.Affinity; a != nil {
		d.From("spec.affinity").Set(fieldAffinity, func(p *corev1.Pod) { p.Spec.Affinity = a })
	}
	avoid := func(from, label string) {
		d.From(from).RequireNode(corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpDoesNotExist})
	}
	cpu := d.vmi.Spec.Domain.CPU
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
