// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"slices"

	k8sv1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// maxVCPUs is the number of CPUs up to which KubeVirt's defaulting leaves room for
// more. How many a machine takes depends on the version of QEMU, which says so itself.
const maxVCPUs = 512

// topology is the guest's CPUs as the spec asks for them.
type topology struct{ sockets, cores, threads, maxSockets uint32 }

func (t topology) count() uint64 { return uint64(t.sockets) * uint64(t.cores) * uint64(t.threads) }
func (t topology) max() uint64   { return uint64(t.maxSockets) * uint64(t.cores) * uint64(t.threads) }

// topologyOf reads the topology; without one there are as many sockets as the
// limit, or the request, counts CPUs.
func topologyOf(s *v1.DomainSpec) topology {
	t := topology{}
	if s.CPU != nil {
		t = topology{s.CPU.Sockets, s.CPU.Cores, s.CPU.Threads, s.CPU.MaxSockets}
	}
	if t.sockets == 0 && t.cores == 0 && t.threads == 0 {
		for _, l := range []k8sv1.ResourceList{s.Resources.Requests, s.Resources.Limits} {
			if q, ok := l[k8sv1.ResourceCPU]; ok && q.Value() > 0 {
				t.sockets = uint32(min(q.Value(), 1<<16))
			}
		}
	}
	t.sockets, t.cores, t.threads = max(t.sockets, 1), max(t.cores, 1), max(t.threads, 1)
	t.maxSockets = max(t.maxSockets, t.sockets)
	return t
}

// cpu sets the number of CPUs, their topology and their model.
func cpu(c *Conversion) error {
	t := topologyOf(&c.VMI.Spec.Domain)
	if !c.arch.hotplugCPU {
		t.maxSockets = t.sockets
	}
	// The factors are checked one by one first: their product may overflow.
	if max(t.maxSockets, t.cores, t.threads) > maxVCPUs || t.max() > maxVCPUs {
		return c.Invalid(specDomain+"cpu", fmt.Sprintf("%d sockets of %d cores of %d threads are too many CPUs", t.maxSockets, t.cores, t.threads),
			fmt.Sprintf("ask for %d at most", maxVCPUs))
	}
	d := c.Domain
	d.VCPU = &libvirtxml.DomainVCPU{Placement: "static", Value: uint(t.max())}
	if spec := c.VMI.Spec.Domain.CPU; c.arch.hotplugCPU && spec != nil && spec.MaxSockets > 0 {
		d.VCPUs = hotplugLayout(t)
		if t.count() < t.max() {
			d.VCPU.Current = uint(t.count())
		}
	}
	d.CPU = &libvirtxml.DomainCPU{Topology: &libvirtxml.DomainCPUTopology{
		Sockets: int(t.maxSockets), Cores: int(t.cores), Threads: int(t.threads),
	}}
	return cpuModel(c)
}

// hotplugLayout lists every CPU: those beyond the wanted count are not plugged,
// those beyond the first socket can be.
func hotplugLayout(t topology) *libvirtxml.DomainVCPUs {
	l := &libvirtxml.DomainVCPUs{}
	perSocket := uint64(t.cores) * uint64(t.threads)
	for i := range t.max() {
		l.VCPU = append(l.VCPU, libvirtxml.DomainVCPUsVCPU{
			Id: ptr(uint(i)), Enabled: yesNo(i < t.count()), Hotpluggable: yesNo(i >= perSocket),
		})
	}
	return l
}

// cpuModel sets the model and its features. host-passthrough does not exist
// under software emulation and is refused, so that nobody takes the emulator's
// CPU for the host's; but a guest of another architecture than the node's gets all
// the emulator has in place of a host's CPU that could not be meant.
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
			return c.Invalid(specDomain+"cpu.model", "host-passthrough needs KVM, and this guest is emulated in software",
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

// cpuFeatures adds the features of the spec; a named model loses mpx, which no
// kernel uses any more and newer hosts lack, unless the spec speaks of it. Modes
// that follow the host have it if the host has it, even where the spec leaves the
// model open and KubeVirt takes mpx away.
func cpuFeatures(c *Conversion, features []v1.CPUFeature) error {
	out := c.Domain.CPU
	for i, f := range features {
		if f.Name == "" {
			return c.Invalid(fmt.Sprintf("%scpu.features[%d].name", specDomain, i), "is empty", "name a feature such as aes")
		}
		policy := f.Policy
		if policy == "" {
			policy = "require"
		}
		if !slices.Contains([]string{"force", "require", "optional", "disable", "forbid"}, policy) {
			return c.Invalid(fmt.Sprintf("%scpu.features[%d].policy", specDomain, i), fmt.Sprintf("%q is no policy", policy),
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
