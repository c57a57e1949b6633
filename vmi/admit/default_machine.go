// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"cmp"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
)

func defaultArchitecture(d *defaulting) {
	d.arch = d.config.architecture(d.spec)
	d.spec.Architecture = d.arch
}

func defaultMachine(d *defaulting) {
	if d.spec.Domain.Machine == nil {
		d.spec.Domain.Machine = &v1.Machine{}
	}
	d.spec.Domain.Machine.Type = cmp.Or(d.spec.Domain.Machine.Type, d.config.machine(d.arch))
}

// onPCIExpress reports whether a machine has PCIe ports for hotplug.
func onPCIExpress(arch, machine string) bool {
	return (arch == amd64 || arch == arm64) && (strings.Contains(machine, "q35") || strings.HasPrefix(machine, "virt"))
}

// usualCPURequest is the default of the Pod's renderer.
var usualCPURequest = resource.MustParse("100m")

func defaultCPURequest(d *defaulting) {
	r := &d.spec.Domain.Resources
	request := func(q resource.Quantity) {
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		r.Requests[corev1.ResourceCPU] = q.DeepCopy()
	}
	if limit := r.Limits.Cpu(); !limit.IsZero() && r.Requests.Cpu().IsZero() {
		request(*limit)
	}
	_, asked := r.Requests[corev1.ResourceCPU]
	dedicated := d.spec.Domain.CPU != nil && d.spec.Domain.CPU.DedicatedCPUPlacement
	if q := d.config.CPURequest; q != nil && q.Cmp(usualCPURequest) != 0 && !asked && !dedicated {
		request(*q)
	}
}

// defaultTopology sets as many sockets as the VMI has CPUs, unless sockets, cores or threads are set.
func defaultTopology(d *defaulting) {
	if d.spec.Domain.CPU == nil {
		d.spec.Domain.CPU = &v1.CPU{}
	}
	cpu, r := d.spec.Domain.CPU, &d.spec.Domain.Resources
	if cpu.Cores != 0 || cpu.Sockets != 0 || cpu.Threads != 0 {
		return
	}
	sockets := int64(1)
	for _, q := range []*resource.Quantity{r.Limits.Cpu(), r.Requests.Cpu()} {
		if q.Sign() > 0 {
			sockets = q.Value()
			break
		}
	}
	cpu.Cores, cpu.Threads, cpu.Sockets = 1, 1, uint32(min(sockets, math.MaxUint32))
}

func defaultCPUModel(d *defaulting) {
	cpu := d.spec.Domain.CPU
	cpu.Model = cmp.Or(cpu.Model, traitsOf(d.arch).cpuModel, d.config.CPUModel, v1.DefaultCPUModel)
}

// memoryOf returns the memory of a VMI that does not set it: the memory request, otherwise the limit, otherwise one huge
// page, otherwise nil.
func memoryOf(domain *v1.DomainSpec) *resource.Quantity {
	if domain.Memory != nil && domain.Memory.Guest != nil {
		return domain.Memory.Guest
	}
	for _, list := range []corev1.ResourceList{domain.Resources.Requests, domain.Resources.Limits} {
		if q, there := list[corev1.ResourceMemory]; there && !q.IsZero() {
			return &q
		}
	}
	if domain.Memory != nil && domain.Memory.Hugepages != nil {
		if q, err := resource.ParseQuantity(domain.Memory.Hugepages.PageSize); err == nil && !q.IsZero() {
			return &q
		}
	}
	return nil
}

func defaultMemory(d *defaulting) {
	guest := memoryOf(&d.spec.Domain)
	if guest == nil {
		return
	}
	if d.spec.Domain.Memory == nil {
		d.spec.Domain.Memory = &v1.Memory{}
	}
	if d.spec.Domain.Memory.Guest == nil {
		copied := guest.DeepCopy()
		d.spec.Domain.Memory.Guest = &copied
	}
}

