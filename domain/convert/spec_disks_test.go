// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/xml"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	k8sv1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// diskRow changes the small VMI and its facts, and reads one value of its domain.
type diskRow struct {
	change func(*v1.VirtualMachineInstance, *Facts)
	read   func(*libvirtxml.Domain) any
	want   any
}

func runDiskRows(t *testing.T, rows map[string]diskRow) {
	t.Helper()
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			if r.change != nil {
				r.change(vmi, &f)
			}
			d, err := Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r.want, r.read(d)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			again := &libvirtxml.Domain{}
			if err := again.Unmarshal(domainfixture.Marshal(t, d)); err != nil {
				t.Fatal(err)
			}
			for i := range again.Devices.Disks {
				again.Devices.Disks[i].XMLName = xml.Name{} // the element name only
			}
			if !reflect.DeepEqual(d.Devices.Disks, again.Devices.Disks) {
				t.Errorf("disks do not survive the XML round trip:\n%s", cmp.Diff(d.Devices.Disks, again.Devices.Disks))
			}
		})
	}
}

// diskError is an expected error.
type diskError struct {
	change func(*v1.VirtualMachineInstance, *Facts)
	field  string
	err    error
	says   string
}

func runDiskErrors(t *testing.T, rows map[string]diskError) {
	t.Helper()
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			r.change(vmi, &f)
			d, err := Convert(vmi, f)
			if d != nil {
				t.Error("a domain is returned as well")
			}
			wantError(t, err, r.field, r.err)
			if err != nil && !strings.Contains(err.Error(), r.says) {
				t.Errorf("error %q does not contain %q", err, r.says)
			}
		})
	}
}

type (
	vmiArg  = *v1.VirtualMachineInstance
	readXML = func(*libvirtxml.Domain) any
)

// on reads from the disk with that name, nil if there is none.
func on(name string, read func(*libvirtxml.DomainDisk) any) readXML {
	return func(d *libvirtxml.Domain) any {
		for i := range d.Devices.Disks {
			if xmlspec.NameOf(d.Devices.Disks[i].Alias) == name {
				return read(&d.Devices.Disks[i])
			}
		}
		return nil
	}
}

// onRoot reads from the disk of the small VMI.
func onRoot(read func(*libvirtxml.DomainDisk) any) readXML { return on("root", read) }

func root(v vmiArg) *v1.Disk { return &v.Spec.Domain.Devices.Disks[0] }

// onVolume sets the volume and data of the small VMI's disk.
func onVolume(source v1.VolumeSource, src DiskSource) func(vmiArg, *Facts) {
	return func(v vmiArg, f *Facts) {
		v.Spec.Volumes[0].VolumeSource = source
		f.Disks["root"] = src
	}
}

// onFile sets the data of the volume only.
func onFile(src DiskSource, more ...func(vmiArg, *Facts)) func(vmiArg, *Facts) {
	return func(v vmiArg, f *Facts) {
		f.Disks["root"] = src
		for _, m := range more {
			m(v, f)
		}
	}
}

func claimSource(hotpluggable bool) v1.VolumeSource {
	return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: k8sv1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}, Hotpluggable: hotpluggable,
	}}
}

var (
	virtioDisk = v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}
	sataDisk   = v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSATA}}
	scsiDisk   = v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}}
	sataDrive  = v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}}
	scsiLUN    = v1.DiskDevice{LUN: &v1.LunTarget{Bus: v1.DiskBusSCSI}}

	blockData = DiskSource{Path: "/dev/root", Block: true, DirectIO: true}
	fileData  = DiskSource{Path: "/srv/root.img", DirectIO: true}
)

// allTargets returns name=target of all disks in order.
func allTargets(d *libvirtxml.Domain) any {
	var out []string
	for i := range d.Devices.Disks {
		out = append(out, xmlspec.NameOf(d.Devices.Disks[i].Alias)+"="+d.Devices.Disks[i].Target.Dev)
	}
	return strings.Join(out, " ")
}

