// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// addressesOf returns the address of each device: pci bus:slot.function or ccw.
func addressesOf(d *libvirtxml.Domain) map[string]string {
	out := map[string]string{}
	for _, s := range pciSlotsOf(d.Devices) {
		p, ok := PlaceOf(*s.address)
		switch {
		case !ok || strings.HasPrefix(s.key, "controller/pci/"):
		case p.CCW:
			out[s.key] = fmt.Sprintf("%04x", p.Device)
		default:
			out[s.key] = fmt.Sprintf("%02x:%02x.%x", p.Bus, p.Slot, p.Function)
		}
	}
	return out
}

// withCards sets n interfaces.
func withCards(v *v1.VirtualMachineInstance, f *Facts, n int) {
	v.Spec.Domain.Devices.Interfaces, v.Spec.Networks = nil, nil
	for i := range n {
		name := fmt.Sprintf("net%d", i)
		v.Spec.Domain.Devices.Interfaces = append(v.Spec.Domain.Devices.Interfaces,
			v1.Interface{Name: name, InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}})
		v.Spec.Networks = append(v.Spec.Networks, v1.Network{Name: name})
		f.Bridges[name] = "br0"
	}
}

// withDisks sets n virtio disks: disk0 and so on.
func withDisks(v *v1.VirtualMachineInstance, f *Facts, n int) {
	v.Spec.Domain.Devices.Disks, v.Spec.Volumes = nil, nil
	for i := range n {
		plugDisk(v, f, fmt.Sprintf("disk%d", i), v1.DiskBusVirtio)
	}
}

func annotate(v *v1.VirtualMachineInstance, key, value string) {
	if v.Annotations == nil {
		v.Annotations = map[string]string{}
	}
	v.Annotations[key] = value
}

// The small VMI uses four ports: disk, interface, serial controller, balloon. A SCSI controller is
// the fifth.
func TestSpecPorts(t *testing.T) {
	rows := map[string]struct {
		change func(*v1.VirtualMachineInstance, *Facts)
		want   int
	}{
		"pci: 5 devices are filled up to 8 ports": {want: 8},
		"pci: 6 devices have 3 free ports":        {change: func(v *v1.VirtualMachineInstance, f *Facts) { withDisks(v, f, 2) }, want: 9},
		"pci: 9 devices have 3 free ports":        {change: func(v *v1.VirtualMachineInstance, f *Facts) { withDisks(v, f, 5) }, want: 12},
		"pci: 2 GiB is not large": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Memory.Guest = new(resource.MustParse("2Gi"))
			}, want: 8,
		},
		"C76: 2 GiB and a byte fill up to 16 ports": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				withDisks(v, f, 0) // four devices, three ports for interfaces and nine more
				v.Spec.Domain.Memory.Guest = new(resource.MustParse("2147483649"))
			}, want: 4 + 3 + 9,
		},
		"pci: a large guest with 11 devices has 6 free ports": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				withDisks(v, f, 7)
				v.Spec.Domain.Memory.Guest = new(resource.MustParse("4Gi"))
			}, want: 17,
		},
		"C77: 5 cards leave none for cards": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) { withCards(v, f, 5) }, want: 9 + 3,
		},
		"C77: no card, none for cards": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) { withCards(v, f, 0) }, want: 8,
		},
		"pci: slot count of the annotation": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) { annotate(v, v1.PciInterfaceSlotCountAnnotation, "9") }, want: 5 + 8,
		},
		"pci: slot count below the number of cards": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				withCards(v, f, 3)
				annotate(v, v1.PciInterfaceSlotCountAnnotation, "2")
			}, want: 7 + 3,
		},
		"pci: no number of slots is no annotation": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) { annotate(v, v1.PciInterfaceSlotCountAnnotation, "many") }, want: 8,
		},
		"pci: free ports end at 31": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				withCards(v, f, 5)
				withDisks(v, f, 22)
			}, want: 31,
		},
		"pci: devices and ports for cards do not": {change: func(v *v1.VirtualMachineInstance, f *Facts) { withDisks(v, f, 40) }, want: 44 + 3},
		"pci: without hotplug none is free": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.Devices.DisableHotplug = true }, want: 4,
		},
		"C74: none on the root complex": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) { annotate(v, v1.PlacePCIDevicesOnRootComplex, "true") }, want: 0,
		},
		"pci: an address of the spec behind a later port": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.Disks[0].Disk.PciAddress = "0000:0c:00.0"
			}, want: 12,
		},
		"pci: the old bridge takes a port": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				withDisks(v, f, 4)
				v.Spec.Domain.Devices.Interfaces[0].Model = "e1000"
			}, want: 8 + 3,
		},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			if row.change != nil {
				row.change(vmi, &f)
			}
			d, err := Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			if got := countPorts(d); got != row.want {
				t.Errorf("%d ports, want %d", got, row.want)
			}
			checkAddresses(t, d)
		})
	}
}

