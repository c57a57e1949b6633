// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/convert/assume"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// diffRow is a VMI that was started, with later changes and the expected differences.
type diffRow struct {
	// before changes the small VMI and its facts before it starts, live the running domain, after
	// the desired VMI. All may be nil.
	before, after func(*v1.VirtualMachineInstance, *convert.Facts)
	live          func(*libvirtxml.Domain)
	// want are the expected differences: class, verb and field.
	want []string
	// check checks the operations. May be nil.
	check func(*testing.T, []Difference)
}

func runDiffRows(t *testing.T, rows map[string]diffRow) {
	t.Helper()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[convert.Facts]()
			if row.before != nil {
				row.before(vmi, &f)
			}
			last, err := convert.Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			live := readBack(t, last)
			if row.live != nil {
				row.live(live)
			}
			f.Layout = convert.LayoutOf(live)
			if row.after != nil {
				row.after(vmi, &f)
			}
			desired, err := convert.Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			found, err := Compare(desired, last, live)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range found {
				checkDifference(t, d)
				verb := ""
				if d.Operation != nil {
					verb = string(d.Operation.Verb) + " "
				}
				got = append(got, fmt.Sprintf("%s: %s%s", d.Class, verb, strings.TrimPrefix(d.Field, fieldDevices)))
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("differences (-want +got):\n%s", diff)
			}
			if row.check != nil && !t.Failed() {
				row.check(t, found)
			}
		})
	}
}

// dedicatedSockets returns a change to n sockets of dedicated CPUs, with a maximum of 8.
func dedicatedSockets(n uint32) func(*v1.VirtualMachineInstance, *convert.Facts) {
	return func(v *v1.VirtualMachineInstance, f *convert.Facts) {
		f.CPUs, f.Cells = assume.Facts(v).CPUs, assume.Facts(v).Cells
		v.Spec.Domain.CPU = &v1.CPU{Sockets: n, MaxSockets: 8, DedicatedCPUPlacement: true}
	}
}

// growing sets memory of 1 GiB with a maximum of 4.
func growing(v *v1.VirtualMachineInstance, _ *convert.Facts) {
	v.Spec.Domain.Memory = &v1.Memory{Guest: new(resource.MustParse("1Gi")), MaxGuest: new(resource.MustParse("4Gi"))}
}

func guestOf(guest, most string) func(*v1.VirtualMachineInstance, *convert.Facts) {
	return func(v *v1.VirtualMachineInstance, _ *convert.Facts) {
		v.Spec.Domain.Memory = &v1.Memory{Guest: new(resource.MustParse(guest)), MaxGuest: new(resource.MustParse(most))}
	}
}

func guestMemoryOf(size string) func(*v1.VirtualMachineInstance, *convert.Facts) {
	return func(v *v1.VirtualMachineInstance, _ *convert.Facts) {
		v.Spec.Domain.Memory.Guest = new(resource.MustParse(size))
	}
}

// withMemory hotplugs a memory device as libvirt presents it.
func withMemory(requested uint64) func(*libvirtxml.Domain) {
	return func(d *libvirtxml.Domain) {
		m := newMemory(3<<30, requested, 2<<20)
		m.Target.Size, m.Target.Block = &libvirtxml.DomainMemorydevTargetSize{Value: 3 << 20, Unit: "KiB"}, &libvirtxml.DomainMemorydevTargetBlock{Value: 2048, Unit: "KiB"}
		m.Target.Requested = &libvirtxml.DomainMemorydevTargetRequested{Value: uint(requested >> 10), Unit: "KiB"}
		m.Address = placedOn(convert.Place{Bus: 3})
		d.Devices.Memorydevs = append(d.Devices.Memorydevs, *m)
		d.Memory = &libvirtxml.DomainMemory{Value: 4 << 20, Unit: "KiB"}
	}
}

func memoryOperation(t *testing.T, d Difference) (size, requested, block uint64) {
	t.Helper()
	m, ok := d.Operation.Device.(*libvirtxml.DomainMemorydev)
	if !ok || m.Model != "virtio-mem" || m.Alias.Name != "ua-virtio-mem-0" || m.Target.Node == nil || m.Target.Node.Value != 0 {
		t.Fatalf("device is %+v", d.Operation.Device)
	}
	return xmlspec.BytesOf(m.Target.Size.Value, m.Target.Size.Unit), xmlspec.BytesOf(m.Target.Requested.Value, m.Target.Requested.Unit),
		xmlspec.BytesOf(m.Target.Block.Value, m.Target.Block.Unit)
}