func TestSpecDiskTargets(t *testing.T) {
	statuses := func(v vmiArg, s ...v1.VolumeStatus) { v.Status.VolumeStatus = s }
	runDiskRows(t, map[string]diskRow{
		"C16: names count per prefix": {
			change: func(v vmiArg, _ *Facts) {
				domainfixture.AddDisk(v, "data", virtioDisk)
				domainfixture.AddDisk(v, "cloudinit", sataDrive)
			}, read: allTargets, want: "root=vda data=vdb cloudinit=sda",
		},
		"C16: sata, scsi and usb share their names": {
			change: func(v vmiArg, _ *Facts) {
				domainfixture.AddDisk(v, "data", scsiDisk)
				domainfixture.AddDisk(v, "cloudinit", sataDrive)
				domainfixture.AddDisk(v, "scratch", v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusUSB}})
			}, read: allTargets, want: "root=vda data=sda cloudinit=sdb scratch=sdc",
		},
		"C16: a disk without bus is virtio on arm64": {
			change: func(v vmiArg, f *Facts) {
				f.Arch = xmlspec.ArchARM
				domainfixture.AddDisk(v, "data", virtioDisk)
				domainfixture.AddDisk(v, "cloudinit", v1.DiskDevice{CDRom: &v1.CDRomTarget{}})
			}, read: allTargets, want: "root=vda data=vdb cloudinit=vdc",
		},
		"C16: a disk without bus is virtio on s390x": {
			change: func(v vmiArg, f *Facts) {
				f.Arch = xmlspec.ArchS390X
				domainfixture.AddDisk(v, "cloudinit", v1.DiskDevice{CDRom: &v1.CDRomTarget{}})
			}, read: allTargets, want: "root=vda cloudinit=vdb",
		},
		"C19: the name in the status is kept, whatever the order": {
			change: func(v vmiArg, _ *Facts) {
				domainfixture.AddDisk(v, "data", virtioDisk)
				statuses(v, v1.VolumeStatus{Name: "root", Target: "vdc"})
			}, read: allTargets, want: "root=vdc data=vda",
		},
		"a name is kept for its bus only": {
			change: func(v vmiArg, _ *Facts) { statuses(v, v1.VolumeStatus{Name: "root", Target: "sda"}) },
			read:   allTargets, want: "root=vda",
		},
		"a name that is still in use is not handed out": {
			change: func(v vmiArg, _ *Facts) { statuses(v, v1.VolumeStatus{Name: "gone", Target: "vda"}) },
			read:   allTargets, want: "root=vdb",
		},
		"two disks never share a name": {
			change: func(v vmiArg, _ *Facts) {
				domainfixture.AddDisk(v, "data", virtioDisk)
				statuses(v, v1.VolumeStatus{Name: "root", Target: "vdb"}, v1.VolumeStatus{Name: "data", Target: "vdb"})
			}, read: allTargets, want: "root=vdb data=vda",
		},
		"what is no name is not kept": {
			change: func(v vmiArg, _ *Facts) { statuses(v, v1.VolumeStatus{Name: "root", Target: "vd\"/><x"}) },
			read:   allTargets, want: "root=vda",
		},
		"the running domain knows better than the status": {
			change: func(v vmiArg, f *Facts) {
				domainfixture.AddDisk(v, "data", virtioDisk)
				statuses(v, v1.VolumeStatus{Name: "root", Target: "vda"})
				f.Layout.Targets = map[string]string{"root": "vdd", "data": "vda"}
			}, read: allTargets, want: "root=vdd data=vda",
		},
		"a SCSI disk sits where its name says": {
			change: func(v vmiArg, _ *Facts) {
				root(v).DiskDevice = scsiDisk
				statuses(v, v1.VolumeStatus{Name: "root", Target: "sdaa"})
			}, read: onRoot(func(d *libvirtxml.DomainDisk) any {
				a := d.Address.Drive
				return [4]uint{*a.Controller, *a.Bus, *a.Target, *a.Unit}
			}), want: [4]uint{0, 0, 0, 26},
		},
		"other disks are placed elsewhere": {
			change: func(v vmiArg, _ *Facts) { root(v).DiskDevice = sataDisk },
			read:   onRoot(func(d *libvirtxml.DomainDisk) any { return d.Address == nil || d.Address.Drive == nil }), want: true,
		},
		"C22: a virtio disk can name its PCI address": {
			change: func(v vmiArg, _ *Facts) { root(v).Disk.PciAddress = "0000:81:01.0" },
			read: onRoot(func(d *libvirtxml.DomainDisk) any {
				a := d.Address.PCI
				return [4]uint{*a.Domain, *a.Bus, *a.Slot, *a.Function}
			}), want: [4]uint{0, 0x81, 1, 0},
		},
	})
	runDiskErrors(t, map[string]diskError{
		"C22: no other disk can": {
			change: func(v vmiArg, _ *Facts) {
				root(v).DiskDevice = v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSATA, PciAddress: "0000:81:01.0"}}
			},
			field: "spec.domain.devices.disks[0].disk.pciAddress", err: domain.ErrInvalid, says: "set bus to virtio",
		},
	})
}

func TestLetters_LinuxOrder(t *testing.T) {
	for i, want := range map[uint]string{0: "a", 25: "z", 26: "aa", 51: "az", 52: "ba", 701: "zz", 702: "aaa"} {
		if got := targetLetters(i); got != want || letterIndex(got) != i {
			t.Errorf("%d is %q, back %d; want %q", i, got, letterIndex(got), want)
		}
	}
}

