// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
)

// Checksums are those of the files that a VMI has from images, CRC-32 (IEEE) as in KubeVirt. Zero is unknown.
type Checksums struct {
	// Disks are those of containerDisks, by the name of the volume.
	Disks map[string]uint32
	// Kernel and Initrd are those of spec.domain.firmware.kernelBoot.
	Kernel, Initrd uint32
}

// ChecksumsOf returns the checksums in the status of the VMI.
func ChecksumsOf(vmi *v1.VirtualMachineInstance) Checksums {
	c := Checksums{Disks: map[string]uint32{}}
	for i := range vmi.Status.VolumeStatus {
		if s := &vmi.Status.VolumeStatus[i]; s.ContainerDiskVolume != nil {
			c.Disks[s.Name] = s.ContainerDiskVolume.Checksum
		}
	}
	if b := vmi.Status.KernelBootStatus; b != nil {
		if b.KernelInfo != nil {
			c.Kernel = b.KernelInfo.Checksum
		}
		if b.InitrdInfo != nil {
			c.Initrd = b.InitrdInfo.Checksum
		}
	}
	return c
}

// summed is a file of an image, with a checksum of it.
type summed struct {
	field string
	sum   uint32
}

// files returns the files that the VMI has from images, with their checksums.
func (c Checksums) files(vmi *v1.VirtualMachineInstance) []summed {
	var out []summed
	for i := range vmi.Spec.Volumes {
		if v := &vmi.Spec.Volumes[i]; v.ContainerDisk != nil {
			out = append(out, summed{fmt.Sprintf("spec.volumes[%d].containerDisk.image", i), c.Disks[v.Name]})
		}
	}
	if b := kernelImage(vmi); b != nil {
		const field = "spec.domain.firmware.kernelBoot.container."
		if b.KernelPath != "" {
			out = append(out, summed{field + "kernelPath", c.Kernel})
		}
		if b.InitrdPath != "" {
			out = append(out, summed{field + "initrdPath", c.Initrd})
		}
	}
	return out
}

func kernelImage(vmi *v1.VirtualMachineInstance) *v1.KernelBootContainer {
	if f := vmi.Spec.Domain.Firmware; f != nil && f.KernelBoot != nil {
		return f.KernelBoot.Container
	}
	return nil
}

// Known returns how many files the VMI has from images, and of how many of them the checksum is known.
func (c Checksums) Known(vmi *v1.VirtualMachineInstance) (files, known int) {
	all := c.files(vmi)
	for _, f := range all {
		if f.sum != 0 {
			known++
		}
	}
	return len(all), known
}

// Verify returns an error if a file on the node is not the one with which the guest runs, by the checksums in the VMI's status. One
// that is unknown on either side proves nothing: the image's digest, with which the Pod was created, has to do.
func (c Checksums) Verify(vmi *v1.VirtualMachineInstance, node string) error {
	runs := ChecksumsOf(vmi).files(vmi)
	for i, here := range c.files(vmi) {
		if here.sum == 0 || runs[i].sum == 0 || here.sum == runs[i].sum {
			continue
		}
		return &convert.Error{
			Object: "VirtualMachineInstance " + vmi.Namespace + "/" + vmi.Name, Field: here.field,
			Reason: fmt.Sprintf("the image on node %s has checksum %d, but the VMI runs with %d", node, here.sum, runs[i].sum),
			Remedy: "name the image by its digest, and check the node's images", Err: domain.ErrInvalid,
		}
	}
	return nil
}

// checksumStatus stores the checksums that the status does not have yet: that of a start holds for the life of the VMI.
func checksumStatus(vmi *v1.VirtualMachineInstance, c Checksums) {
	for i := range vmi.Status.VolumeStatus {
		s := &vmi.Status.VolumeStatus[i]
		if sum := c.Disks[s.Name]; sum != 0 && (s.ContainerDiskVolume == nil || s.ContainerDiskVolume.Checksum == 0) {
			s.ContainerDiskVolume = &v1.ContainerDiskInfo{Checksum: sum}
		}
	}
	known := ChecksumsOf(vmi)
	kernel, initrd := c.Kernel != 0 && known.Kernel == 0, c.Initrd != 0 && known.Initrd == 0
	if (kernel || initrd) && vmi.Status.KernelBootStatus == nil {
		vmi.Status.KernelBootStatus = &v1.KernelBootStatus{}
	}
	if kernel {
		vmi.Status.KernelBootStatus.KernelInfo = &v1.KernelInfo{Checksum: c.Kernel}
	}
	if initrd {
		vmi.Status.KernelBootStatus.InitrdInfo = &v1.InitrdInfo{Checksum: c.Initrd}
	}
}
