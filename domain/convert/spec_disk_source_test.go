// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/xml"
	"strings"
	"testing"

	k8sv1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// element returns the XML of a disk, without line breaks and closing tags.
func element(d *libvirtxml.DomainDisk) any {
	b, err := xml.Marshal(d)
	if err != nil {
		return err
	}
	var out []string
	for _, tag := range strings.Split(string(b), "<") {
		if tag != "" && tag[0] != '/' {
			out = append(out, strings.TrimSuffix(tag, ">"))
		}
	}
	return strings.Join(out, "\n")
}

// chain returns formats and paths of a disk and its backing chain.
func chain(d *libvirtxml.DomainDisk) any {
	out := []string{d.Driver.Type + " " + xmlspec.PathOf(d.Source)}
	for b := d.BackingStore; b != nil; b = b.BackingStore {
		if b.Format == nil {
			out = append(out, "end")
			continue
		}
		out = append(out, b.Format.Type+" "+xmlspec.PathOf(b.Source))
	}
	return strings.Join(out, "; ")
}

func kindOf(d *libvirtxml.DomainDisk) any {
	return strings.Join([]string{d.Device, d.Target.Bus, d.Target.Tray, "readonly " + yesNo(d.ReadOnly != nil), d.Driver.Discard}, " ")
}

