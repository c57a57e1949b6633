// SPDX-License-Identifier: Apache-2.0

// Package restart decides whether a change of the template of a VirtualMachine reaches its running
// VirtualMachineInstance only by a restart.
//
// It compares two effective specs, those after instance type and preference are applied: the one that the VMI was started
// with, and the current one. What can be changed live does not count. Intentional difference from KubeVirt: networks and
// interfaces count, because nothing changes them live here yet.
package restart

import (
	"k8s.io/apimachinery/pkg/api/equality"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

// Message is that of condition RestartRequired for a change that [Required] reports.
const Message = "a non-live-updatable field was changed in the template spec"

// Rollout is how changes reach a VMI.
type Rollout struct {
	// Stage is true if they wait for a restart. (KubeVirt: vmRolloutStrategy)
	Stage bool
	// MigrateVolumes is true if volumes are replaced by migration. (KubeVirt: updateVolumesStrategy)
	MigrateVolumes bool
	// SameUUID is true if the VMI has the firmware UUID of the VM.
	SameUUID bool
}

// Required reports whether the current spec differs from the started one in a field that needs a restart.
func Required(started, current *v1.VirtualMachineInstanceSpec, r Rollout) bool {
	old := started.DeepCopy()
	if volumesLive(old.Volumes, current.Volumes, r.MigrateVolumes) && disksLive(old, current) {
		old.Volumes, old.Domain.Devices.Disks = current.Volumes, current.Domain.Devices.Disks
	}
	if !r.Stage {
		takeLive(old, current)
	}
	if r.SameUUID && current.Domain.Firmware != nil {
		if old.Domain.Firmware == nil {
			old.Domain.Firmware = &v1.Firmware{}
		}
		old.Domain.Firmware.UUID = current.Domain.Firmware.UUID
	}
	return !equality.Semantic.DeepEqual(old, current)
}

// takeLive overwrites the fields that a running VMI follows.
func takeLive(old, current *v1.VirtualMachineInstanceSpec) {
	if old.Domain.CPU != nil && current.Domain.CPU != nil {
		old.Domain.CPU.Sockets = current.Domain.CPU.Sockets
	}
	if m := current.Domain.Memory; m != nil && m.Guest != nil {
		if old.Domain.Memory == nil {
			old.Domain.Memory = &v1.Memory{}
		}
		old.Domain.Memory.Guest = m.Guest
	}
	old.NodeSelector, old.Affinity, old.Tolerations = current.NodeSelector, current.Affinity, current.Tolerations
}

// byName indexes a list by names.
func byName[T any](list []T, name func(*T) string) map[string]*T {
	index := make(map[string]*T, len(list))
	for i := range list {
		index[name(&list[i])] = &list[i]
	}
	return index
}

func volumeName(v *v1.Volume) string { return v.Name }
func diskName(d *v1.Disk) string     { return d.Name }

// volumesLive reports whether all changes of volumes can be made live.
func volumesLive(old, current []v1.Volume, migrate bool) bool {
	was, is := byName(old, volumeName), byName(current, volumeName)
	for name, v := range is {
		before := was[name]
		claimed := v.PersistentVolumeClaim != nil || v.DataVolume != nil
		switch {
		case vmidefaults.Hotpluggable(v):
		case before == nil:
			return false
		case !equality.Semantic.DeepEqual(before, v) && (!migrate || !claimed):
			return false
		}
	}
	for name, v := range was {
		if is[name] == nil && !vmidefaults.Hotpluggable(v) {
			return false
		}
	}
	return true
}

// disksLive reports whether all changes of disks can be made live. A tray of a CD-ROM is never removed.
func disksLive(old, current *v1.VirtualMachineInstanceSpec) bool {
	was, is := byName(old.Domain.Devices.Disks, diskName), byName(current.Domain.Devices.Disks, diskName)
	volumes, before := byName(current.Volumes, volumeName), byName(old.Volumes, volumeName)
	for name, d := range is {
		hot := volumes[name] != nil && vmidefaults.Hotpluggable(volumes[name])
		if !hot && (was[name] == nil || !equality.Semantic.DeepEqual(was[name], d)) {
			return false
		}
	}
	for name, d := range was {
		hot := before[name] != nil && vmidefaults.Hotpluggable(before[name])
		if is[name] == nil && (!hot || d.CDRom != nil) {
			return false
		}
	}
	return true
}
