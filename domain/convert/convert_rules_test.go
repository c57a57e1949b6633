// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	k8sv1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

func TestConvert_Rules(t *testing.T) {
	// Each row changes the small VMI and reads one value of its domain.
	type row struct {
		change func(*v1.VirtualMachineInstance, *Facts)
		read   func(*libvirtxml.Domain) any
		want   any
	}
	disk := func(i int) func(*libvirtxml.Domain) *libvirtxml.DomainDisk {
		return func(d *libvirtxml.Domain) *libvirtxml.DomainDisk { return &d.Devices.Disks[i] }
	}
	targets := func(d *libvirtxml.Domain) any {
		var out []string
		for _, x := range d.Devices.Disks {
			out = append(out, x.Target.Dev)
		}
		return strings.Join(out, " ")
	}
	topo := func(d *libvirtxml.Domain) any {
		return [4]int{d.CPU.Topology.Sockets, d.CPU.Topology.Cores, d.CPU.Topology.Threads, int(d.VCPU.Value)}
	}
	memory := func(d *libvirtxml.Domain) any { return d.Memory.Value }
	first := disk(0)
	rows := map[string]row{
		"name is namespace and name": {read: func(d *libvirtxml.Domain) any { return d.Name }, want: "mynamespace_testvmi"},
		"uuid is the object's":       {read: func(d *libvirtxml.Domain) any { return d.UUID }, want: "5b6c1a2e-0000-4000-8000-00000000000a"},
		"type is kvm unless emulated": {
			change: func(_ *v1.VirtualMachineInstance, f *Facts) { f.Emulation = false },
			read:   func(d *libvirtxml.Domain) any { return d.Type }, want: "kvm",
		},
		"memory from the request": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Memory = nil
				v.Spec.Domain.Resources.Requests = k8sv1.ResourceList{k8sv1.ResourceMemory: resource.MustParse("8192Ki")}
				v.Spec.Domain.Resources.Limits = k8sv1.ResourceList{k8sv1.ResourceMemory: resource.MustParse("1Gi")}
			}, read: memory, want: uint(8388608),
		},
		"memory from the limit if nothing is requested": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Memory = nil
				v.Spec.Domain.Resources.Limits = k8sv1.ResourceList{k8sv1.ResourceMemory: resource.MustParse("1Gi")}
			}, read: memory, want: uint(1 << 30),
		},
		"memory of the guest beats the request": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Resources.Requests = k8sv1.ResourceList{k8sv1.ResourceMemory: resource.MustParse("1Gi")}
			}, read: memory, want: uint(64 << 20),
		},
		"CPUs multiply": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.CPU = &v1.CPU{Cores: 3, Sockets: 2, Threads: 2}
			},
			read: topo, want: [4]int{2, 3, 2, 12},
		},
		"sockets from the request": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Resources.Requests = k8sv1.ResourceList{k8sv1.ResourceCPU: resource.MustParse("3")}
			}, read: topo, want: [4]int{3, 1, 1, 3},
		},
		"sockets from the limit before the request": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Resources.Requests = k8sv1.ResourceList{k8sv1.ResourceCPU: resource.MustParse("3")}
				v.Spec.Domain.Resources.Limits = k8sv1.ResourceList{k8sv1.ResourceCPU: resource.MustParse("4")}
			}, read: topo, want: [4]int{4, 1, 1, 4},
		},
		"room for more sockets": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.CPU = &v1.CPU{Cores: 2, Sockets: 2, Threads: 2, MaxSockets: 4}
			}, read: func(d *libvirtxml.Domain) any {
				on := 0
				for _, c := range d.VCPUs.VCPU {
					if c.Enabled == "yes" {
						on++
					}
				}
				return [3]int{int(d.VCPU.Value), on, int(d.VCPU.Current)}
			}, want: [3]int{16, 8, 8},
		},
		"no room for more sockets on arm64": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				f.Arch = xmlspec.ArchARM
				v.Spec.Domain.CPU = &v1.CPU{Cores: 2, Sockets: 2, MaxSockets: 4}
			}, read: topo, want: [4]int{2, 2, 1, 4},
		},
		"named model loses mpx": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.CPU = &v1.CPU{Model: "Conroe"} },
			read:   func(d *libvirtxml.Domain) any { return d.CPU.Features },
			want:   []libvirtxml.DomainCPUFeature{{Name: "mpx", Policy: "disable"}},
		},
		"mpx of the user is kept": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.CPU = &v1.CPU{Model: "Conroe", Features: []v1.CPUFeature{{Name: "mpx"}}}
			}, read: func(d *libvirtxml.Domain) any { return d.CPU.Features },
			want: []libvirtxml.DomainCPUFeature{{Name: "mpx", Policy: "require"}},
		},
		"model is host-model by default": {read: func(d *libvirtxml.Domain) any { return d.CPU.Mode }, want: "host-model"},
		"targets count per prefix": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				domainfixture.AddDisk(v, "data", v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
				domainfixture.AddDisk(v, "cloudinit", v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}})
			}, read: targets, want: "vda vdb sda",
		},
		"a recorded target is kept": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				domainfixture.AddDisk(v, "data", v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
				v.Status.VolumeStatus = []v1.VolumeStatus{{Name: "data", Target: "vda"}}
			}, read: targets, want: "vdb vda",
		},
		"a disk without bus is sata on amd64": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.Disks[0].DiskDevice = v1.DiskDevice{}
			},
			read: func(d *libvirtxml.Domain) any { return first(d).Target.Bus }, want: "sata",
		},
		"a cdrom is read-only unless the spec says otherwise": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				domainfixture.AddDisk(v, "cloudinit", v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}})
				domainfixture.AddDisk(v, "scratch", v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA, ReadOnly: new(false)}})
			}, read: func(d *libvirtxml.Domain) any {
				return [2]bool{disk(1)(d).ReadOnly != nil, disk(2)(d).ReadOnly != nil}
			}, want: [2]bool{true, false},
		},
		"cache is none where O_DIRECT works": {
			change: func(_ *v1.VirtualMachineInstance, f *Facts) {
				f.Disks["root"] = DiskSource{Path: "/dev/x", Block: true, DirectIO: true}
			}, read: func(d *libvirtxml.Domain) any { return first(d).Driver.Cache + " " + first(d).Driver.IO }, want: "none native",
		},
		"cache is writethrough elsewhere": {read: func(d *libvirtxml.Domain) any { return first(d).Driver.Cache + " " + first(d).Driver.IO }, want: "writethrough "},
		"cache is writethrough over a backing file without O_DIRECT": {
			change: func(_ *v1.VirtualMachineInstance, f *Facts) {
				f.Disks["root"] = DiskSource{Path: "/x", Format: "qcow2", DirectIO: true, Backing: &DiskSource{Path: "/y"}}
			}, read: func(d *libvirtxml.Domain) any { return first(d).Driver.Cache }, want: "writethrough",
		},
		"a preallocated claim is not punched": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				f.Disks["root"] = DiskSource{Path: "/x", DirectIO: true, Preallocated: true}
				v.Status.VolumeStatus = []v1.VolumeStatus{{Name: "root", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{Preallocated: true}}}
			},
			read: func(d *libvirtxml.Domain) any { return first(d).Driver.Discard + first(d).Driver.IO }, want: "native",
		},
		"a shareable disk has no cache": {
			change: func(v *v1.VirtualMachineInstance, f *Facts) {
				v.Spec.Domain.Devices.Disks[0].Shareable = new(true)
				f.Disks["root"] = DiskSource{Path: "/x", DirectIO: true}
			},
			read: func(d *libvirtxml.Domain) any { return first(d).Driver.Cache }, want: "none",
		},
		"errors stop the guest by default": {read: func(d *libvirtxml.Domain) any { return first(d).Driver.ErrorPolicy }, want: "stop"},
		"queues count present CPUs, on virtio only": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.CPU = &v1.CPU{Cores: 2, Threads: 2, Sockets: 2, MaxSockets: 8}
				v.Spec.Domain.Devices.BlockMultiQueue = new(true)
				domainfixture.AddDisk(v, "data", v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSATA}})
			}, read: func(d *libvirtxml.Domain) any {
				return [2]any{*disk(0)(d).Driver.Queues, disk(1)(d).Driver.Queues == nil}
			}, want: [2]any{uint(8), true},
		},
		"a disk can name its PCI address": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.Disks[0].Disk.PciAddress = "0000:81:01.0"
			},
			read: func(d *libvirtxml.Domain) any {
				p := first(d).Address.PCI
				return [4]uint{*p.Domain, *p.Bus, *p.Slot, *p.Function}
			}, want: [4]uint{0, 0x81, 1, 0},
		},
		"a read-only source makes a read-only disk": {
			change: func(_ *v1.VirtualMachineInstance, f *Facts) {
				f.Disks["root"] = DiskSource{Path: "/x", ReadOnly: true}
			},
			read: func(d *libvirtxml.Domain) any { return first(d).ReadOnly != nil }, want: true,
		},
		"an interface that is absent is left out": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.Interfaces[0].State = v1.InterfaceStateAbsent
			},
			read: func(d *libvirtxml.Domain) any { return len(d.Devices.Interfaces) }, want: 0,
		},
		"an interface that is down has its link down": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.Interfaces[0].State = v1.InterfaceStateLinkDown
			},
			read: func(d *libvirtxml.Domain) any { return d.Devices.Interfaces[0].Link.State }, want: "down",
		},
		"models other than virtio are taken as they are": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.Devices.Interfaces[0].Model = "e1000" },
			read:   func(d *libvirtxml.Domain) any { return d.Devices.Interfaces[0].Model.Type }, want: "e1000",
		},
		"no serial console": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.AutoattachSerialConsole = new(false)
			},
			read: func(d *libvirtxml.Domain) any { return len(d.Devices.Serials) }, want: 0,
		},
		"no graphics": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Devices.AutoattachGraphicsDevice = new(false)
			},
			read: func(d *libvirtxml.Domain) any {
				return [2]int{len(d.Devices.Graphics), len(d.Devices.Videos)}
			}, want: [2]int{0, 0},
		},
		"reboot policy": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.RebootPolicy = new(v1.RebootPolicyReboot)
			},
			read: func(d *libvirtxml.Domain) any { return d.OnReboot }, want: "restart",
		},
		"without features there is ACPI": {read: func(d *libvirtxml.Domain) any { return d.Features.ACPI != nil }, want: true},
		"ACPI can be switched off": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Features = &v1.Features{ACPI: v1.FeatureState{Enabled: new(false)}}
			}, read: func(d *libvirtxml.Domain) any { return d.Features.ACPI != nil }, want: false,
		},
		"ports are free for what comes later": {
			read: func(d *libvirtxml.Domain) any { return countPorts(d) }, want: 8,
		},
		"large guests have more free ports": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Memory.Guest = new(resource.MustParse("3Gi"))
			}, read: func(d *libvirtxml.Domain) any { return countPorts(d) }, want: 16,
		},
		"without hotplug no port is free": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.Devices.DisableHotplug = true },
			read:   func(d *libvirtxml.Domain) any { return countPorts(d) }, want: 4, // disk, card, serial bus, balloon
		},
	}
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
		})
	}
}