func TestSpecDiskSource(t *testing.T) {
	const pr = "/var/run/kubevirt/daemons/pr/pr-helper.sock"
	cdrom := func(c v1.CDRomTarget) func(vmiArg, *Facts) {
		return func(v vmiArg, _ *Facts) { domainfixture.AddDisk(v, "cloudinit", v1.DiskDevice{CDRom: &c}) }
	}
	lun := func(v vmiArg, f *Facts) {
		root(v).DiskDevice, f.ReservationSocket = v1.DiskDevice{LUN: &v1.LunTarget{Bus: v1.DiskBusSCSI, Reservation: true}}, pr
	}
	empty := func(v vmiArg, _ *Facts) { domainfixture.AddDisk(v, "none", sataDrive) }
	runDiskRows(t, map[string]diskRow{
		"C17: a disc is read-only, its tray closed": {
			change: cdrom(v1.CDRomTarget{Bus: v1.DiskBusSATA}),
			read:   on("cloudinit", kindOf), want: "cdrom sata closed readonly yes ",
		},
		"C17: a disc is writable if the spec says so": {
			change: cdrom(v1.CDRomTarget{Bus: v1.DiskBusSATA, ReadOnly: new(false)}),
			read:   on("cloudinit", kindOf), want: "cdrom sata closed readonly no ",
		},
		"C17: a tray can be open": {
			change: cdrom(v1.CDRomTarget{Bus: v1.DiskBusSATA, Tray: v1.TrayStateOpen}),
			read:   on("cloudinit", kindOf), want: "cdrom sata open readonly yes ",
		},
		"C23: a LUN with reservations": {
			change: onFile(blockData, lun),
			read:   onRoot(element), want: `disk type="block" device="lun"
driver name="qemu" type="raw" cache="none" error_policy="stop" io="native" discard="unmap"
source dev="/dev/root"
reservations managed="no" migration="yes"
source type="unix" mode="client" path="` + pr + `"
target dev="sda" bus="scsi"
alias name="ua-root"
address type="drive" controller="0" bus="0" target="0" unit="0"`,
		},
		"a LUN without bus is a SCSI disk": {
			change: onFile(blockData, func(v vmiArg, _ *Facts) { root(v).DiskDevice = v1.DiskDevice{LUN: &v1.LunTarget{ReadOnly: true}} }),
			read:   onRoot(kindOf), want: "lun scsi  readonly yes unmap",
		},
		"C25: a block claim": {
			change: func(v vmiArg, f *Facts) {
				v.Spec.Volumes[0].VolumeSource = claimSource(false)
				block := k8sv1.PersistentVolumeBlock
				v.Status.VolumeStatus = []v1.VolumeStatus{{Name: "root", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{VolumeMode: &block}}}
				f.Disks = map[string]DiskSource{"root": {Path: "/dev/root", Format: "raw", Block: true}}
			},
			read: onRoot(func(d *libvirtxml.DomainDisk) any { return d.Source.Block.Dev }), want: "/dev/root",
		},
		"what a launcher sees elsewhere it opens there": {
			change: onFile(DiskSource{Path: "/pods/1/root.qcow2", Inside: "/in/root.qcow2", Format: formatQcow2,
				Backing: &DiskSource{Path: "/pods/1/base", Inside: "/in/base", Block: true, Backing: &DiskSource{Path: "/x"}}}),
			read: onRoot(chain), want: "qcow2 /in/root.qcow2; raw /in/base; raw /x; end",
		},
		"C26: a claim that was plugged in": {
			change: func(v vmiArg, f *Facts) {
				domainfixture.AddDisk(v, "data", scsiDisk)
				v.Status.VolumeStatus = []v1.VolumeStatus{{Name: "root"},
					{Name: "data", Phase: v1.VolumeReady, HotplugVolume: &v1.HotplugVolumeStatus{}}}
				f.Disks["data"] = DiskSource{Path: "/var/run/kubevirt/hotplug-disks/data.img", Format: "raw"}
			},
			read: on("data", func(d *libvirtxml.DomainDisk) any { return d.Source.File.File }), want: "/var/run/kubevirt/hotplug-disks/data.img",
		},
		"C28: a drive without a disc": {
			change: empty,
			read:   on("none", element), want: `disk type="block" device="cdrom"
driver name="qemu" type="raw" error_policy="stop" discard="unmap"
target dev="sda" bus="sata" tray="closed"
readonly
alias name="ua-none"`,
		},
		"the cache of a drive without a disc is what the spec says": {
			change: func(v vmiArg, f *Facts) {
				domainfixture.AddDisk(v, "none", sataDrive).Cache = v1.CacheNone
			},
			read: on("none", func(d *libvirtxml.DomainDisk) any { return d.Driver.Cache + d.Driver.IO }), want: "none",
		},
		"an overlay ends where the facts say": {
			change: onFile(DiskSource{Path: "/o", Format: formatQcow2, Backing: &DiskSource{Path: "/b", Format: formatQcow2, Backing: &DiskSource{Path: "/dev/c", Block: true}}}),
			read:   onRoot(chain), want: "qcow2 /o; qcow2 /b; raw /dev/c; end",
		},
		"metrics of the host are a read-only virtio disk": {
			change: func(v vmiArg, f *Facts) {
				onVolume(v1.VolumeSource{DownwardMetrics: &v1.DownwardMetricsVolumeSource{}}, DiskSource{Path: "/vhostmd0"})(v, f)
				root(v).DiskDevice = v1.DiskDevice{Disk: &v1.DiskTarget{}}
			},
			read: onRoot(kindOf), want: "disk virtio  readonly yes unmap",
		},
		"tracked blocks: an overlay over a data store": {
			change: onFile(DiskSource{Path: "/cbt/root.qcow2", Format: formatQcow2, DirectIO: true, DataStore: &blockData},
				func(v vmiArg, _ *Facts) { root(v).ChangedBlockTracking = new(true) }),
			read: onRoot(element), want: `disk type="file" device="disk" model="virtio-non-transitional"
driver name="qemu" type="qcow2" cache="none" error_policy="stop" io="native" discard="unmap"
source file="/cbt/root.qcow2"
dataStore type="block"
format type="raw"
source dev="/dev/root"
backingStore
target dev="vda" bus="virtio"
alias name="ua-root"
address type="pci" domain="0x0000" bus="0x07" slot="0x00" function="0x0"`,
		},
	})
}