func TestSpecMemory_Hotplug(t *testing.T) {
	const field = fieldDomain + "memory.guest"
	is := func(size, requested, block uint64) func(*testing.T, []Difference) {
		return func(t *testing.T, found []Difference) {
			s, r, b := memoryOperation(t, found[0])
			if s != size || r != requested || b != block {
				t.Errorf("size %d, requested %d, block %d", s, r, b)
			}
		}
	}
	runDiffRows(t, map[string]diffRow{
		"H5: from 1 to 2 of 4 GiB: a device of 3, of which 1": {
			before: growing, after: guestMemoryOf("2Gi"), want: []string{"Live: AttachDevice " + field}, check: is(3<<30, 1<<30, 2097152),
		},
		"H5: the device is there: it is updated": {
			before: growing, live: withMemory(1 << 30), after: guestMemoryOf("3Gi"),
			want: []string{"Live: UpdateDevice " + field}, check: is(3<<30, 2<<30, 2097152),
		},
		"an odd size with room for more is whole KiB at least": {before: guestOf("1000000000", "2Gi"), after: guestOf("1000000000", "2Gi")},
		"H5: the device has as much as it shall":               {before: growing, live: withMemory(1 << 30), after: guestMemoryOf("2Gi")},
		"H5: back to what it was started with": {
			before: growing, live: withMemory(1 << 30), want: []string{"Live: UpdateDevice " + field}, check: is(3<<30, 0, 2097152),
		},
		"memory: huge pages of 1 GiB are plugged whole": {
			before: func(v *v1.VirtualMachineInstance, f *convert.Facts) {
				growing(v, f)
				v.Spec.Domain.Memory.Hugepages = &v1.Hugepages{PageSize: "1Gi"}
			},
			live: func(d *libvirtxml.Domain) {
				d.MemoryBacking = &libvirtxml.DomainMemoryBacking{MemoryHugePages: &libvirtxml.DomainMemoryHugepages{
					Hugepages: []libvirtxml.DomainMemoryHugepage{{Size: 1048576, Unit: "KiB"}},
				}}
			},
			after: guestMemoryOf("2Gi"), want: []string{"Live: AttachDevice " + field}, check: is(3<<30, 1<<30, 1<<30),
		},
		"memory: less than it was started with": {before: growing, after: guestMemoryOf("512Mi"), want: []string{"NextBoot: " + field}},
		"memory: more than there is room for": {
			before: growing, after: func(v *v1.VirtualMachineInstance, _ *convert.Facts) {
				v.Spec.Domain.Memory = &v1.Memory{Guest: new(resource.MustParse("5Gi")), MaxGuest: new(resource.MustParse("8Gi"))}
			}, want: []string{"NextBoot: " + fieldDomain + "memory.maxGuest", "NextBoot: " + field},
		},
		"memory: no whole number of blocks": {before: growing, after: guestMemoryOf("1537Mi"), want: []string{"NextBoot: " + field}},
		"memory: without room":              {after: guestMemoryOf("2Gi"), want: []string{"NextBoot: " + field}},
	})
}

func TestSpecCPUs_Hotplug(t *testing.T) {
	sockets := func(now, most uint32) func(*v1.VirtualMachineInstance, *convert.Facts) {
		return func(v *v1.VirtualMachineInstance, _ *convert.Facts) {
			v.Spec.Domain.CPU = &v1.CPU{Sockets: now, MaxSockets: most}
		}
	}
	count := func(n uint) func(*testing.T, []Difference) {
		return func(t *testing.T, found []Difference) {
			if got := found[0].Operation.VCPUs; got != n {
				t.Errorf("%d CPUs", got)
			}
		}
	}
	const field = fieldDomain + "cpu.sockets"
	runDiffRows(t, map[string]diffRow{
		"H8: from 2 to 4 sockets": {before: sockets(2, 8), after: sockets(4, 8), want: []string{"Live: SetVCPUs " + field}, check: count(4)},
		"with host CPUs of its own, of which it has no more": {
			before: dedicatedSockets(2), after: dedicatedSockets(4), want: []string{"NextBoot: " + fieldDomain + "cpu.dedicatedCpuPlacement", "NeedsMigration: " + field},
		},
		"H8: queues follow the CPUs": {
			before: func(v *v1.VirtualMachineInstance, f *convert.Facts) {
				sockets(2, 8)(v, f)
				v.Spec.Domain.Devices.BlockMultiQueue, v.Spec.Domain.Devices.NetworkInterfaceMultiQueue = new(true), new(true)
			},
			after: sockets(4, 8), want: []string{"Live: SetVCPUs " + field}, check: count(4),
		},
		"cpu: as many as there is room for": {before: sockets(2, 8), after: sockets(8, 8), want: []string{"Live: SetVCPUs " + field}, check: count(8)},
		"cpu: fewer":                        {before: sockets(4, 8), after: sockets(2, 8), want: []string{"NextBoot: " + field}},
		"cpu: more room":                    {before: sockets(2, 4), after: sockets(2, 8), want: []string{"NextBoot: " + fieldDomain + "cpu.maxSockets"}},
		"cpu: somebody has plugged them":    {before: sockets(2, 8), live: func(d *libvirtxml.Domain) { d.VCPU.Current = 4 }, after: sockets(4, 8)},
		"cpu: cores": {
			before: sockets(2, 2), after: func(v *v1.VirtualMachineInstance, _ *convert.Facts) {
				v.Spec.Domain.CPU = &v1.CPU{Sockets: 1, Cores: 2, MaxSockets: 1}
			},
			want: []string{"NextBoot: " + fieldDomain + "cpu.cores"},
		},
	})
}

