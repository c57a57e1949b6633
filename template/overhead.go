// SPDX-License-Identifier: Apache-2.0

package template

import (
	"math"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	mi = int64(1024 * 1024)
	// ComputeResources rejects sizes above maxBytes; up to here, the sum of the terms is exact.
	maxOverhead = 3 * maxBytes
)

// Overhead is the memory that a launcher Pod needs in addition to the guest memory.
type Overhead struct {
	// Terms are the lines of the calculation, in whole bytes; their sum is Bytes.
	Terms []render.Term
	// Bytes is the total overhead.
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
	// Each line is bounded; no number of them overflows.
	bytes = max(-maxOverhead-o.Bytes, min(bytes, maxOverhead-o.Bytes))
	o.Terms = append(o.Terms, bytesTerm(name, bytes, from))
	o.Bytes += bytes
}

// MemoryOverhead calculates the overhead of a VMI's launcher Pod with KubeVirt's numbers, plus the terms of further
// calculators, which the ratio does not scale. It depends on the VMI, which must be set, Config.ClusterArchitecture and
// Config.AdditionalGuestMemoryOverheadRatio only:
//
//	page tables                   1/512 of spec.domain.resources.requests.memory, rounded up to kB before
//	virt-launcher-monitor          25Mi
//	virt-launcher                 100Mi
//	virtlogd                       25Mi
//	virtqemud                      40Mi
//	qemu                           50Mi
//	virtual CPUs                    8Mi each, at least one
//	I/O threads                     8Mi, however many
//	video memory                   32Mi unless autoattachGraphicsDevice is false
//	firmware flash                128Mi on arm64
//	passed through devices       1024Mi, however many: host devices, GPUs, SR-IOV interfaces
//	downward metrics                1Mi
//	TPM                            53Mi
//	memory encryption             256Mi for SEV and SEV-SNP
//	exec probes                   100Mi, and 10Mi each
//	guaranteed quality of service 100Mi for dedicated CPUs, or CPU and memory requests that equal limits
//	reserved                      spec.domain.memory.reservedOverhead.addedOverhead
//	additional ratio              what Config.AdditionalGuestMemoryOverheadRatio adds; invalid numbers add nothing
//
// The numbers must equal KubeVirt's, even where they look wrong (page tables of a VMI without memory request, one amount
// for any number of devices): the sum is the Pod's annotation kubevirt.io/memory-overhead-bytes, by which node agents
// decide whether memory may be hotplugged, and which they calculate themselves if it is missing; another sum would give one
// VMI two sizes. Sizes that ComputeResources rejects count as its maximum. Terms of calculators are rounded to whole bytes,
// away from zero.
func MemoryOverhead(in Input, more ...OverheadCalculator) Overhead {
	o, vmi, config := Overhead{Terms: make([]render.Term, 0, 12)}, in.VMI, &in.Config
	domain := &vmi.Spec.Domain
	o.add("page tables", pageTables(vmi), fieldMemoryRequest)
	o.add("virt-launcher-monitor", 25*mi, "")
	o.add("virt-launcher", 100*mi, "")
	o.add("virtlogd", 25*mi, "")
	o.add("virtqemud", 40*mi, "")
	o.add("qemu", 50*mi, "")
	o.add("virtual CPUs", 8*mi*overheadCPUs(vmi), fieldCPU)
	o.add("I/O threads", 8*mi, "")
	if v := domain.Devices.AutoattachGraphicsDevice; v == nil || *v {
		o.add("video memory", 32*mi, "spec.domain.devices.autoattachGraphicsDevice")
	}
	if architecture(vmi, config) == "arm64" {
		o.add("firmware flash", 128*mi, "spec.architecture")
	}
	deviceOverhead(&o, vmi)
	probeOverhead(&o, vmi)
	switch {
	case vmi.IsCPUDedicated():
		o.add("guaranteed quality of service", 100*mi, "spec.domain.cpu.dedicatedCpuPlacement")
	case vmi.WantsToHaveQOSGuaranteed():
		o.add("guaranteed quality of service", 100*mi, "spec.domain.resources")
	}
	if m := domain.Memory; m != nil && m.ReservedOverhead != nil && m.ReservedOverhead.AddedOverhead != nil {
		o.add("reserved", boundedBytes(m.ReservedOverhead.AddedOverhead), fieldReserved)
	}
	o.add("additional ratio", additionalOverhead(o.Bytes, config.AdditionalGuestMemoryOverheadRatio), fieldOverheadRatio)
	for _, calculator := range more {
		for _, t := range calculator.Overhead(in) {
			o.add(t.Name, wholeBytes(t.Amount), t.From)
		}
	}
	return o
}

// additionalOverhead returns the share of a ratio. Kilobytes are rounded up before scaling and the product is truncated, as
// in KubeVirt.
func additionalOverhead(bytes int64, ratio string) int64 {
	if ratio == "" {
		return 0
	}
	f, err := strconv.ParseFloat(ratio, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0
	}
	kilos := float64(ceilKilo(bytes)) * (f - 1)
	return int64(max(-maxBytes/1000, min(kilos, maxBytes/1000))) * 1000
}

func deviceOverhead(o *Overhead, vmi *v1.VirtualMachineInstance) {
	devices := &vmi.Spec.Domain.Devices
	vfio := len(devices.GPUs)+len(devices.HostDevices) > 0 // from device plugins or claims
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

// pageTables returns one byte per 512 of the requested memory, which is first rounded up to kilobytes. A VMI without a
// memory request counts as zero; node agents rely on that.
func pageTables(vmi *v1.VirtualMachineInstance) int64 {
	return ceilKilo(boundedBytes(vmi.Spec.Domain.Resources.Requests.Memory())) * 1000 / 512
}

func ceilKilo(bytes int64) int64 { return (bytes + 999) / 1000 }

// boundedBytes returns a size in bytes, rounded up, of at most maxBytes.
func boundedBytes(q *resource.Quantity) int64 {
	if q.CmpInt64(maxBytes) > 0 {
		return maxBytes
	}
	return q.Value()
}

// wholeBytes is boundedBytes for amounts that may be negative.
func wholeBytes(q resource.Quantity) int64 {
	if q.Sign() >= 0 {
		return boundedBytes(&q)
	}
	positive := q.DeepCopy()
	positive.Neg()
	return -boundedBytes(&positive)
}

func overheadCPUs(vmi *v1.VirtualMachineInstance) int64 {
	asked := func(q *resource.Quantity) int64 {
		if q.CmpInt64(maxCPUs) > 0 {
			return maxCPUs
		}
		return q.Value()
	}
	resources := &vmi.Spec.Domain.Resources
	switch {
	case vmi.Spec.Domain.CPU != nil:
		return max(vCPUs(vmi.Spec.Domain.CPU), 1)
	case !resources.Limits.Cpu().IsZero():
		return max(asked(resources.Limits.Cpu()), 1)
	default:
		return max(asked(resources.Requests.Cpu()), 1)
	}
}

func architecture(vmi *v1.VirtualMachineInstance, config *Config) string {
	if vmi.Spec.Architecture != "" {
		return vmi.Spec.Architecture
	}
	return config.ClusterArchitecture
}

func bytesTerm(name string, n int64, from string) render.Term {
	return render.Term{Name: name, Amount: *resource.NewQuantity(n, resource.BinarySI), From: from}
}