func TestDisks_Errors(t *testing.T) {
	const disk, drive = "spec.domain.devices.disks[0]", "spec.domain.devices.disks[1].cdrom"
	track := func(src DiskSource) func(vmiArg, *Facts) {
		return onFile(src, func(v vmiArg, _ *Facts) { root(v).ChangedBlockTracking = new(true) })
	}
	qcow2 := func(below DiskSource) DiskSource {
		return DiskSource{Path: "/o", Format: formatQcow2, DataStore: &below}
	}
	lunOn := func(bus v1.DiskBus) func(vmiArg, *Facts) {
		return onFile(blockData, func(v vmiArg, _ *Facts) { root(v).DiskDevice = v1.DiskDevice{LUN: &v1.LunTarget{Bus: bus}} })
	}
	runDiskErrors(t, map[string]diskError{
		"tray": {func(v vmiArg, _ *Facts) {
			domainfixture.AddDisk(v, "none", v1.DiskDevice{CDRom: &v1.CDRomTarget{Tray: "ajar"}})
		}, drive + ".tray", domain.ErrInvalid, "open or closed"},
		"LUN on sata": {lunOn(v1.DiskBusSATA), disk + ".lun.bus", domain.ErrInvalid, "set bus to scsi"},
		"LUN on usb":  {lunOn(v1.DiskBusUSB), disk + ".lun.bus", domain.ErrInvalid, "set bus to scsi"},
		"LUN with a serial number": {onFile(blockData, func(v vmiArg, _ *Facts) {
			root(v).DiskDevice, root(v).Serial = scsiLUN, "S1"
		}), disk + ".serial", domain.ErrInvalid, "remove"},
		"reservations without a helper": {onFile(blockData, func(v vmiArg, f *Facts) {
			root(v).DiskDevice = v1.DiskDevice{LUN: &v1.LunTarget{Bus: v1.DiskBusSCSI, Reservation: true}}
		}), disk + ".lun.reservation", domain.ErrUnsupported, "qemu-pr-helper"},
		"LUN of a file": {func(v vmiArg, _ *Facts) { root(v).DiskDevice = scsiLUN }, disk + ".lun", domain.ErrInvalid, "Block"},
		"metrics on sata": {func(v vmiArg, f *Facts) {
			onVolume(v1.VolumeSource{DownwardMetrics: &v1.DownwardMetricsVolumeSource{}}, DiskSource{Path: "/vhostmd0"})(v, f)
			root(v).DiskDevice = sataDisk
		}, disk + ".disk.bus", domain.ErrInvalid, "virtio"},
		"a memory dump is no disk": {onVolume(v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{}}, fileData),
			"spec.volumes[root].memoryDump", domain.ErrInvalid, "not a disk"},
		"a directory is no disk": {onVolume(v1.VolumeSource{ContainerPath: &v1.ContainerPathVolumeSource{Path: "/x"}}, fileData),
			"spec.volumes[root].containerPath", domain.ErrInvalid, "filesystems"},
		"tracked blocks without an overlay":       {track(fileData), disk + ".changedBlockTracking", domain.ErrUnsupported, "no changed block tracking overlay"},
		"tracked blocks in a raw image":           {track(DiskSource{Path: "/o", DataStore: &fileData}), "spec.volumes[root]", domain.ErrInvalid, "qcow2"},
		"tracked blocks of a qcow2 image":         {track(qcow2(DiskSource{Path: "/x", Format: formatQcow2})), "spec.volumes[root]", domain.ErrInvalid, "raw data"},
		"tracked blocks over tracked blocks":      {track(qcow2(qcow2(fileData))), "spec.volumes[root]", domain.ErrInvalid, "raw data"},
		"images on top of each other without end": {onFile(*endless()), "spec.volumes[root]", domain.ErrInvalid, "flatten"},
	})
}

// endless returns an image that is its own backing image.
func endless() *DiskSource {
	s := &DiskSource{Path: "/x", Format: formatQcow2}
	s.Backing = s
	return s
}
