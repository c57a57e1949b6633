// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// nodeSelector asks for a node that can run the guest: the cluster's labels, overlaid by the VMI's, and those of the
// features it uses.
func nodeSelector(d *Draft) error {
	vmi := d.vmi
	d.NodeSelector(v1.NodeSchedulable, "true")
	if arch := vmi.Spec.Architecture; arch != "" {
		d.From("spec.architecture").NodeSelector(corev1.LabelArchStable, strings.ToLower(arch))
	}
	for _, key := range sortedKeys(d.config.NodeSelectors) {
		d.From("Config.NodeSelectors").NodeSelector(key, d.config.NodeSelectors[key])
	}
	for _, key := range sortedKeys(vmi.Spec.NodeSelector) {
		d.From("spec.nodeSelector").NodeSelector(key, vmi.Spec.NodeSelector[key])
	}
	require := func(from, label string) { d.From(from).NodeSelector(label, "true") }
	if vmi.IsCPUDedicated() {
		require("spec.domain.cpu.dedicatedCpuPlacement", v1.CPUManager)
	}
	for _, label := range cpuLabels(vmi.Spec.Domain.CPU) {
		require("spec.domain.cpu", label)
	}
	if machine := machineType(vmi); machine != "" {
		require("status.machine.type, spec.domain.machine.type", v1.SupportedMachineTypeLabel+machine)
	}
	if hz := tscFrequency(vmi); hz > 0 {
		require("status.topologyHints.tscFrequency", fmt.Sprintf("scheduling.node.kubevirt.io/tsc-frequency-%d", hz))
	}
	if vmi.IsRealtimeEnabled() {
		require("spec.domain.cpu.realtime", v1.RealtimeLabel)
	}
	return nil
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
