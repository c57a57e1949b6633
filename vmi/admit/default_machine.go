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

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

func defaultArchitecture(d *defaulting) {
	d.arch = d.config.cluster().ArchitectureOf(d.spec)
	d.spec.Architecture = d.arch
}

func defaultMachine(d *defaulting) {
	if d.spec.Domain.Machine == nil {
		d.spec.Domain.Machine = &v1.Machine{}
	}
	d.spec.Domain.Machine.Type = cmp.Or(d.spec.Domain.Machine.Type, d.config.cluster().MachineOf(d.arch))
}

// onPCIExpress reports whether a machine has PCIe ports for hotplug.
func onPCIExpress(arch, machine string) bool {
	return (arch == vmidefaults.AMD64 || arch == vmidefaults.ARM64) && (strings.Contains(machine, "q35") || strings.HasPrefix(machine, "virt"))
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
	cpu.Model = cmp.Or(cpu.Model, vmidefaults.TraitsOf(d.arch).CPUModel, d.config.CPUModel, v1.DefaultCPUModel)
}

func defaultMemory(d *defaulting) {
	guest := vmidefaults.MemoryOf(&d.spec.Domain)
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
	if d.arch != vmidefaults.ARM64 {
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
	if !vmidefaults.TraitsOf(d.arch).NoACPI {
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

func defaultHyperv(d *defaulting) {
	h := d.spec.Domain.Features.Hyperv
	if h == nil {
		return
	}
	for _, dep := range vmidefaults.Dependencies {
		if needed := dep.Needs(h); dep.Enabled(h) && *needed == nil {
			enabled := true
			*needed = &v1.FeatureState{Enabled: &enabled}
		}
	}
	named := func(f v1.CPUFeature) bool { return f.Name == vmidefaults.VMX }
	if cpu := d.spec.Domain.CPU; vmidefaults.Enabled(h.EVMCS) && !slices.ContainsFunc(cpu.Features, named) {
		cpu.Features = append(cpu.Features, v1.CPUFeature{Name: vmidefaults.VMX, Policy: "require"})
	}
}
