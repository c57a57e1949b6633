// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"cmp"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

const (
	// hotplugRatio is the default ratio of maximum to initial size.
	hotplugRatio = 4
	// maxHotplugCPUs limits the default headroom for CPUs.
	maxHotplugCPUs = 512
	// memoryBlock is the unit of memory hotplug; VMIs with huge pages of 1Gi use that size.
	memoryBlock, largeMemoryBlock = 2 << 20, 1 << 30
)

// defaultLiveUpdate reserves headroom for hotplugged CPUs and memory. arm64 supports no hotplug.
func defaultLiveUpdate(d *defaulting) {
	if d.config.NoLiveUpdate || d.arch == vmidefaults.ARM64 {
		return
	}
	room := d.config.LiveUpdate
	if room == nil {
		room = &v1.LiveUpdateConfiguration{}
	}
	ratio := cmp.Or(room.MaxHotplugRatio, hotplugRatio)
	if cpu := d.spec.Domain.CPU; cpu.MaxSockets == 0 {
		cpu.MaxSockets = maxSockets(cpu, room.MaxCpuSockets, ratio)
	}
	if m := d.spec.Domain.Memory; m != nil && m.MaxGuest == nil {
		m.MaxGuest = maxGuest(d.spec, room.MaxGuest, ratio)
	}
}

// maxSockets returns the cluster's maximum, otherwise the ratio up to the limit; never less than the VMI has. A VMI whose
// CPUs are cores or threads only has no sockets to add, unless the cluster sets a maximum.
func maxSockets(cpu *v1.CPU, cluster *uint32, ratio uint32) uint32 {
	if cluster != nil && *cluster > 0 {
		return max(*cluster, cpu.Sockets)
	}
	perSocket := uint64(max(cpu.Cores, 1)) * uint64(max(cpu.Threads, 1))
	most := min(uint64(cpu.Sockets)*uint64(ratio), maxHotplugCPUs/perSocket)
	return max(uint32(most), cpu.Sockets)
}

// maxGuest returns the cluster's maximum, otherwise the ratio; nil if the VMI does not support memory hotplug.
func maxGuest(spec *v1.VirtualMachineInstanceSpec, cluster *resource.Quantity, ratio uint32) *resource.Quantity {
	guest := spec.Domain.Memory.Guest
	if guest == nil || guest.Sign() <= 0 || !supportsMemoryHotplug(spec) {
		return nil
	}
	var most *resource.Quantity
	switch bytes := guest.Value(); {
	case cluster != nil:
		copied := cluster.DeepCopy()
		most = &copied
	case bytes > math.MaxInt64/int64(ratio):
		return nil
	default:
		most = resource.NewQuantity(bytes*int64(ratio), resource.BinarySI)
	}
	block := int64(memoryBlock)
	if h := spec.Domain.Memory.Hugepages; h != nil && h.PageSize == "1Gi" {
		block = largeMemoryBlock
	}
	if guest.Cmp(*most) > 0 || guest.Value()%block != 0 || most.Value()%block != 0 {
		return nil
	}
	return most
}

// supportsMemoryHotplug reports whether the VMI supports memory hotplug.
func supportsMemoryHotplug(spec *v1.VirtualMachineInstanceSpec) bool {
	cpu := spec.Domain.CPU
	mapped := cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil
	return spec.Architecture == vmidefaults.AMD64 && cpu.Realtime == nil && !mapped && spec.Domain.LaunchSecurity == nil
}