func TestSpecDevices_Hotplug(t *testing.T) {
	disc := func(v *v1.VirtualMachineInstance, _ *convert.Facts) {
		domainfixture.AddDisk(v, "cloudinit", v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}})
	}
	tapped := func(dev string) func(*v1.VirtualMachineInstance, *convert.Facts) {
		return func(_ *v1.VirtualMachineInstance, f *convert.Facts) {
			f.Links = map[string]convert.Link{"default": {Tap: dev}}
		}
	}
	absent := func(v *v1.VirtualMachineInstance, _ *convert.Facts) {
		v.Spec.Domain.Devices.Interfaces[0].State = v1.InterfaceStateAbsent
	}
	second := func(v *v1.VirtualMachineInstance, f *convert.Facts) {
		d := &v.Spec.Domain.Devices
		d.Interfaces = append(d.Interfaces, v1.Interface{Name: "second", InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}})
		v.Spec.Networks = append(v.Spec.Networks, v1.Network{Name: "second", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "n"}}})
		f.Bridges["second"] = "br1"
	}
	hot := func(name string, bus v1.DiskBus) func(*v1.VirtualMachineInstance, *convert.Facts) {
		return func(v *v1.VirtualMachineInstance, f *convert.Facts) { plugDisk(v, f, name, bus) }
	}
	runDiffRows(t, map[string]diffRow{
		"H3: the disc has changed": {
			before: disc, after: func(_ *v1.VirtualMachineInstance, f *convert.Facts) {
				f.Disks["cloudinit"] = convert.DiskSource{Path: "/new.iso"}
			},
			want: []string{"Live: UpdateDevice disks[cloudinit].volume"},
			check: func(t *testing.T, found []Difference) {
				d := found[0].Operation.Device.(*libvirtxml.DomainDisk)
				if d.Source.File.File != "/new.iso" || d.Alias.Name != "ua-cloudinit" {
					t.Errorf("updated to %+v", d)
				}
			},
		},
		"H3: the disc was removed": {
			before: disc, after: func(v *v1.VirtualMachineInstance, _ *convert.Facts) {
				v.Spec.Volumes = v.Spec.Volumes[:3] // keeps the drive
			},
			want: []string{"Live: UpdateDevice disks[cloudinit].volume"},
			check: func(t *testing.T, found []Difference) {
				if d := found[0].Operation.Device.(*libvirtxml.DomainDisk); xmlspec.PathOf(d.Source) != "" || d.BackingStore != nil {
					t.Errorf("updated to %+v", d)
				}
			},
		},
		"H6: a card that is not there": {after: second, want: []string{"Live: AttachDevice interfaces[second]"}},
		"H6: absent, hashed tap":       {before: tapped("tap1a2b3c4d5e6"), after: absent, want: []string{"Live: DetachDevice interfaces[default]"}},
		"H6: absent, ordinal tap":      {before: tapped("tap1"), after: absent, want: []string{"NextBoot: interfaces[default]"}},
		"drift: a disk was unplugged": {
			live: func(d *libvirtxml.Domain) { d.Devices.Disks = nil }, want: []string{"Live: AttachDevice disks[root]"},
		},
		"drift: a disk was plugged": {
			live: func(d *libvirtxml.Domain) {
				d.Devices.Disks = append(d.Devices.Disks, libvirtxml.DomainDisk{Alias: xmlspec.Alias("extra"), Target: &libvirtxml.DomainDiskTarget{Bus: xmlspec.BusVirtio}})
			}, want: []string{"Live: DetachDevice disks[extra]"},
		},
		"drift: a link was cut": {
			live: func(d *libvirtxml.Domain) {
				d.Devices.Interfaces[0].Link = &libvirtxml.DomainInterfaceLink{State: "down"}
			}, want: []string{"Live: UpdateDevice interfaces[default].state"},
		},
		"drift: another bridge": {
			live: func(d *libvirtxml.Domain) { d.Devices.Interfaces[0].Source.Bridge.Bridge = "br9" },
			want: []string{"Live: UpdateDevice interfaces[default].network"},
		},
		"drift: read-only": {
			live: func(d *libvirtxml.Domain) { d.Devices.Disks[0].ReadOnly = &libvirtxml.DomainDiskReadOnly{} },
			want: []string{"NextBoot: disks[root].readonly"},
		},
		"disks: what goes, goes before what comes": {
			after: func(v *v1.VirtualMachineInstance, f *convert.Facts) {
				v.Spec.Domain.Devices.Disks = nil
				hot("a", v1.DiskBusVirtio)(v, f)
				hot("b", v1.DiskBusSCSI)(v, f)
				v.Spec.Domain.Devices.Interfaces[0].State = v1.InterfaceStateAbsent
				second(v, f)
			},
			want: []string{
				"Live: DetachDevice disks[root]", "Live: DetachDevice interfaces[default]",
				"Live: AttachDevice disks[a]", "Live: AttachDevice disks[b]", "Live: AttachDevice interfaces[second]",
			},
		},
		"disks: SCSI needs its controller": {
			before: func(v *v1.VirtualMachineInstance, _ *convert.Facts) { v.Spec.Domain.Devices.DisableHotplug = true },
			live: func(d *libvirtxml.Domain) {
				d.Devices.Controllers = append(d.Devices.Controllers, libvirtxml.DomainController{Type: "pci", Index: new(uint(9)), Model: "pcie-root-port", PCI: &libvirtxml.DomainControllerPCI{}})
			},
			after: hot("b", v1.DiskBusSCSI), want: []string{"NextBoot: domain.devices.controller", "NextBoot: disks[b]"},
		},
		"disks: one is known by its serial number": {
			before: func(v *v1.VirtualMachineInstance, _ *convert.Facts) { v.Spec.Domain.Devices.Disks[0].Serial = "S1" },
			live:   func(d *libvirtxml.Domain) { d.Devices.Disks[0].Alias.Name = "virtio-disk0" },
		},
		"disks: the address of the spec has changed": {
			after: func(v *v1.VirtualMachineInstance, _ *convert.Facts) {
				v.Spec.Domain.Devices.Disks[0].Disk.PciAddress = "0000:02:00.0"
			}, want: []string{"NextBoot: disks[root].pciAddress"},
		},
		"disks: a thread that is not there serves none": {
			after: func(v *v1.VirtualMachineInstance, f *convert.Facts) {
				v.Spec.Domain.IOThreadsPolicy = new(v1.IOThreadsPolicyShared)
				hot("a", v1.DiskBusVirtio)(v, f)
			},
			want: []string{"NextBoot: " + fieldDomain + "ioThreads", "Live: AttachDevice disks[a]"},
			check: func(t *testing.T, found []Difference) {
				if d := found[1].Operation.Device.(*libvirtxml.DomainDisk); d.Driver.IOThread != nil || d.Driver.IOThreads != nil {
					t.Errorf("hotplugged with %+v", d.Driver)
				}
			},
		},
	})
}

