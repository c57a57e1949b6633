// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// imaged is a VMI with a disk and a kernel from images.
func imaged() *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name = "ns", "guest"
	vmi.Spec.Volumes = []v1.Volume{
		{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}}},
		{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}}},
	}
	vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{Container: &v1.KernelBootContainer{KernelPath: "/kernel", InitrdPath: "/initrd"}}}
	return vmi
}

func TestChecksums_StoredOnce(t *testing.T) {
	vmi := imaged()
	o := seen(domain.StatusRunning, "", plainLive(false))
	o.Checksums = Checksums{Disks: map[string]uint32{"root": 1, "scratch": 0}, Kernel: 2}
	vmi = Reflect(vmi, o, statusNow)
	if n, known := ChecksumsOf(vmi).Known(vmi); n != 3 || known != 2 {
		t.Errorf("%d of %d files have a checksum", known, n)
	}
	o.Checksums = Checksums{Disks: map[string]uint32{"root": 4}, Kernel: 5, Initrd: 3}
	vmi = Reflect(vmi, o, statusNow)
	want := &v1.KernelBootStatus{KernelInfo: &v1.KernelInfo{Checksum: 2}, InitrdInfo: &v1.InitrdInfo{Checksum: 3}}
	if diff := cmp.Diff(want, vmi.Status.KernelBootStatus); diff != "" {
		t.Error(diff)
	}
	if s := vmi.Status.VolumeStatus; len(s) != 1 || s[0].ContainerDiskVolume == nil || s[0].ContainerDiskVolume.Checksum != 1 {
		t.Errorf("%+v", s)
	}
	if n, known := ChecksumsOf(vmi).Known(vmi); n != known {
		t.Errorf("%d of %d files have a checksum", known, n)
	}
}

func TestChecksums_Verify(t *testing.T) {
	vmi := imaged()
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "root", ContainerDiskVolume: &v1.ContainerDiskInfo{Checksum: 1}}}
	vmi.Status.KernelBootStatus = &v1.KernelBootStatus{KernelInfo: &v1.KernelInfo{Checksum: 2}}
	for name, tt := range map[string]struct {
		here  Checksums
		field string
	}{
		"the same":               {Checksums{Disks: map[string]uint32{"root": 1}, Kernel: 2}, ""},
		"unknown here":           {Checksums{}, ""},
		"unknown at the source":  {Checksums{Initrd: 9}, ""},
		"of no volume of images": {Checksums{Disks: map[string]uint32{"scratch": 9}}, ""},
		"another disk":           {Checksums{Disks: map[string]uint32{"root": 9}, Kernel: 2}, "spec.volumes[1].containerDisk.image"},
		"another kernel":         {Checksums{Disks: map[string]uint32{"root": 1}, Kernel: 9}, "spec.domain.firmware.kernelBoot.container.kernelPath"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.here.Verify(vmi, "node-b")
			if tt.field == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			domainfixture.Says(t, err, "ns/guest", tt.field, "node-b", "9", "digest")
			if !errors.Is(err, domain.ErrInvalid) {
				t.Errorf("%v is not invalid", err)
			}
		})
	}
}
