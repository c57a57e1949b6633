// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
	"github.com/virtloom/virtloom/handoff"
)

// ClaimsAt returns a copy of the VMI with the claims that its volumes have on the node. While
// a migration replaces volumes (status.migratedVolumes) they differ: the target has the
// destination claims, until the migration is complete, and every other node the source
// claims, whatever the spec names. Without such volumes it returns vmi itself, which is never
// changed. The error is that of [handoff.Of].
func ClaimsAt(vmi *v1.VirtualMachineInstance, node string) (*v1.VirtualMachineInstance, error) {
	if len(vmi.Status.MigratedVolumes) == 0 {
		return vmi, nil
	}
	lease, err := handoff.Of(vmi)
	if err != nil {
		return nil, err
	}
	role := handoff.RoleOf(lease, node)
	if role == handoff.RoleTarget || role == handoff.RoleHolder && lease.State == handoff.Arrived {
		return withClaims(vmi, func(m v1.StorageMigratedVolumeInfo) *v1.PersistentVolumeClaimInfo { return m.DestinationPVCInfo }), nil
	}
	return withClaims(vmi, func(m v1.StorageMigratedVolumeInfo) *v1.PersistentVolumeClaimInfo { return m.SourcePVCInfo }), nil
}

// withClaims returns a copy in which the replaced volumes have the claims that pick returns.
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

// migrates reports whether the VMI's migration replaces the volume.
func migrates(vmi *v1.VirtualMachineInstance, volume string) bool {
	return vmi != nil && slices.ContainsFunc(vmi.Status.MigratedVolumes, func(m v1.StorageMigratedVolumeInfo) bool { return m.VolumeName == volume })
}

// ReplaceVolumes returns the definition of the running domain at the target of a migration
// that replaces volumes: their sources are those in to, by the name of the volume, limited to
// the size that the guest knows; bytes returns that size, 0 if unknown. Nothing else differs,
// and live is not changed. Without such volumes it returns nil. The error is an
// [*convert.Error] with the field of a volume that is missing in to.
func ReplaceVolumes(
	vmi *v1.VirtualMachineInstance, live *libvirtxml.Domain, to map[string]convert.DiskSource, bytes func(volume string) int64,
) (*libvirtxml.Domain, error) {
	if vmi == nil || len(vmi.Status.MigratedVolumes) == 0 || live == nil || live.Devices == nil {
		return nil, nil
	}
	out, devices := *live, *live.Devices
	out.Devices, devices.Disks = &devices, slices.Clone(devices.Disks)
	for i := range devices.Disks {
		disk := &devices.Disks[i]
		name := xmlspec.NameOf(disk.Alias)
		if !migrates(vmi, name) || disk.Source == nil {
			continue
		}
		src, known := to[name]
		if !known {
			return nil, &convert.Error{
				Object: "VirtualMachineInstance " + vmi.Namespace + "/" + vmi.Name, Field: fmt.Sprintf("status.migratedVolumes[%s].destinationPVCInfo", name),
				Reason: "path of the claim at the target is unknown", Remedy: "bind the claim to a volume that the target node can access", Err: domain.ErrNotFound,
			}
		}
		disk.Source = replaced(disk.Source, src, bytes(name))
	}
	return &out, nil
}

// replaced returns the source of a disk at another path.
func replaced(old *libvirtxml.DomainDiskSource, at convert.DiskSource, bytes int64) *libvirtxml.DomainDiskSource {
	src := *old
	src.File, src.Block, src.Index, src.Slices = nil, nil, 0, nil
	if at.Block {
		src.Block = &libvirtxml.DomainDiskSourceBlock{Dev: at.Path}
	} else {
		src.File = &libvirtxml.DomainDiskSourceFile{File: at.Path}
	}
	if bytes > 0 {
		// The device or file may be larger than the disk.
		src.Slices = &libvirtxml.DomainDiskSlices{Slices: []libvirtxml.DomainDiskSlice{{Type: "storage", Size: uint(bytes)}}}
	}
	return &src
}
