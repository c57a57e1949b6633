// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"slices"

	v1 "kubevirt.io/api/core/v1"
)

// requestVolumes carries out the requests to add and remove volumes: in the template, and in a VMI that runs. The
// VMI is patched before the template is stored, so that a request is not over before both are.
func requestVolumes(d *decision) {
	for _, r := range d.VM.Status.VolumeRequests {
		ApplyVolumeRequest(&d.plan.VM.Spec.Template.Spec, r)
		if running(d.vmi) {
			ApplyVolumeRequest(&d.next.Spec, r)
		}
	}
}

// ApplyVolumeRequest adds a volume to a spec, or removes one, as a request in the status of a VM asks for. What is done already is
// left as it is.
func ApplyVolumeRequest(spec *v1.VirtualMachineInstanceSpec, r v1.VirtualMachineVolumeRequest) {
	switch {
	case r.AddVolumeOptions != nil && !hasVolume(spec, r.AddVolumeOptions.Name):
		addVolume(spec, r.AddVolumeOptions.DeepCopy())
	case r.RemoveVolumeOptions != nil:
		name := r.RemoveVolumeOptions.Name
		spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
		disks := &spec.Domain.Devices.Disks
		*disks = slices.DeleteFunc(*disks, func(disk v1.Disk) bool { return disk.Name == name })
	}
}

// addVolume adds a hotpluggable volume and its disk.
func addVolume(spec *v1.VirtualMachineInstanceSpec, o *v1.AddVolumeOptions) {
	volume := v1.Volume{Name: o.Name}
	switch s := o.VolumeSource; {
	case s == nil || o.Disk == nil:
		return
	case s.PersistentVolumeClaim != nil:
		volume.PersistentVolumeClaim = s.PersistentVolumeClaim
		volume.PersistentVolumeClaim.Hotpluggable = true
	case s.DataVolume != nil:
		volume.DataVolume = s.DataVolume
		volume.DataVolume.Hotpluggable = true
	default:
		return
	}
	disk := *o.Disk
	disk.Name = o.Name
	spec.Volumes = append(spec.Volumes, volume)
	if !hasDisk(spec, o.Name) {
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, disk)
	}
}

func hasVolume(spec *v1.VirtualMachineInstanceSpec, name string) bool {
	return slices.ContainsFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
}

func hasDisk(spec *v1.VirtualMachineInstanceSpec, name string) bool {
	return slices.ContainsFunc(spec.Domain.Devices.Disks, func(d v1.Disk) bool { return d.Name == name })
}

// openVolumeRequests returns the requests that the stored template does not satisfy yet.
func openVolumeRequests(all []v1.VirtualMachineVolumeRequest, template *v1.VirtualMachineInstanceTemplateSpec) []v1.VirtualMachineVolumeRequest {
	if template == nil {
		return all
	}
	spec := &template.Spec
	return slices.DeleteFunc(all, func(r v1.VirtualMachineVolumeRequest) bool {
		switch {
		case r.AddVolumeOptions != nil:
			return hasVolume(spec, r.AddVolumeOptions.Name) && hasDisk(spec, r.AddVolumeOptions.Name)
		case r.RemoveVolumeOptions != nil:
			return !hasVolume(spec, r.RemoveVolumeOptions.Name) && !hasDisk(spec, r.RemoveVolumeOptions.Name)
		default:
			return true
		}
	})
}
