// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/handoff"
)

// ClaimsAt returns the guest with the claims that its volumes have on the node. While a
// migration replaces volumes (status.migratedVolumes) they differ: the node that the
// guest comes to has the destinations, also before it has said that the guest is
// complete there, and every other node the sources, whatever the spec names. Without
// such volumes it is the object itself, which is never changed. The error is that of
// [handoff.Of].
func ClaimsAt(vmi *v1.VirtualMachineInstance, node string) (*v1.VirtualMachineInstance, error) {
	if len(vmi.Status.MigratedVolumes) == 0 {
		return vmi, nil
	}
	lease, err := handoff.Of(vmi)
	if err != nil {
		return nil, err
	}
	role := RoleOf(lease, node)
	if role == RoleTarget || role == RoleHolder && lease.State == handoff.Arrived {
		return withClaims(vmi, func(m v1.StorageMigratedVolumeInfo) *v1.PersistentVolumeClaimInfo { return m.DestinationPVCInfo }), nil
	}
	return withClaims(vmi, func(m v1.StorageMigratedVolumeInfo) *v1.PersistentVolumeClaimInfo { return m.SourcePVCInfo }), nil
}

// ForTarget returns the guest with the claims that its volumes have at the target of its
// migration; see [ClaimsAt].
func ForTarget(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
	return withClaims(vmi, func(m v1.StorageMigratedVolumeInfo) *v1.PersistentVolumeClaimInfo { return m.DestinationPVCInfo })
}

// withClaims gives the volumes that are being replaced the claims that pick chooses.
func withClaims(vmi *v1.VirtualMachineInstance, pick func(v1.StorageMigratedVolumeInfo) *v1.PersistentVolumeClaimInfo) *v1.VirtualMachineInstance {
	out := vmi.DeepCopy()
	for _, m := range out.Status.MigratedVolumes {
		claim := pick(m)
		if claim == nil || claim.ClaimName == "" {
			continue
		}
		for i := range out.Spec.Volumes {
			switch v := &out.Spec.Volumes[i]; {
			case v.Name != m.VolumeName:
			case v.PersistentVolumeClaim != nil:
				v.PersistentVolumeClaim.ClaimName = claim.ClaimName
			case v.DataVolume != nil:
				v.DataVolume.Name = claim.ClaimName
			}
		}
		for i := range out.Status.VolumeStatus {
			if s := &out.Status.VolumeStatus[i]; s.Name == m.VolumeName {
				s.PersistentVolumeClaimInfo = claim.DeepCopy()
			}
		}
	}
	return out
}

// migrates tells whether the guest's migration replaces the volume.
func migrates(vmi *v1.VirtualMachineInstance, volume string) bool {
	return vmi != nil && slices.ContainsFunc(vmi.Status.MigratedVolumes, func(m v1.StorageMigratedVolumeInfo) bool { return m.VolumeName == volume })
}

// ReplaceVolumes returns the running domain as it shall be at the target of a migration
// that replaces volumes: they lie where to says, by the name of the volume, and end,
// whatever there is room for, where the guest takes them to end; bytes tells where that
// is, 0 if it is not known. Nothing else differs and live is not changed. Without such
// volumes it is nil. The error names the field of a volume whose place is not known.
func ReplaceVolumes(
	vmi *v1.VirtualMachineInstance, live *libvirtxml.Domain, to map[string]DiskSource, bytes func(volume string) int64,
) (*libvirtxml.Domain, error) {
	if vmi == nil || len(vmi.Status.MigratedVolumes) == 0 || live == nil || live.Devices == nil {
		return nil, nil
	}
	out, devices := *live, *live.Devices
	out.Devices, devices.Disks = &devices, slices.Clone(devices.Disks)
	for i := range devices.Disks {
		disk := &devices.Disks[i]
		name := nameOf(disk.Alias)
		if !migrates(vmi, name) || disk.Source == nil {
			continue
		}
		src, known := to[name]
		if !known {
			return nil, &Error{
				Object: "VirtualMachineInstance " + vmi.Namespace + "/" + vmi.Name, Field: fmt.Sprintf("status.migratedVolumes[%s].destinationPVCInfo", name),
				Reason: "it is not known where the claim lies at the target", Remedy: "bind the claim to a volume that the target reaches", Err: ErrNotFound,
			}
		}
		disk.Source = replaced(disk.Source, src, bytes(name))
	}
	return &out, nil
}

// replaced is the source of a disk, at another place.
func replaced(old *libvirtxml.DomainDiskSource, at DiskSource, bytes int64) *libvirtxml.DomainDiskSource {
	src := *old
	src.File, src.Block, src.Index, src.Slices = nil, nil, 0, nil
	if at.Block {
		src.Block = &libvirtxml.DomainDiskSourceBlock{Dev: at.Path}
	} else {
		src.File = &libvirtxml.DomainDiskSourceFile{File: at.Path}
	}
	if bytes > 0 {
		// A device has the size it has, and a file may have been made larger.
		src.Slices = &libvirtxml.DomainDiskSlices{Slices: []libvirtxml.DomainDiskSlice{{Type: "storage", Size: uint(bytes)}}}
	}
	return &src
}
