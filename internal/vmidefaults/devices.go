// SPDX-License-Identifier: Apache-2.0

package vmidefaults

import (
	"cmp"

	v1 "kubevirt.io/api/core/v1"
)

// WantsPodNetwork reports whether a VMI gets the Pod network by default.
func WantsPodNetwork(spec *v1.VirtualMachineInstanceSpec) bool {
	auto := spec.Domain.Devices.AutoattachPodInterface
	return len(spec.Networks)+len(spec.Domain.Devices.Interfaces) == 0 && (auto == nil || *auto)
}

// IsBridge reports whether an interface has the bridge binding, which is the default.
func IsBridge(i *v1.Interface) bool {
	other := i.Masquerade != nil || i.SRIOV != nil || i.PasstBinding != nil || i.Binding != nil ||
		i.DeprecatedSlirp != nil || i.DeprecatedMacvtap != nil || i.DeprecatedPasst != nil
	return i.Bridge != nil || !other
}

// MetricsVolumes returns the names of downwardMetrics volumes.
func MetricsVolumes(spec *v1.VirtualMachineInstanceSpec) map[string]bool {
	metrics := map[string]bool{}
	for i := range spec.Volumes {
		if spec.Volumes[i].DownwardMetrics != nil {
			metrics[spec.Volumes[i].Name] = true
		}
	}
	return metrics
}

// BusOf returns the bus of a disk, set or by default.
func BusOf(disk *v1.Disk, arch string, metrics bool) v1.DiskBus {
	usual := TraitsOf(arch).DiskBus
	switch {
	case disk.LUN != nil:
		return cmp.Or(disk.LUN.Bus, v1.DiskBusSCSI) // LUNs pass SCSI commands through
	case disk.CDRom != nil:
		return cmp.Or(disk.CDRom.Bus, usual)
	case metrics:
		usual = v1.DiskBusVirtio // the guest expects them on no other bus
	}
	if disk.Disk != nil {
		return cmp.Or(disk.Disk.Bus, usual)
	}
	return usual
}

// Hotpluggable reports whether a volume supports hotplug.
func Hotpluggable(v *v1.Volume) bool {
	return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.Hotpluggable || v.DataVolume != nil && v.DataVolume.Hotpluggable || v.MemoryDump != nil
}