// defaultBootloader sets UEFI without secure boot on arm64, which has no other firmware.
func defaultBootloader(d *defaulting) {
	if d.arch != arm64 {
		return
	}
	if d.spec.Domain.Firmware == nil {
		d.spec.Domain.Firmware = &v1.Firmware{}
	}
	if d.spec.Domain.Firmware.Bootloader == nil {
		secure := false
		d.spec.Domain.Firmware.Bootloader = &v1.Bootloader{EFI: &v1.EFI{SecureBoot: &secure}}
	}
}

func defaultACPI(d *defaulting) {
	if !traitsOf(d.arch).noACPI {
		return
	}
	if d.spec.Domain.Features == nil {
		d.spec.Domain.Features = &v1.Features{}
	}
	if d.spec.Domain.Features.ACPI.Enabled == nil {
		off := false
		d.spec.Domain.Features.ACPI.Enabled = &off
	}
}

// defaultAPI applies the defaults of kubevirt.io/api, except for its random UUID: the UUID is part of the request.
func defaultAPI(d *defaulting) {
	const standIn = "stand-in"
	if d.spec.Domain.Firmware == nil {
		d.spec.Domain.Firmware = &v1.Firmware{}
	}
	fw := d.spec.Domain.Firmware
	fw.UUID = cmp.Or(fw.UUID, d.config.Request.FirmwareUUID, standIn)
	v1.SetObjectDefaults_VirtualMachineInstance(d.vmi)
	if fw.UUID == standIn {
		fw.UUID = ""
	}
}

// dependency is a Hyper-V feature that requires another one.
type dependency struct {
	name, on string
	enabled  func(*v1.FeatureHyperv) bool
	needs    func(*v1.FeatureHyperv) **v1.FeatureState
}

func on(s *v1.FeatureState) bool { return s != nil && !isFalse(s.Enabled) }

// dependencies of Hyper-V features in QEMU; a feature that enables another one comes before it.
var dependencies = []dependency{
	{"synictimer", "synic", func(h *v1.FeatureHyperv) bool { return h.SyNICTimer != nil && on(&h.SyNICTimer.FeatureState) },
		func(h *v1.FeatureHyperv) **v1.FeatureState { return &h.SyNIC }},
	{"synic", "vpindex", func(h *v1.FeatureHyperv) bool { return on(h.SyNIC) }, func(h *v1.FeatureHyperv) **v1.FeatureState { return &h.VPIndex }},
	{"tlbflush", "vpindex", func(h *v1.FeatureHyperv) bool { return h.TLBFlush != nil && on(&h.TLBFlush.FeatureState) },
		func(h *v1.FeatureHyperv) **v1.FeatureState { return &h.VPIndex }},
	{"ipi", "vpindex", func(h *v1.FeatureHyperv) bool { return on(h.IPI) }, func(h *v1.FeatureHyperv) **v1.FeatureState { return &h.VPIndex }},
	{"evmcs", "vapic", func(h *v1.FeatureHyperv) bool { return on(h.EVMCS) }, func(h *v1.FeatureHyperv) **v1.FeatureState { return &h.VAPIC }},
}

// vmx is the CPU feature that Hyper-V's evmcs requires.
const vmx = "vmx"

func defaultHyperv(d *defaulting) {
	h := d.spec.Domain.Features.Hyperv
	if h == nil {
		return
	}
	for _, dep := range dependencies {
		if needed := dep.needs(h); dep.enabled(h) && *needed == nil {
			enabled := true
			*needed = &v1.FeatureState{Enabled: &enabled}
		}
	}
	named := func(f v1.CPUFeature) bool { return f.Name == vmx }
	if cpu := d.spec.Domain.CPU; on(h.EVMCS) && !slices.ContainsFunc(cpu.Features, named) {
		cpu.Features = append(cpu.Features, v1.CPUFeature{Name: vmx, Policy: "require"})
	}
}