func TestLayout_KeepsTargetNames(t *testing.T) {
	vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
	domainfixture.AddDisk(vmi, "data", virtioDisk)
	live, err := Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	// Remove the first disk and insert another one before the second, which stays vdb.
	vmi.Spec.Domain.Devices.Disks[0].Name = "scratch"
	f.Layout = Layout{Targets: LayoutOf(live).Targets}
	d, err := Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := allTargets(d), "scratch=vdc data=vdb"; got != want {
		t.Errorf("targets are %s, want %s", got, want)
	}
}

func TestDisks_VolumeStatus(t *testing.T) {
	names := func(d *libvirtxml.Domain) any {
		var out []string
		for i := range d.Devices.Disks {
			name := xmlspec.NameOf(d.Devices.Disks[i].Alias)
			if xmlspec.PathOf(d.Devices.Disks[i].Source) == "" {
				name += " (empty)"
			}
			out = append(out, name)
		}
		return strings.Join(out, ", ")
	}
	hotplug := func(phase v1.VolumePhase) v1.VolumeStatus {
		return v1.VolumeStatus{Name: "data", Phase: phase, HotplugVolume: &v1.HotplugVolumeStatus{}}
	}
	permanent := v1.VolumeStatus{Name: "root"}
	rows := map[string]diskRow{}
	for name, r := range map[string]struct {
		drive    bool
		plugable bool
		statuses []v1.VolumeStatus
		want     string
	}{
		"no statuses yet: all":                  {plugable: true, want: "root, data"},
		"permanent":                             {statuses: []v1.VolumeStatus{permanent, {Name: "data"}}, want: "root, data"},
		"bound":                                 {statuses: []v1.VolumeStatus{permanent, hotplug(v1.VolumeBound)}, want: "root"},
		"attached to the node":                  {statuses: []v1.VolumeStatus{permanent, hotplug(v1.HotplugVolumeAttachedToNode)}, want: "root"},
		"mounted":                               {statuses: []v1.VolumeStatus{permanent, hotplug(v1.HotplugVolumeMounted)}, want: "root, data"},
		"ready":                                 {statuses: []v1.VolumeStatus{permanent, hotplug(v1.VolumeReady)}, want: "root, data"},
		"detaching":                             {statuses: []v1.VolumeStatus{permanent, hotplug(v1.HotplugVolumeDetaching)}, want: "root"},
		"attached, and no permanent volume":     {statuses: []v1.VolumeStatus{hotplug(v1.HotplugVolumeAttachedToNode)}, want: "root"},
		"can be plugged, not seen yet":          {plugable: true, statuses: []v1.VolumeStatus{permanent}, want: "root"},
		"cannot be plugged, without status":     {statuses: []v1.VolumeStatus{permanent}, want: "root, data"},
		"a drive stays while its disc comes":    {drive: true, statuses: []v1.VolumeStatus{permanent, hotplug(v1.VolumePending)}, want: "root, data (empty)"},
		"a drive with the disc that has come":   {drive: true, statuses: []v1.VolumeStatus{permanent, hotplug(v1.VolumeReady)}, want: "root, data"},
		"a drive stays while its disc is taken": {drive: true, statuses: []v1.VolumeStatus{permanent, hotplug(v1.HotplugVolumeDetaching)}, want: "root, data (empty)"},
	} {
		rows[name] = diskRow{change: func(v vmiArg, _ *Facts) {
			kind := scsiDisk
			if r.drive {
				kind = sataDrive
			}
			domainfixture.AddDisk(v, "data", kind)
			v.Spec.Volumes[1].VolumeSource = claimSource(r.plugable)
			v.Status.VolumeStatus = r.statuses
		}, read: names, want: r.want}
	}
	runDiskRows(t, rows)
}

func TestDisks_SharesNoMemoryWithVMI(t *testing.T) {
	vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
	g := uint(4096)
	root(vmi).BlockSize = &v1.BlockSize{Custom: &v1.CustomBlockSize{Logical: 512, Physical: 4096, DiscardGranularity: &g}}
	d, err := Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	*d.Devices.Disks[0].BlockIO.DiscardGranularity = 1
	if g != 4096 {
		t.Error("the domain and the object share memory")
	}
}

func TestDisks_WithoutVolume(t *testing.T) {
	vmi := domainfixture.Small()
	domainfixture.AddDisk(vmi, "other", virtioDisk)
	_, err := Convert(vmi, domainfixture.Facts[Facts]())
	wantError(t, err, "spec.domain.devices.disks[1].name", domain.ErrInvalid)
	if !errors.Is(err, domain.ErrInvalid) || !strings.Contains(err.Error(), "no matching volume") {
		t.Errorf("C29: error is %v", err)
	}
}
