// SPDX-License-Identifier: Apache-2.0

// Package assume makes up the facts of a node, for tools and tests that have none.
package assume

import (
	"cmp"
	"fmt"
	"path"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
	"github.com/virtloom/virtloom/vmi/validate"
)

// Directories in KubeVirt's launcher Pod.
const (
	privateDir   = "/var/run/kubevirt-private"
	sharedDir    = "/var/run/kubevirt"
	ephemeralDir = "/var/run/kubevirt-ephemeral-disks"
	emptyDiskDir = "/var/run/libvirt/empty-disks"
)

// Facts returns the facts of an imaginary node that has everything the VMI asks for, in a
// cluster with all feature gates that the VMI needs. Paths are those of KubeVirt's launcher Pod. It
// inspects nothing: it is for offline tools and tests, which override what they know.
func Facts(vmi *v1.VirtualMachineInstance) convert.Facts {
	f := convert.Facts{
		Dir: path.Join(privateDir, string(vmi.UID)), Arch: xmlspec.ArchX86, Epoch: 1,
		Bridges: map[string]string{}, Links: map[string]convert.Link{}, Disks: map[string]convert.DiskSource{},
		Devices: map[string][]convert.HostDevice{}, SRIOV: map[string]string{}, Filesystems: map[string]string{},
		SecretDirs: map[string]string{}, ReservationSocket: "/var/run/kubevirt/daemons/pr/pr-helper.sock",
		Services: convert.Services{Hooks: true, CloudInitKeys: true, AgentCredentials: true, DownwardMetrics: true, PersistentState: true},
	}
	if arch := xmlspec.Arch(vmi.Spec.Architecture); arch != "" {
		f.Arch = arch
	}
	f.Cluster.FeatureGates = validate.Needed(vmi)
	a := assumption{vmi: vmi, Facts: &f}
	a.firmware()
	a.host()
	a.volumes()
	a.networks()
	a.devices()
	return f
}

// assumption is a set of facts under construction.
type assumption struct {
	*convert.Facts
	vmi *v1.VirtualMachineInstance
}

// firmware sets the images of KubeVirt's launcher image.
func (a assumption) firmware() {
	a.NVRAMDir = path.Join(privateDir, "libvirt/qemu/nvram")
	if a.Arch == xmlspec.ArchARM {
		a.Firmware.Plain = convert.FirmwareImage{Code: "/usr/share/AAVMF/AAVMF_CODE.fd", Vars: "/usr/share/AAVMF/AAVMF_VARS.fd"}
		return
	}
	in := func(code, vars string) convert.FirmwareImage {
		const dir = "/usr/share/edk2/ovmf/"
		image := convert.FirmwareImage{Code: dir + code}
		if vars != "" {
			image.Vars = dir + vars
		}
		return image
	}
	a.Firmware = convert.Firmware{
		SecureBoot: in("OVMF_CODE.secboot.fd", "OVMF_VARS.secboot.fd"), Plain: in("OVMF_CODE.secboot.fd", "OVMF_VARS.fd"),
		SEV: in("OVMF_CODE.cc.fd", "OVMF_VARS.fd"), SNP: in("OVMF.amdsev.fd", ""),
		TDX: in("OVMF.inteltdx.fd", ""), TDXSecureBoot: in("OVMF.inteltdx.secboot.fd", ""),
	}
}

// host sets a topology of two NUMA nodes with eight cores of two threads each.
func (a assumption) host() {
	const cells, cores = 2, 8
	for c := range uint(cells) {
		cell := domain.Cell{
			ID: c, MemoryKiB: 64 << 20, HugepagesKiB: []uint64{4, 2048, 1 << 20},
			Distances: map[uint]uint{c: 10, 1 - c: 20},
		}
		for i := range uint(cores) {
			core := c*cores + i
			cell.CPUs = append(cell.CPUs, domain.HostCPU{ID: core, Core: core, Socket: c}, domain.HostCPU{ID: core + cells*cores, Core: core, Socket: c})
		}
		a.Cells = append(a.Cells, cell)
	}
	for id := range uint(cells * cores * 2) {
		a.CPUs = append(a.CPUs, id)
	}
}

// networks assigns each interface a tap device, a virtual function or a link for passt. Links are
// named as in the status of the VMI where it has their names.
func (a assumption) networks() {
	links := map[string]string{}
	for _, s := range a.vmi.Status.Interfaces {
		links[s.Name] = s.PodInterfaceName
	}
	for i, in := range a.vmi.Spec.Domain.Devices.Interfaces {
		switch {
		case in.SRIOV != nil:
			a.SRIOV[in.Name] = fmt.Sprintf("0000:65:%02x.0", i+1)
		case in.PasstBinding != nil:
			a.Links[in.Name] = convert.Link{Passt: cmp.Or(links[in.Name], fmt.Sprintf("eth%d", i))}
		default:
			a.Links[in.Name] = convert.Link{Tap: fmt.Sprintf("tap%d", i)}
		}
	}
	for _, fs := range a.vmi.Spec.Domain.Devices.Filesystems {
		a.Filesystems[fs.Name] = path.Join(sharedDir, "virtiofs-containers", fs.Name+".sock")
	}
}

// devices assigns one device to each entry of the spec: a PCI device, or a mediated one for GPUs
// with options of virtual GPUs. If the VMI has no vsock context identifier yet, the node is one
// with local identifiers, where it needs none.
func (a assumption) devices() {
	n := 0
	next := func(resource string, mediated bool) {
		n++
		d := convert.HostDevice{PCI: fmt.Sprintf("0000:%02x:00.0", 0x80+n)}
		if mediated {
			d = convert.HostDevice{MDev: fmt.Sprintf("00000000-0000-4000-8000-%012x", n)}
		}
		a.Devices[resource] = append(a.Devices[resource], d)
	}
	for _, d := range a.vmi.Spec.Domain.Devices.HostDevices {
		next(xmlspec.DeviceResource(d.DeviceName, d.ClaimRequest), false)
	}
	for _, d := range a.vmi.Spec.Domain.Devices.GPUs {
		next(xmlspec.DeviceResource(d.DeviceName, d.ClaimRequest), d.VirtualGPUOptions != nil)
	}
	a.LocalVSOCK = a.vmi.Status.VSOCKCID == nil
}
