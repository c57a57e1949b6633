// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"path"

	v1 "kubevirt.io/api/core/v1"
)

// Directories of KubeVirt's launcher Pod.
const (
	privateDir = "/var/run/kubevirt-private"
	sharedDir  = "/var/run/kubevirt"
)

// AssumeFacts returns the facts of a node that has all the guest asks for, at the
// places where KubeVirt's launcher Pod has them. Nothing is looked at: it is for
// offline tools and tests, which overlay what they know better.
func AssumeFacts(vmi *v1.VirtualMachineInstance) Facts {
	f := Facts{
		Dir: path.Join(privateDir, string(vmi.UID)), Arch: archX86, Epoch: 1,
		Bridges: map[string]string{}, Links: map[string]Link{}, Disks: map[string]DiskSource{},
		Devices: map[string][]HostDevice{}, SRIOV: map[string]string{}, Filesystems: map[string]string{},
		SecretDirs: map[string]string{}, ReservationSocket: "/var/run/kubevirt/daemons/pr/pr-helper.sock",
	}
	for arch, t := range architectures {
		if t.name == vmi.Spec.Architecture {
			f.Arch = arch
		}
	}
	a := assumption{vmi: vmi, Facts: &f}
	a.firmware()
	a.host()
	a.volumes()
	a.networks()
	a.devices()
	return f
}

// assumption is facts under way.
type assumption struct {
	*Facts
	vmi *v1.VirtualMachineInstance
}

// firmware is what KubeVirt's launcher image has.
func (a assumption) firmware() {
	if a.Arch == archARM {
		a.Firmware.Plain = FirmwareImage{Code: "/usr/share/AAVMF/AAVMF_CODE.fd", Vars: "/usr/share/AAVMF/AAVMF_VARS.fd"}
		return
	}
	in := func(code, vars string) FirmwareImage {
		const dir = "/usr/share/edk2/ovmf/"
		image := FirmwareImage{Code: dir + code}
		if vars != "" {
			image.Vars = dir + vars
		}
		return image
	}
	a.Firmware = Firmware{
		SecureBoot: in("OVMF_CODE.secboot.fd", "OVMF_VARS.secboot.fd"), Plain: in("OVMF_CODE.secboot.fd", "OVMF_VARS.fd"),
		SEV: in("OVMF_CODE.cc.fd", "OVMF_VARS.fd"), SNP: in("OVMF.amdsev.fd", ""),
		TDX: in("OVMF.inteltdx.fd", ""), TDXSecureBoot: in("OVMF.inteltdx.secboot.fd", ""),
	}
}

// host is a machine with two NUMA nodes of eight cores with two threads each.
func (a assumption) host() {
	const cells, cores = 2, 8
	for c := range uint(cells) {
		cell := Cell{
			ID: c, MemoryKiB: 64 << 20, HugepagesKiB: []uint64{4, 2048, 1 << 20},
			Distances: map[uint]uint{c: 10, 1 - c: 20},
		}
		for i := range uint(cores) {
			core := c*cores + i
			cell.CPUs = append(cell.CPUs, HostCPU{ID: core, Core: core, Socket: c}, HostCPU{ID: core + cells*cores, Core: core, Socket: c})
		}
		a.Cells = append(a.Cells, cell)
	}
	for id := range uint(cells * cores * 2) {
		a.CPUs = append(a.CPUs, id)
	}
}

