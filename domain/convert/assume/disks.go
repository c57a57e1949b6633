// SPDX-License-Identifier: Apache-2.0

package assume

import (
	"fmt"
	"path"

	k8sv1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
)

// volumes sets the paths of volumes and of the other files that the spec refers to.
func (a assumption) volumes() {
	for i := range a.vmi.Spec.Volumes {
		v := assumedVolume{vmi: a.vmi, index: i, Volume: &a.vmi.Spec.Volumes[i]}
		if src := v.source(); src.Path != "" {
			a.Disks[v.Name] = src
		}
		if v.Secret != nil {
			a.SecretDirs[v.Name] = path.Join(privateDir, "secret", v.Name)
		}
	}
	if fw := a.vmi.Spec.Domain.Firmware; fw != nil && fw.KernelBoot != nil && fw.KernelBoot.Container != nil {
		const dir = sharedDir + "/container-disks/kernel-boot"
		c := fw.KernelBoot.Container
		if c.KernelPath != "" {
			a.Kernel = path.Join(dir, path.Base(c.KernelPath))
		}
		if c.InitrdPath != "" {
			a.Initrd = path.Join(dir, path.Base(c.InitrdPath))
		}
	}
	if a.vmi.Annotations[v1.IgnitionAnnotation] != "" {
		a.Ignition = path.Join(ephemeralDir, "ignition-data", a.vmi.Namespace, a.vmi.Name, "data.ign")
	}
}

// assumedVolume is a volume of a spec whose data is assumed to be at its usual path.
type assumedVolume struct {
	*v1.Volume
	vmi   *v1.VirtualMachineInstance
	index int
}

// assumedPlaces maps each kind of volume to its path; the first entry that applies wins.
var assumedPlaces = []struct {
	applies func(*v1.Volume) bool
	at      func(assumedVolume) convert.DiskSource
}{
	{func(v *v1.Volume) bool { return v.PersistentVolumeClaim != nil || v.DataVolume != nil }, assumedVolume.claim},
	{func(v *v1.Volume) bool { return v.HostDisk != nil }, func(v assumedVolume) convert.DiskSource {
		return convert.DiskSource{Path: path.Join(privateDir, "vmi-disks", v.Name, path.Base(v.HostDisk.Path)), DirectIO: true, Sector: fileSectors()}
	}},
	{func(v *v1.Volume) bool { return v.ContainerDisk != nil }, func(v assumedVolume) convert.DiskSource {
		return v.overlay(convert.DiskSource{Path: fmt.Sprintf("%s/container-disks/disk_%d.img", sharedDir, v.index)})
	}},
	{func(v *v1.Volume) bool { return v.Ephemeral != nil }, func(v assumedVolume) convert.DiskSource {
		return v.overlay(convert.DiskSource{Path: v.claimPath(), Block: v.block()})
	}},
	{func(v *v1.Volume) bool { return v.EmptyDisk != nil }, func(v assumedVolume) convert.DiskSource {
		return convert.DiskSource{
			Path:   path.Join(emptyDiskDir, v.Name+".qcow2"),
			Format: "qcow2", DirectIO: true, Sector: fileSectors(),
		}
	}},
	{func(v *v1.Volume) bool { return v.CloudInitNoCloud != nil }, func(v assumedVolume) convert.DiskSource { return v.cloudInit("noCloud.iso") }},
	{func(v *v1.Volume) bool { return v.CloudInitConfigDrive != nil }, func(v assumedVolume) convert.DiskSource { return v.cloudInit("configdrive.iso") }},
	{func(v *v1.Volume) bool { return v.ConfigMap != nil }, func(v assumedVolume) convert.DiskSource { return v.private("config-map-disks", v.Name+".iso") }},
	{func(v *v1.Volume) bool { return v.Secret != nil }, func(v assumedVolume) convert.DiskSource { return v.private("secret-disks", v.Name+".iso") }},
	{func(v *v1.Volume) bool { return v.DownwardAPI != nil }, func(v assumedVolume) convert.DiskSource { return v.private("downwardapi-disks", v.Name+".iso") }},
	{func(v *v1.Volume) bool { return v.ServiceAccount != nil }, func(v assumedVolume) convert.DiskSource {
		return v.private("service-account-disk", "service-account.iso")
	}},
	{func(v *v1.Volume) bool { return v.Sysprep != nil }, func(v assumedVolume) convert.DiskSource { return v.private("sysprep-disks", v.Name+".iso") }},
	{func(v *v1.Volume) bool { return v.DownwardMetrics != nil }, func(v assumedVolume) convert.DiskSource {
		src := v.private("downwardapi-disks", "vhostmd0")
		src.ReadOnly = true
		return src
	}},
}

