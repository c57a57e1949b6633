// SPDX-License-Identifier: Apache-2.0

package status

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

const (
	// reasonVCPUHotplugFailed is the reason of the condition HotVCPUChange while CPUs cannot
	// be hotplugged. The condition stays True, since the change is still due.
	reasonVCPUHotplugFailed = "VCPUHotplugFailed"
	// ReasonMemoryHotplugFailed is the reason of the condition HotMemoryChange when memory
	// cannot be hotplugged; the condition is False then. It is KubeVirt's, including the
	// spaces.
	ReasonMemoryHotplugFailed = "Memory Hotplug Failed"
)

// vcpuStatus reflects the number of CPUs, and the state of a change of it.
func vcpuStatus(vmi *v1.VirtualMachineInstance, o Observation, now time.Time) {
	live := o.live()
	if live.VCPU == nil {
		return
	}
	have := xmlspec.PluggedCPUs(live.VCPU)
	if t := currentTopology(live); t != nil && (vmi.Spec.Domain.CPU != nil || vmi.Status.CurrentCPUTopology != nil) {
		vmi.Status.CurrentCPUTopology = t
	}
	for _, t := range o.Failures {
		if t.Action.Operation.Verb == domain.SetVCPUs {
			setTrue(vmi, v1.VirtualMachineInstanceVCPUChange, reasonVCPUHotplugFailed, t.String(), now)
			return
		}
	}
	if uint64(have) == xmlspec.TopologyOf(&vmi.Spec.Domain).Count() {
		vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceVCPUChange)
	}
}

// currentTopology returns the topology of the present CPUs; nil if unknown.
func currentTopology(live *libvirtxml.Domain) *v1.CPUTopology {
	if live.CPU == nil || live.CPU.Topology == nil {
		return nil
	}
	cores, threads := uint32(max(live.CPU.Topology.Cores, 1)), uint32(max(live.CPU.Topology.Threads, 1))
	perSocket := cores * threads
	return &v1.CPUTopology{Cores: cores, Threads: threads, Sockets: max((uint32(xmlspec.PluggedCPUs(live.VCPU))+perSocket-1)/perSocket, 1)}
}

// memoryStatus reflects the present and the requested amount of memory, and the state of a
// change of it.
func memoryStatus(vmi *v1.VirtualMachineInstance, o Observation, now time.Time) {
	live := o.live()
	if c := live.CurrentMemory; c != nil {
		m := MemoryOf(vmi)
		m.GuestCurrent = sameQuantity(m.GuestCurrent, xmlspec.BytesOf(c.Value, c.Unit))
	}
	given, want := givenMemory(live), wantedMemory(vmi)
	if given >= want && given-want < 1<<20 {
		given = want // QEMU rounds up to whole mebibytes
	}
	status := vmi.Status.Memory
	plugged := live.Devices != nil && len(live.Devices.Memorydevs) > 0
	if given > 0 && (plugged || status != nil && status.GuestRequested != nil) {
		m := MemoryOf(vmi)
		m.GuestRequested = sameQuantity(m.GuestRequested, given)
	}
	if t, failed := memoryFailure(o.Failures); failed {
		vmistatus.SetCondition(vmi, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstanceMemoryChange, Status: corev1.ConditionFalse,
			Reason: ReasonMemoryHotplugFailed, Message: t.String(),
		}, now)
		return
	}
	if want > 0 && given == want {
		vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceMemoryChange)
	}
}

// memoryFailure returns the first failure about a memory device.
func memoryFailure(all []action.Failure) (action.Failure, bool) {
	for _, t := range all {
		if _, ok := t.Action.Operation.Device.(*libvirtxml.DomainMemorydev); ok {
			return t, true
		}
	}
	return action.Failure{}, false
}

// wantedMemory returns the memory in the spec in bytes; 0 if it is not set.
func wantedMemory(vmi *v1.VirtualMachineInstance) uint64 {
	want, _ := xmlspec.GuestMemory(vmi)
	if want == nil {
		return 0
	}
	return uint64(max(want.Value(), 0))
}

// givenMemory returns the memory at the start and the memory requested since, in bytes. Of a
// device that grows the requested size counts, not the maximum.
func givenMemory(live *libvirtxml.Domain) uint64 {
	if live.Memory == nil {
		return 0
	}
	given := xmlspec.BytesOf(live.Memory.Value, live.Memory.Unit)
	if live.Devices == nil {
		return given
	}
	for i := range live.Devices.Memorydevs {
		t := live.Devices.Memorydevs[i].Target
		if t == nil || t.Size == nil || t.Requested == nil {
			continue
		}
		given -= min(given, xmlspec.BytesOf(t.Size.Value, t.Size.Unit))
		given += xmlspec.BytesOf(t.Requested.Value, t.Requested.Unit)
	}
	return given
}

// MemoryOf returns status.memory, which it creates if it is nil.
func MemoryOf(vmi *v1.VirtualMachineInstance) *v1.MemoryStatus {
	if vmi.Status.Memory == nil {
		vmi.Status.Memory = &v1.MemoryStatus{}
	}
	return vmi.Status.Memory
}

// sameQuantity returns a quantity of that many bytes; was if it is equal, to keep its format.
func sameQuantity(was *resource.Quantity, bytes uint64) *resource.Quantity {
	q := resource.NewQuantity(int64(min(bytes, 1<<63-1)), resource.BinarySI)
	if was != nil && was.Cmp(*q) == 0 {
		return was
	}
	return q
}