func countPorts(d *libvirtxml.Domain) int {
	n := 0
	for _, c := range d.Devices.Controllers {
		if c.Model == "pcie-root-port" {
			n++
		}
	}
	return n
}

func TestControllers_DistinctIndexes(t *testing.T) {
	vmi := domainfixture.Small()
	for i := range 40 { // more devices than free ports
		vmi.Spec.Domain.Devices.Inputs = append(vmi.Spec.Domain.Devices.Inputs,
			v1.Input{Name: fmt.Sprintf("t%d", i), Type: v1.InputTypeTablet, Bus: v1.InputBusVirtio})
	}
	d, err := Convert(vmi, domainfixture.Facts[Facts]())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range d.Devices.Controllers {
		if c.Index == nil {
			t.Fatalf("controller %s has no index", c.Type)
		}
		key := c.Type + string(rune('0'+*c.Index))
		if seen[key] {
			t.Errorf("controller %s index %d", c.Type, *c.Index)
		}
		seen[key] = true
	}
	if !seen["pci0"] {
		t.Error("pcie-root is missing")
	}
}

func TestMAC_StableLocalUnicast(t *testing.T) {
	a := MAC("5b6c1a2e-0000-4000-8000-00000000000a", "default")
	// Running guests have this address: another algorithm would change it.
	if want := "02:5e:ee:25:8e:6d"; a != want {
		t.Errorf("address is %s, want %s", a, want)
	}
	if a == MAC("5b6c1a2e-0000-4000-8000-00000000000a", "other") || a == MAC("5b6c1a2e-0000-4000-8000-00000000000b", "default") {
		t.Error("two interfaces have the same address")
	}
}