// checkAddresses checks that addresses are unique and that their buses exist.
func checkAddresses(t *testing.T, d *libvirtxml.Domain) {
	t.Helper()
	l, seen, models := LayoutOf(d), map[Place]string{}, map[uint]string{}
	for _, b := range l.Buses {
		models[b.Index] = b.Model
	}
	for key, p := range l.Places {
		if other := seen[p]; other != "" {
			t.Errorf("%s and %s are both at %+v", key, other, p)
		}
		seen[p] = key
		if p.CCW || len(l.Buses) == 0 {
			continue
		}
		switch model := models[p.Bus]; {
		case model == "":
			t.Errorf("%s is on bus %d, which is missing", key, p.Bus)
		case model == pcieRootPort && p.Slot != 0, model == pcieBridge && p.Slot == 0, p == Place{Slot: slotChipset}:
			t.Errorf("%s is at %+v of %s", key, p, model)
		}
	}
}

func TestSpecAddresses(t *testing.T) {
	rows := map[string]struct {
		change func(*v1.VirtualMachineInstance, *Facts)
		want   map[string]string
	}{
		"pci: cards, ports for cards, buses, disks, balloon": {want: map[string]string{
			"ua-default": "01:00.0", "controller/scsi/0": "05:00.0", "controller/virtio-serial/0": "06:00.0",
			"balloon": "08:00.0", "ua-root": "07:00.0",
		}},
		"C74: slots of bus 0 in order": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) { annotate(v, v1.PlacePCIDevicesOnRootComplex, "true") },
			want: map[string]string{
				"ua-default": "00:02.0", "controller/scsi/0": "00:03.0", "controller/virtio-serial/0": "00:04.0",
				"balloon": "00:06.0", "ua-root": "00:05.0",
			},
		},
		"pci: q35 has a slot for the first video card": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.AutoattachGraphicsDevice, v.Spec.Domain.Devices.DisableHotplug = new(true), true
			},
			want: map[string]string{
				"ua-default": "01:00.0", "controller/virtio-serial/0": "02:00.0", "video0": "00:01.0", "balloon": "04:00.0", "ua-root": "03:00.0",
			},
		},
		"pci: the watchdog is conventional": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.Watchdog = &v1.Watchdog{Name: "dog", WatchdogDevice: v1.WatchdogDevice{I6300ESB: &v1.I6300ESBWatchdog{}}}
				v.Spec.Domain.Devices.DisableHotplug = true
			},
			want: map[string]string{
				"ua-default": "01:00.0", "controller/virtio-serial/0": "02:00.0", "balloon": "04:00.0", "ua-root": "03:00.0", "ua-dog": "06:01.0",
			},
		},
		"pci: transitional devices are conventional": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.UseVirtioTransitional, v.Spec.Domain.Devices.DisableHotplug = new(true), true
			},
			want: map[string]string{
				"ua-default": "02:01.0", "controller/virtio-serial/0": "02:02.0", "balloon": "02:04.0", "ua-root": "02:03.0",
			},
		},
		"pci: an address of the spec stays": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.Disks[0].Disk.PciAddress = "0000:02:00.0"
				v.Spec.Domain.Devices.DisableHotplug = true
			},
			want: map[string]string{"ua-default": "01:00.0", "ua-root": "02:00.0", "controller/virtio-serial/0": "03:00.0", "balloon": "04:00.0"},
		},
		"pci: ports make room on bus 0": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.Disks[0].Disk.PciAddress = "0000:00:02.0"
				v.Spec.Domain.Devices.DisableHotplug = true
			},
			want: map[string]string{"ua-root": "00:02.0", "ua-default": "01:00.0", "controller/virtio-serial/0": "02:00.0", "balloon": "03:00.0"},
		},
		"pci: machine pc has one bus": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.Machine = &v1.Machine{Type: "pc"} },
			want: map[string]string{
				"ua-default": "00:03.0", "controller/scsi/0": "00:04.0", "controller/virtio-serial/0": "00:05.0", "balloon": "00:07.0", "ua-root": "00:06.0",
			},
		},
		"pci: s390x has channels": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) { v.Spec.Architecture, f.Arch = "s390x", xmlspec.ArchS390X },
			want: map[string]string{
				"ua-default": "0000", "controller/scsi/0": "0004", "controller/virtio-serial/0": "0005", "balloon": "0007", "ua-root": "0006",
			},
		},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			vmi.Spec.Domain.Devices.AutoattachGraphicsDevice = new(false)
			if row.change != nil {
				row.change(vmi, &f)
			}
			d, err := Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, addressesOf(d)); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			checkAddresses(t, d)
		})
	}
}

