// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// nodeSelector requires a node that supports the VMI: the cluster's labels, overridden by the VMI's, and those of its
// features.
func nodeSelector(d *render.Draft) error {
	d.NodeSelector(v1.NodeSchedulable, "true")
	anyArch := d.Config().GateEnabled(gateCrossArch)
	if arch := strings.ToLower(d.VMI().Spec.Architecture); arch != "" && !anyArch {
		d.From("spec.architecture").NodeSelector(corev1.LabelArchStable, arch)
	}
	for _, layer := range []struct {
		from      string
		selectors map[string]string
	}{{"Config.NodeSelectors", d.Config().NodeSelectors}, {"spec.nodeSelector", d.VMI().Spec.NodeSelector}} {
		for _, key := range sortedKeys(layer.selectors) {
			if anyArch && d.VMI().Spec.Architecture != "" && key == corev1.LabelArchStable {
				continue // nodes of another architecture emulate the VMI's, see archLabel
			}
			d.From(layer.from).NodeSelector(key, layer.selectors[key])
		}
	}
	for _, n := range neededLabels(d) {
		d.From(n.from).NodeSelector(n.label, "true")
	}
	return nil
}

// neededLabel is a label of a node's capability, with the field that requires it.
type neededLabel struct{ from, label string }

// neededLabels returns the labels of the nodes that support the VMI's features.
func neededLabels(d *render.Draft) []neededLabel {
	vmi := d.VMI()
	var needed []neededLabel
	add := func(needs bool, from, label string) {
		if needs {
			needed = append(needed, neededLabel{from, label})
		}
	}
	add(vmi.IsCPUDedicated(), "spec.domain.cpu.dedicatedCpuPlacement", v1.CPUManager)
	if d.Config().GateEnabled(gateHypervStrict) {
		needed = append(needed, hypervLabels(vmi.Spec.Domain.Features)...)
	}
	for _, label := range cpuLabels(vmi.Spec.Domain.CPU) {
		add(true, "spec.domain.cpu", label)
	}
	machine, hz, arch := machineType(vmi), tscFrequency(vmi), strings.ToLower(vmi.Spec.Architecture)
	add(machine != "", "status.machine.type, spec.domain.machine.type", v1.SupportedMachineTypeLabel+machine)
	add(hz > 0, "status.topologyHints.tscFrequency", fmt.Sprintf("scheduling.node.kubevirt.io/tsc-frequency-%d", hz))
	add(vmi.IsRealtimeEnabled(), "spec.domain.cpu.realtime", v1.RealtimeLabel)
	if s := vmi.Spec.Domain.LaunchSecurity; s != nil {
		const from = "spec.domain.launchSecurity"
		add(s.SEV != nil || s.SNP != nil, from, v1.SEVLabel)
		add(s.SEV != nil && s.SEV.Policy != nil && ptr.Deref(s.SEV.Policy.EncryptedState, false), from, v1.SEVESLabel)
		add(s.SNP != nil, from, v1.SEVSNPLabel)
		add(arch == archS390x, from, v1.SecureExecutionLabel)
		add(s.TDX != nil, from, v1.TDXLabel)
	}
	add(arch != "" && d.Config().GateEnabled(gateCrossArch), "spec.architecture", archLabel(arch))
	return needed
}

const archS390x = "s390x"

// archLabel marks nodes that run VMIs of an architecture, natively or by emulation.
func archLabel(arch string) string { return v1.VMArchLabel + arch }

// hypervLabels returns the labels of Hyper-V enlightenments that depend on the node. The others work on every node.
func hypervLabels(f *v1.Features) (needed []neededLabel) {
	if f == nil || f.Hyperv == nil {
		return nil
	}
	h := f.Hyperv
	on := func(s *v1.FeatureState) bool { return s != nil && ptr.Deref(s.Enabled, false) }
	for _, feature := range []struct {
		name string
		on   bool
	}{
		{"vpindex", on(h.VPIndex)}, {"runtime", on(h.Runtime)}, {"reset", on(h.Reset)}, {"synic", on(h.SyNIC)},
		{"synictimer", h.SyNICTimer != nil && ptr.Deref(h.SyNICTimer.Enabled, false)},
		{"frequencies", on(h.Frequencies)}, {"reenlightenment", on(h.Reenlightenment)},
		{"tlbflush", h.TLBFlush != nil && ptr.Deref(h.TLBFlush.Enabled, false)}, {"ipi", on(h.IPI)},
	} {
		if feature.on {
			needed = append(needed, neededLabel{"spec.domain.features.hyperv." + feature.name, v1.HypervLabel + feature.name})
		}
	}
	// Nested virtualization through an enlightened VMCS exists on Intel only. It is enabled unless disabled explicitly.
	if h.EVMCS != nil && (h.EVMCS.Enabled == nil || *h.EVMCS.Enabled) {
		needed = append(needed, neededLabel{"spec.domain.features.hyperv.evmcs", v1.CPUModelVendorLabel + "Intel"})
	}
	return needed
}

// cpuLabels returns the labels of the CPU model and the required features. Without a model, features do not restrict nodes.
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

// tscFrequency returns the clock frequency that a VMI with an invariant time stamp counter requires of its node.
func tscFrequency(vmi *v1.VirtualMachineInstance) int64 {
	hints := vmi.Status.TopologyHints
	if hints == nil || hints.TSCFrequency == nil {
		return 0
	}
	f := vmi.Spec.Domain.Features
	reenlightened := f != nil && f.Hyperv != nil && f.Hyperv.Reenlightenment != nil && ptr.Deref(f.Hyperv.Reenlightenment.Enabled, false)
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
