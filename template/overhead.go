// SPDX-License-Identifier: Apache-2.0

package template

import (
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
)

const mi = int64(1024 * 1024)

// Overhead is the memory that a launcher Pod needs beyond the memory of its guest.
type Overhead struct {
	// Terms are the lines of the calculation; their sum is Bytes.
	Terms []Term
	// Bytes is the whole overhead.
	Bytes int64
}

// Quantity returns the overhead as a quantity with a binary suffix.
func (o Overhead) Quantity() *resource.Quantity {
	return resource.NewQuantity(o.Bytes, resource.BinarySI)
}

func (o *Overhead) add(name string, bytes int64, from string) {
	if bytes == 0 {
		return
	}
	o.Terms = append(o.Terms, bytesTerm(name, bytes, from))
	o.Bytes += bytes
}

// MemoryOverhead calculates the overhead of a VMI's launcher Pod with KubeVirt's numbers, and with the terms of further
// calculators, which the ratio does not scale.
func MemoryOverhead(in Input, more ...OverheadCalculator) Overhead {
	o, vmi, config := Overhead{}, in.VMI, in.Config
	domain := &vmi.Spec.Domain
	o.add("page tables", pageTables(vmi), "spec.domain.resources.requests.memory")
	o.add("virt-launcher-monitor", 25*mi, "")
	o.add("virt-launcher", 100*mi, "")
	o.add("virtlogd", 25*mi, "")
	o.add("virtqemud", 40*mi, "")
	o.add("qemu", 50*mi, "")
	o.add("virtual CPUs", 8*mi*overheadCPUs(vmi), "spec.domain.cpu")
	o.add("I/O threads", 8*mi, "")
	if v := domain.Devices.AutoattachGraphicsDevice; v == nil || *v {
		o.add("video memory", 32*mi, "spec.domain.devices.autoattachGraphicsDevice")
	}
	if architecture(vmi, config) == "arm64" {
		o.add("firmware flash", 128*mi, "spec.architecture")
	}
	deviceOverhead(&o, vmi)
	probeOverhead(&o, vmi)
	if vmi.IsCPUDedicated() || vmi.WantsToHaveQOSGuaranteed() {
		o.add("guaranteed quality of service", 100*mi, "spec.domain.cpu.dedicatedCpuPlacement")
	}
	if m := domain.Memory; m != nil && m.ReservedOverhead != nil && m.ReservedOverhead.AddedOverhead != nil {
		o.add("reserved", m.ReservedOverhead.AddedOverhead.Value(), "spec.domain.memory.reservedOverhead.addedOverhead")
	}
	if ratio, err := strconv.ParseFloat(config.AdditionalGuestMemoryOverheadRatio, 64); err == nil {
		// Kilobytes are rounded up before scaling and the product is cut, as KubeVirt does.
		o.add("additional ratio", int64(float64(ceilKilo(o.Bytes))*(ratio-1))*1000, "Config.AdditionalGuestMemoryOverheadRatio")
	}
	for _, calculator := range more {
		for _, t := range calculator.Overhead(in) {
			o.Terms = append(o.Terms, t)
			o.Bytes += t.Amount.Value()
		}
	}
	return o
}

func deviceOverhead(o *Overhead, vmi *v1.VirtualMachineInstance) {
	devices := &vmi.Spec.Domain.Devices
	vfio := len(devices.GPUs)+len(devices.HostDevices) > 0
	for i := range devices.Interfaces {
		vfio = vfio || devices.Interfaces[i].SRIOV != nil
	}
	if vfio {
		o.add("passed through devices", 1024*mi, "spec.domain.devices")
	}
	for i := range vmi.Spec.Volumes {
		if vmi.Spec.Volumes[i].DownwardMetrics != nil {
			o.add("downward metrics", mi, "spec.volumes")
			break
		}
	}
	if tpm := devices.TPM; tpm != nil && (tpm.Enabled == nil || *tpm.Enabled) {
		o.add("TPM", 53*mi, "spec.domain.devices.tpm")
	}
	if s := vmi.Spec.Domain.LaunchSecurity; s != nil && (s.SEV != nil || s.SNP != nil) {
		o.add("memory encryption", 256*mi, "spec.domain.launchSecurity")
	}
}

func probeOverhead(o *Overhead, vmi *v1.VirtualMachineInstance) {
	probes := int64(0)
	for _, p := range []*v1.Probe{vmi.Spec.LivenessProbe, vmi.Spec.ReadinessProbe} {
		if p != nil && p.Exec != nil {
			probes++
		}
	}
	if probes > 0 {
		o.add("exec probes", 100*mi+10*mi*probes, "spec.livenessProbe, spec.readinessProbe")
	}
}

// pageTables is one byte in 512 of the requested memory, which is first rounded up to kilobytes. A guest whose memory is
// not requested counts as zero; node agents rely on that.
func pageTables(vmi *v1.VirtualMachineInstance) int64 {
	request := vmi.Spec.Domain.Resources.Requests.Memory()
	return ceilKilo(request.Value()) * 1000 / 512
}

func ceilKilo(bytes int64) int64 { return (bytes + 999) / 1000 }

func overheadCPUs(vmi *v1.VirtualMachineInstance) int64 {
	var n int64
	resources := &vmi.Spec.Domain.Resources
	switch {
	case vmi.Spec.Domain.CPU != nil:
		n = vCPUs(vmi.Spec.Domain.CPU)
	case !resources.Limits.Cpu().IsZero():
		n = resources.Limits.Cpu().Value()
	default:
		n = resources.Requests.Cpu().Value()
	}
	return max(n, 1)
}

// vCPUs multiplies the topology. Factors that are not set do not count; without any there are no virtual CPUs.
func vCPUs(cpu *v1.CPU) int64 {
	product, set := int64(1), false
	for _, factor := range []uint32{cpu.Cores, cpu.Sockets, cpu.Threads} {
		if factor != 0 {
			product, set = product*int64(factor), true
		}
	}
	if !set {
		return 0
	}
	return product
}

func architecture(vmi *v1.VirtualMachineInstance, config Config) string {
	if vmi.Spec.Architecture != "" {
		return vmi.Spec.Architecture
	}
	return config.ClusterArchitecture
}