func TestPorts_FixedDevicesDisableHotplug(t *testing.T) {
	d, err := Convert(domainfixture.Small(), domainfixture.Facts[Facts]())
	if err != nil {
		t.Fatal(err)
	}
	on := map[uint]bool{}
	for _, b := range LayoutOf(d).Buses {
		on[b.Index] = !b.Fixed
	}
	places := LayoutOf(d).Places
	for key, want := range map[string]bool{
		"ua-default": true, "ua-root": true, "balloon": false, "controller/scsi/0": false, "controller/virtio-serial/0": false,
	} {
		if got := on[places[key].Bus]; got != want {
			t.Errorf("port of %s supports hotplug: %t", key, got)
		}
	}
	if !on[2] || !on[4] {
		t.Error("a free port has hotplug disabled")
	}
}

func TestSpecPCIHole(t *testing.T) {
	for arch, want := range map[string]bool{xmlspec.ArchX86: true, xmlspec.ArchARM: false} {
		vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
		f.Arch = arch
		annotate(vmi, v1.DisablePCIHole64, "true")
		d, err := Convert(vmi, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range d.Devices.Controllers {
			if hole := c.PCI != nil && c.PCI.Hole64 != nil; c.Model == pcieRoot && hole != want {
				t.Errorf("pci: hole of %s is disabled: %t", arch, hole)
			}
		}
	}
}

func TestSpecAddressConflicts(t *testing.T) {
	rows := map[string]struct {
		disk, card string
		slots      int
		field      string
	}{
		"pci: the same address twice":   {disk: "0000:03:00.0", card: "0000:03:00.0", field: "disks[root].pciAddress"},
		"pci: the chipset's address":    {disk: "0000:00:1f.0", field: "disks[root].pciAddress"},
		"pci: the host bridge's":        {card: "0000:00:00.0", field: "interfaces[default].pciAddress"},
		"C74: bus 0 has no slot left":   {slots: 40, field: "disks[disk25]"},
		"C74: bus 0 has slots up to 1e": {slots: 24},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			vmi.Spec.Domain.Devices.Disks[0].Disk.PciAddress = row.disk
			vmi.Spec.Domain.Devices.Interfaces[0].PciAddress = row.card
			if row.slots > 0 {
				annotate(vmi, v1.PlacePCIDevicesOnRootComplex, "true")
				withDisks(vmi, &f, row.slots)
			}
			_, err := Convert(vmi, f)
			switch {
			case row.field == "" && err != nil:
				t.Fatal(err)
			case row.field != "":
				wantError(t, err, specDevices+row.field, domain.ErrInvalid)
			}
		})
	}
}

func plugDisk(v *v1.VirtualMachineInstance, f *Facts, name string, bus v1.DiskBus) {
	domainfixture.AddDisk(v, name, v1.DiskDevice{Disk: &v1.DiskTarget{Bus: bus}})
	v.Spec.Volumes = append(v.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{HostDisk: &v1.HostDisk{Path: "/srv/" + name}}})
	f.Disks[name] = DiskSource{Path: "/srv/" + name}
}