// source returns the source of the volume's data, the zero value if it has none.
func (v assumedVolume) source() convert.DiskSource {
	for _, p := range assumedPlaces {
		if p.applies(v.Volume) {
			return p.at(v)
		}
	}
	return convert.DiskSource{}
}

// fileSectors returns the block sizes of a file on a common file system.
func fileSectors() *convert.SectorSize {
	return &convert.SectorSize{Logical: 4096, Physical: 4096, DiscardGranularity: 4096}
}

func (v assumedVolume) private(dir, name string) convert.DiskSource {
	return convert.DiskSource{Path: path.Join(privateDir, dir, name), DirectIO: true, Sector: fileSectors()}
}

func (v assumedVolume) cloudInit(name string) convert.DiskSource {
	return convert.DiskSource{Path: path.Join(ephemeralDir, "cloud-init-data", v.vmi.Namespace, v.vmi.Name, name), DirectIO: true, Sector: fileSectors()}
}

// overlay returns a writable image on top of a read-only one.
func (v assumedVolume) overlay(below convert.DiskSource) convert.DiskSource {
	below.ReadOnly, below.DirectIO = true, true
	return convert.DiskSource{
		Path:   path.Join(ephemeralDir, "disk-data", v.Name, "disk.qcow2"),
		Format: "qcow2", DirectIO: true, Sector: fileSectors(),
		Backing: &below,
	}
}

// claimPath returns the path of a claim's data in a launcher Pod that has mounted it from the
// start.
func (v assumedVolume) claimPath() string {
	if v.block() {
		return path.Join("/dev", v.Name)
	}
	return path.Join(privateDir, "vmi-disks", v.Name, "disk.img")
}

// claim returns the source of a PersistentVolumeClaim. With changed block tracking, the data is
// below an overlay that records the changed blocks.
func (v assumedVolume) claim() convert.DiskSource {
	data := convert.DiskSource{Block: v.block(), Shared: true, DirectIO: true, Sector: fileSectors()}
	hotplugged := false
	for i := range v.vmi.Status.VolumeStatus {
		s := &v.vmi.Status.VolumeStatus[i]
		if s.Name == v.Name {
			hotplugged = s.HotplugVolume != nil
		}
	}
	switch {
	case hotplugged && data.Block:
		data.Path = path.Join(sharedDir, "hotplug-disks", v.Name)
	case hotplugged:
		data.Path = path.Join(sharedDir, "hotplug-disks", v.Name+".img")
	default:
		data.Path = v.claimPath()
	}
	if data.Block {
		data.Sector = &convert.SectorSize{Logical: 512, Physical: 4096, DiscardGranularity: 4096}
	}
	if d := v.disk(); d == nil || !ptr.Deref(d.ChangedBlockTracking, false) {
		return data
	}
	return convert.DiskSource{
		Path:   path.Join(privateDir, "libvirt/qemu/cbt", v.Name+".qcow2"),
		Format: "qcow2", DirectIO: true, DataStore: &data,
	}
}

// disk returns the disk of the volume, nil if it has none.
func (v assumedVolume) disk() *v1.Disk {
	disks := v.vmi.Spec.Domain.Devices.Disks
	for i := range disks {
		if disks[i].Name == v.Name {
			return &disks[i]
		}
	}
	return nil
}

// block reports whether the claim is a block device: according to the status, or because the VMI
// asks for a LUN, which has to be one.
func (v assumedVolume) block() bool {
	if d := v.disk(); d != nil && d.LUN != nil {
		return true
	}
	for i := range v.vmi.Status.VolumeStatus {
		s := &v.vmi.Status.VolumeStatus[i]
		if p := s.PersistentVolumeClaimInfo; s.Name == v.Name && p != nil && p.VolumeMode != nil {
			return *p.VolumeMode == k8sv1.PersistentVolumeBlock
		}
	}
	return false
}