// volumes are where section 1.4 of the specification has them.
func (a assumption) volumes() {
	hotplugged := map[string]bool{}
	for _, s := range a.vmi.Status.VolumeStatus {
		hotplugged[s.Name] = s.HotplugVolume != nil
	}
	for i := range a.vmi.Spec.Volumes {
		v := &a.vmi.Spec.Volumes[i]
		if src := a.volume(i, v, hotplugged[v.Name]); src.Path != "" {
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
		a.Ignition = path.Join(sharedDir, "ignition", "data.ign")
	}
}

func (a assumption) volume(index int, v *v1.Volume, hotplugged bool) DiskSource {
	iso := func(dir string) DiskSource { return DiskSource{Path: path.Join(privateDir, dir, v.Name+".iso")} }
	overlay := func(dir string, below DiskSource) DiskSource {
		return DiskSource{Path: path.Join(sharedDir, dir, v.Name, "disk.qcow2"), Format: formatQcow2, Backing: &below}
	}
	switch {
	case hotplugged:
		return DiskSource{Path: path.Join(sharedDir, "hotplug-disks", v.Name+".img"), Shared: true, DirectIO: true}
	case v.PersistentVolumeClaim != nil, v.DataVolume != nil:
		return DiskSource{Path: path.Join(privateDir, "vmi-disks", v.Name, "disk.img"), Shared: true, DirectIO: true}
	case v.HostDisk != nil:
		return DiskSource{Path: path.Join(privateDir, "vmi-disks", v.Name, path.Base(v.HostDisk.Path))}
	case v.ContainerDisk != nil:
		return overlay("container-disk-data", DiskSource{Path: fmt.Sprintf("%s/container-disks/disk_%d.img", sharedDir, index), ReadOnly: true})
	case v.Ephemeral != nil:
		return overlay("ephemeral-disks", DiskSource{Path: path.Join(privateDir, "vmi-disks", v.Name, "disk.img"), ReadOnly: true})
	case v.EmptyDisk != nil:
		return DiskSource{Path: path.Join(sharedDir, "libvirt/empty-disks", v.Name+".qcow2"), Format: formatQcow2}
	case v.CloudInitNoCloud != nil:
		return DiskSource{Path: path.Join("/var/run/kubevirt-ephemeral-disks/cloud-init-data", a.vmi.Namespace, a.vmi.Name, "noCloud.iso")}
	case v.CloudInitConfigDrive != nil:
		return DiskSource{Path: path.Join("/var/run/kubevirt-ephemeral-disks/cloud-init-data", a.vmi.Namespace, a.vmi.Name, "configdrive.iso")}
	case v.ConfigMap != nil:
		return iso("config-map-disks")
	case v.Secret != nil:
		return iso("secret-disks")
	case v.DownwardAPI != nil:
		return iso("downwardapi-disks")
	case v.ServiceAccount != nil:
		return DiskSource{Path: path.Join(privateDir, "service-account-disk", "service-account.iso")}
	case v.Sysprep != nil:
		return iso("sysprep-disks")
	case v.DownwardMetrics != nil:
		return DiskSource{Path: path.Join(privateDir, "downwardapi-disks", "vhostmd0"), ReadOnly: true}
	}
	return DiskSource{}
}

// networks give each interface a tap device, or what else it needs.
func (a assumption) networks() {
	for i, in := range a.vmi.Spec.Domain.Devices.Interfaces {
		if in.SRIOV != nil {
			a.SRIOV[in.Name] = fmt.Sprintf("0000:65:%02x.0", i+1)
			continue
		}
		a.Links[in.Name] = Link{Tap: fmt.Sprintf("tap%d", i), Passt: fmt.Sprintf("eth%d", i)}
	}
	for _, fs := range a.vmi.Spec.Domain.Devices.Filesystems {
		a.Filesystems[fs.Name] = path.Join(sharedDir, "virtiofs-containers", fs.Name+".sock")
	}
}

// devices hands out one device for each that the spec names: PCI devices, but for
// resources and requests whose name tells of another kind.
func (a assumption) devices() {
	n := 0
	next := func(resource string) {
		n++
		a.Devices[resource] = append(a.Devices[resource], HostDevice{PCI: fmt.Sprintf("0000:%02x:00.0", 0x80+n)})
	}
	for _, d := range a.vmi.Spec.Domain.Devices.HostDevices {
		next(deviceResource(d.DeviceName, d.ClaimRequest))
	}
	for _, d := range a.vmi.Spec.Domain.Devices.GPUs {
		next(deviceResource(d.DeviceName, d.ClaimRequest))
	}
}

// deviceResource is the key of [Facts].Devices for a device of the spec: the
// resource, or claim/request.
func deviceResource(name string, claim *v1.ClaimRequest) string {
	if name != "" || claim == nil {
		return name
	}
	return claim.ClaimName + "/" + claim.RequestName
}