func TestConvertWith_CustomPasses(t *testing.T) {
	passes := append(Passes(), Pass{Name: "title", Apply: func(c *Conversion) error {
		c.Domain.Title = c.VMI.Annotations["title"]
		return nil
	}}, Pass{Name: "veto", Apply: func(c *Conversion) error {
		if c.Domain.Title == "" {
			return c.Invalid("metadata.annotations[title]", "is missing", "set it")
		}
		return nil
	}})
	vmi := domainfixture.Small()
	_, err := ConvertWith(vmi, domainfixture.Facts[Facts](), passes)
	wantError(t, err, "metadata.annotations[title]", domain.ErrInvalid)
	vmi.Annotations = map[string]string{"title": "mine"}
	d, err := ConvertWith(vmi, domainfixture.Facts[Facts](), passes)
	if err != nil || d.Title != "mine" {
		t.Errorf("domain is %+v, %v", d, err)
	}
}

func TestEmulationFor_Permission(t *testing.T) {
	for name, row := range map[string]struct {
		kvm, allowed, want bool
		err                error
	}{
		"KVM works":               {kvm: true, allowed: true, want: false},
		"KVM works, not allowed":  {kvm: true, want: false},
		"no KVM, allowed":         {allowed: true, want: true},
		"no KVM, and not allowed": {err: domain.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := EmulationFor(domain.Host{Name: "n", KVM: row.kvm, KVMReason: "because"}, row.allowed)
			if got != row.want || !errors.Is(err, row.err) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}
