// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// maxVCPUs is the limit up to which KubeVirt's defaulting leaves room for more CPUs. The actual
// limit of a machine type depends on the version of QEMU, which reports it.
const maxVCPUs = 512

// cpu sets the number of CPUs, their topology and their model.
func cpu(c *Conversion) error {
	t := xmlspec.TopologyOf(&c.VMI.Spec.Domain)
	if !c.arch.hotplugCPU {
		t.MaxSockets = t.Sockets
	}
	// Check each factor first: the product may overflow.
	if max(t.MaxSockets, t.Cores, t.Threads) > maxVCPUs || t.Max() > maxVCPUs {
		return c.Invalid(specDomain+"cpu", fmt.Sprintf("Invalid value: %d sockets of %d cores of %d threads are too many CPUs", t.MaxSockets, t.Cores, t.Threads),
			fmt.Sprintf("use at most %d", maxVCPUs))
	}
	d := c.Domain
	d.VCPU = &libvirtxml.DomainVCPU{Placement: "static", Value: uint(t.Max())}
	if spec := c.VMI.Spec.Domain.CPU; c.arch.hotplugCPU && spec != nil && spec.MaxSockets > 0 {
		d.VCPUs = hotplugLayout(t)
		if t.Count() < t.Max() {
			d.VCPU.Current = uint(t.Count())
		}
	}
	d.CPU = &libvirtxml.DomainCPU{Topology: &libvirtxml.DomainCPUTopology{
		Sockets: int(t.MaxSockets), Cores: int(t.Cores), Threads: int(t.Threads),
	}}
	return cpuModel(c)
}

// hotplugLayout lists all CPUs: those beyond the requested count are disabled, those beyond the
// first socket are hotpluggable.
func hotplugLayout(t xmlspec.Topology) *libvirtxml.DomainVCPUs {
	l := &libvirtxml.DomainVCPUs{}
	perSocket := uint64(t.Cores) * uint64(t.Threads)
	for i := range t.Max() {
		l.VCPU = append(l.VCPU, libvirtxml.DomainVCPUsVCPU{
			Id: new(uint(i)), Enabled: yesNo(i < t.Count()), Hotpluggable: yesNo(i >= perSocket),
		})
	}
	return l
}

// cpuModel sets the CPU model and its features. It rejects host-passthrough under software
// emulation, where it would expose the emulator's CPU in place of the host's. A guest of another
// architecture than its node gets all features of the emulator, since it cannot mean the CPU of the
// host.
func cpuModel(c *Conversion) error {
	spec := c.VMI.Spec.Domain.CPU
	model := v1.CPUModeHostModel
	if spec != nil && spec.Model != "" {
		model = spec.Model
	}
	if c.crossArchitecture() && (model == v1.CPUModeHostModel || model == v1.CPUModeHostPassthrough) {
		model = "max"
	}
	out := c.Domain.CPU
	switch model {
	case v1.CPUModeHostPassthrough:
		if c.Facts.Emulation {
			return c.Invalid(specDomain+"cpu.model", "Forbidden: host-passthrough requires KVM, but the VMI is emulated in software",
				"use host-model or a named model such as qemu64")
		}
		out.Mode = model
	case v1.CPUModeHostModel:
		out.Mode = model
	default:
		out.Mode, out.Match = "custom", "exact"
		out.Model = &libvirtxml.DomainCPUModel{Value: model}
	}
	if spec == nil {
		return nil
	}
	return cpuFeatures(c, spec.Features)
}

// cpuFeatures adds the features of the spec. Named models lose mpx, which kernels no longer use and
// newer hosts lack, unless the spec sets it. Models that follow the host keep it if the host has
// it, even if the spec has no model, where KubeVirt disables it.
func cpuFeatures(c *Conversion, features []v1.CPUFeature) error {
	out := c.Domain.CPU
	for i, f := range features {
		if f.Name == "" {
			return c.Invalid(fmt.Sprintf("%scpu.features[%d].name", specDomain, i), "Required value", "set a feature such as aes")
		}
		policy := f.Policy
		if policy == "" {
			policy = "require"
		}
		if !slices.Contains([]string{"force", "require", "optional", "disable", "forbid"}, policy) {
			return c.Invalid(fmt.Sprintf("%scpu.features[%d].policy", specDomain, i), fmt.Sprintf("Unsupported value: %q", policy),
				"use force, require, optional, disable or forbid")
		}
		out.Features = append(out.Features, libvirtxml.DomainCPUFeature{Name: f.Name, Policy: policy})
	}
	if c.arch.mpx && out.Mode == "custom" &&
		!slices.ContainsFunc(out.Features, func(f libvirtxml.DomainCPUFeature) bool { return f.Name == "mpx" }) {
		out.Features = append(out.Features, libvirtxml.DomainCPUFeature{Name: "mpx", Policy: "disable"})
	}
	return nil
}