// TestCompare_HotpluggedDevices: a device that was hotplugged is compared with itself, whatever the
// hypervisor has added.
func TestCompare_HotpluggedDevices(t *testing.T) {
	vmi, f := domainfixture.Small(), domainfixture.Facts[convert.Facts]()
	last, err := convert.Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	f.Layout = convert.LayoutOf(last)
	plugDisk(vmi, &f, "hot", v1.DiskBusVirtio)
	desired, err := convert.Convert(vmi, f)
	if err != nil {
		t.Fatal(err)
	}
	live := readBack(t, desired)
	if found, err := Compare(desired, last, live); err != nil || len(found) > 0 {
		t.Errorf("hotplugged as desired: %v, %v", found, err)
	}
	live.Devices.Disks[1].Driver.DetectZeros = "on" // not part of the desired domain
	if found, err := Compare(desired, last, live); err != nil || len(found) > 0 {
		t.Errorf("with an additional setting: %v, %v", found, err)
	}
	desired.Devices.Disks[1].BlockIO = &libvirtxml.DomainDiskBlockIO{LogicalBlockSize: 4096}
	found, err := Compare(desired, last, live)
	if err != nil || len(found) != 1 || found[0].Field != "spec.domain.devices.disks[hot].blockSize" || found[0].Class != NextBoot {
		t.Errorf("with another block size: %v, %v", found, err)
	}
}

func plugDisk(v *v1.VirtualMachineInstance, f *convert.Facts, name string, bus v1.DiskBus) {
	domainfixture.AddDisk(v, name, v1.DiskDevice{Disk: &v1.DiskTarget{Bus: bus}})
	v.Spec.Volumes = append(v.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{HostDisk: &v1.HostDisk{Path: "/srv/" + name}}})
	f.Disks[name] = convert.DiskSource{Path: "/srv/" + name}
}
