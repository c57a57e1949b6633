// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

const (
	// ReasonVCPUHotplugFailed is the reason of the condition HotVCPUChange while CPUs
	// cannot be plugged. The condition stays True, since the change is still due.
	ReasonVCPUHotplugFailed = "VCPUHotplugFailed"
	// ReasonMemoryHotplugFailed is that of HotMemoryChange, which is False then: it is
	// KubeVirt's, spaces included.
	ReasonMemoryHotplugFailed = "Memory Hotplug Failed"
)

// vcpuStatus reflects how many CPUs the guest has, and how a change of them goes.
func vcpuStatus(vmi *v1.VirtualMachineInstance, o Observation, now time.Time) {
	live := o.live()
	if live.VCPU == nil {
		return
	}
	have := plugged(live.VCPU)
	if t := currentTopology(live); t != nil && (vmi.Spec.Domain.CPU != nil || vmi.Status.CurrentCPUTopology != nil) {
		vmi.Status.CurrentCPUTopology = t
	}
	for _, t := range o.Troubles {
		if t.Task.Operation.Verb == SetVCPUs {
			setTrue(vmi, v1.VirtualMachineInstanceVCPUChange, ReasonVCPUHotplugFailed, t.String(), now)
			return
		}
	}
	if uint64(have) == topologyOf(&vmi.Spec.Domain).count() {
		vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceVCPUChange)
	}
}

// currentTopology is that of the plugged CPUs; nil if it is not known.
func currentTopology(live *libvirtxml.Domain) *v1.CPUTopology {
	if live.CPU == nil || live.CPU.Topology == nil {
		return nil
	}
	cores, threads := uint32(max(live.CPU.Topology.Cores, 1)), uint32(max(live.CPU.Topology.Threads, 1))
	perSocket := cores * threads
	return &v1.CPUTopology{Cores: cores, Threads: threads, Sockets: max((uint32(plugged(live.VCPU))+perSocket-1)/perSocket, 1)}
}

// memoryStatus reflects how much memory the guest has, and has been given, and how
// a change of it goes.
func memoryStatus(vmi *v1.VirtualMachineInstance, o Observation, now time.Time) {
	live := o.live()
	if c := live.CurrentMemory; c != nil {
		m := memoryOf(vmi)
		m.GuestCurrent = sameQuantity(m.GuestCurrent, bytesOf(c.Value, c.Unit))
	}
	given, want := givenMemory(live), wantedMemory(vmi)
	if given >= want && given-want < 1<<20 {
		given = want // QEMU rounds up to whole mebibytes
	}
	status := vmi.Status.Memory
	plugged := live.Devices != nil && len(live.Devices.Memorydevs) > 0
	if given > 0 && (plugged || status != nil && status.GuestRequested != nil) {
		m := memoryOf(vmi)
		m.GuestRequested = sameQuantity(m.GuestRequested, given)
	}
	if t, failed := memoryTrouble(o.Troubles); failed {
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

// memoryTrouble is the first about a memory device.
func memoryTrouble(all []Trouble) (Trouble, bool) {
	for _, t := range all {
		if _, ok := t.Task.Operation.Device.(*libvirtxml.DomainMemorydev); ok {
			return t, true
		}
	}
	return Trouble{}, false
}

// wantedMemory is what the spec asks for in bytes; 0 if it does not say.
func wantedMemory(vmi *v1.VirtualMachineInstance) uint64 {
	want, _ := guestMemory(&Conversion{VMI: vmi})
	if want == nil {
		return 0
	}
	return uint64(max(want.Value(), 0))
}

// givenMemory is how much the guest was started with and has been asked to take
// since, in bytes: of a device that grows what was requested counts, not its room.
func givenMemory(live *libvirtxml.Domain) uint64 {
	if live.Memory == nil {
		return 0
	}
	given := bytesOf(live.Memory.Value, live.Memory.Unit)
	if live.Devices == nil {
		return given
	}
	for i := range live.Devices.Memorydevs {
		t := live.Devices.Memorydevs[i].Target
		if t == nil || t.Size == nil || t.Requested == nil {
			continue
		}
		given -= min(given, bytesOf(t.Size.Value, t.Size.Unit))
		given += bytesOf(t.Requested.Value, t.Requested.Unit)
	}
	return given
}

func memoryOf(vmi *v1.VirtualMachineInstance) *v1.MemoryStatus {
	if vmi.Status.Memory == nil {
		vmi.Status.Memory = &v1.MemoryStatus{}
	}
	return vmi.Status.Memory
}

// sameQuantity is that amount; the one there was if it is the same, however written.
func sameQuantity(was *resource.Quantity, bytes uint64) *resource.Quantity {
	q := resource.NewQuantity(int64(min(bytes, 1<<63-1)), resource.BinarySI)
	if was != nil && was.Cmp(*q) == 0 {
		return was
	}
	return q
}
