// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/xml"
	"regexp"
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

// machineRow changes the small VMI, on a node with KVM, with the expected XML of one element, "" if
// it must be missing.
type machineRow struct {
	change  func(*v1.VirtualMachineInstance, *Facts)
	element string
	want    string
}

var (
	closedAtOnce = regexp.MustCompile(`<(\w[^<>]*)></[\w-]+>`)
	indentation  = regexp.MustCompile(`\n\s*`)
)

// elementOf returns the first element with that name in the domain's XML, on one line.
func elementOf(t *testing.T, d *libvirtxml.Domain, name string) string {
	t.Helper()
	s := domainfixture.Marshal(t, d)
	start := regexp.MustCompile(`<` + name + `[ >]`).FindStringIndex(s)
	if start == nil {
		return ""
	}
	s = s[start[0]:]
	end := "</" + name + ">"
	s = s[:strings.Index(s, end)+len(end)]
	return closedAtOnce.ReplaceAllString(indentation.ReplaceAllString(s, ""), "<$1/>")
}

func runMachineRows(t *testing.T, rows map[string]machineRow) {
	t.Helper()
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			f.Emulation = false
			if r.change != nil {
				r.change(vmi, &f)
			}
			d, err := Convert(vmi, f)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r.want, elementOf(t, d, r.element)); diff != "" {
				t.Errorf("<%s> (-want +got):\n%s", r.element, diff)
			}
			back := &libvirtxml.Domain{}
			if err := back.Unmarshal(domainfixture.Marshal(t, d)); err != nil {
				t.Fatal(err)
			}
			unnamed := cmp.Comparer(func(xml.Name, xml.Name) bool { return true })
			sent := *d
			sent.Devices, back.Devices = nil, nil
			if diff := cmp.Diff(&sent, back, unnamed); diff != "" {
				t.Errorf("the domain differs from its XML (-sent +read):\n%s", diff)
			}
		})
	}
}

// machineError changes the small VMI, with the expected field and error.
type machineError struct {
	change func(*v1.VirtualMachineInstance, *Facts)
	field  string
	err    error
}

func runMachineErrors(t *testing.T, rows map[string]machineError) {
	t.Helper()
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			vmi, f := domainfixture.Small(), domainfixture.Facts[Facts]()
			f.Emulation = false
			r.change(vmi, &f)
			_, err := Convert(vmi, f)
			wantError(t, err, r.field, r.err)
		})
	}
}

// giveCPU and the following functions each return one change.
func giveCPU(c v1.CPU) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.CPU = &c }
}

func onArch(arch string, list ...func(*v1.VirtualMachineInstance, *Facts)) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, f *Facts) {
		f.Arch = arch
		v.Spec.Architecture = architectures[arch].name
		changes(list...)(v, f)
	}
}

func changes(list ...func(*v1.VirtualMachineInstance, *Facts)) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, f *Facts) {
		for _, change := range list {
			change(v, f)
		}
	}
}

func giveMemory(guest, most string) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, _ *Facts) {
		v.Spec.Domain.Memory = &v1.Memory{Guest: new(resource.MustParse(guest))}
		if most != "" {
			v.Spec.Domain.Memory.MaxGuest = new(resource.MustParse(most))
		}
	}
}

func resourcesOf(requests, limits k8sv1.ResourceList) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, _ *Facts) {
		v.Spec.Domain.Resources.Requests, v.Spec.Domain.Resources.Limits = requests, limits
	}
}

func noMemory(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.Memory = nil }

func cpuAmount(n string) k8sv1.ResourceList {
	return k8sv1.ResourceList{k8sv1.ResourceCPU: resource.MustParse(n)}
}

func memoryAmount(n string) k8sv1.ResourceList {
	return k8sv1.ResourceList{k8sv1.ResourceMemory: resource.MustParse(n)}
}

func TestSpecMachine(t *testing.T) {
	chassis := func(v *v1.VirtualMachineInstance, _ *Facts) {
		v.Spec.Domain.Chassis = &v1.Chassis{Manufacturer: "M", Asset: "A"}
	}
	identity := func(v *v1.VirtualMachineInstance, f *Facts) {
		v.Spec.Domain.Firmware = &v1.Firmware{UUID: "0A1B2C3D-0000-4000-8000-000000000001", Serial: "S"}
		f.SMBIOS = &SMBIOS{}
	}
	const foreignEmulator = "/usr/bin/qemu-system-aarch64"
	foreign := func(v *v1.VirtualMachineInstance, f *Facts) {
		v.Spec.Architecture = "arm64"
		f.Emulators = map[string]string{xmlspec.ArchARM: foreignEmulator}
	}
	policy := func(p *v1.RebootPolicy) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.RebootPolicy = p }
	}
	runMachineRows(t, map[string]machineRow{
		"C1: the domain's name is namespace and name": {element: "name", want: "<name>mynamespace_testvmi</name>"},
		"C4: system information reaches guests on amd64": {
			element: "os", want: `<os><type arch="x86_64" machine="q35">hvm</type><smbios mode="sysinfo"/></os>`,
		},
		"C4: system information does not reach guests on s390x": {
			change: onArch(xmlspec.ArchS390X), element: "os", want: `<os><type arch="s390x" machine="s390-ccw-virtio">hvm</type></os>`,
		},
		"machine: arm64 has its own machine": {
			change: onArch(xmlspec.ArchARM), element: "os", want: `<os><type arch="aarch64" machine="virt">hvm</type><smbios mode="sysinfo"/></os>`,
		},
		"machine: a type is taken as it is": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Machine = &v1.Machine{Type: "pc-q35-rhel9.6.0"}
			}, element: "type", want: `<type arch="x86_64" machine="pc-q35-rhel9.6.0">hvm</type>`,
		},
		"C5: system information in its order, empty ones too": {
			change: identity, element: "sysinfo",
			want: `<sysinfo type="smbios"><system><entry name="uuid">0a1b2c3d-0000-4000-8000-000000000001</entry><entry name="serial">S</entry>` +
				`<entry name="manufacturer"/><entry name="family"/><entry name="product"/><entry name="sku"/><entry name="version"/></system></sysinfo>`,
		},
		"machine: the domain has the UUID of the firmware": {
			change: identity, element: "uuid", want: "<uuid>0a1b2c3d-0000-4000-8000-000000000001</uuid>",
		},
		"machine: without settings of the cluster a guest's make is KubeVirt": {
			change: onArch(xmlspec.ArchS390X), element: "system",
			want: `<system><entry name="uuid">5b6c1a2e-0000-4000-8000-00000000000a</entry><entry name="manufacturer">KubeVirt</entry>` +
				`<entry name="family">KubeVirt</entry><entry name="product">None</entry><entry name="sku"/><entry name="version"/></system>`,
		},
		"machine: a chassis has all its entries": {
			change: chassis, element: "chassis",
			want: `<chassis><entry name="manufacturer">M</entry><entry name="version"/><entry name="serial"/><entry name="asset">A</entry><entry name="sku"/></chassis>`,
		},
		"machine: a guest that starts paused has a boot menu": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.StartStrategy = new(v1.StartStrategyPaused)
			}, element: "bootmenu", want: `<bootmenu enable="yes" timeout="10000"/>`,
		},
		"machine: the BIOS writes to the serial console": {
			change: func(v *v1.VirtualMachineInstance, _ *Facts) {
				v.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{BIOS: &v1.BIOS{UseSerial: new(true)}}}
			}, element: "bios", want: `<bios useserial="yes"/>`,
		},
		"C82: rebootPolicy Terminate destroys":    {change: policy(new(v1.RebootPolicyTerminate)), element: "on_reboot", want: "<on_reboot>destroy</on_reboot>"},
		"C82: rebootPolicy Reboot restarts":       {change: policy(new(v1.RebootPolicyReboot)), element: "on_reboot", want: "<on_reboot>restart</on_reboot>"},
		"C82: no rebootPolicy is libvirt's":       {element: "on_reboot"},
		"machine: a crash is left to libvirt":     {element: "on_crash"},
		"machine: a power-off is left to libvirt": {element: "on_poweroff"},
		"machine: an open /dev/iommu is named": {
			change:  func(_ *v1.VirtualMachineInstance, f *Facts) { f.IOMMUFD = true },
			element: "iommufd", want: `<iommufd enabled="yes" fdgroup="iommu"/>`,
		},
		"machine: no /dev/iommu by default": {element: "iommufd"},
		"machine: a guest of another architecture has the machine of its own": {
			change: foreign, element: "type", want: `<type arch="aarch64" machine="virt">hvm</type>`,
		},
		"machine: a guest of another architecture has its emulator": {
			change: foreign, element: "emulator", want: "<emulator>" + foreignEmulator + "</emulator>",
		},
		"machine: a guest of another architecture has all its emulator's CPU can": {
			change: changes(foreign, giveCPU(v1.CPU{Model: "host-passthrough"})), element: "model", want: "<model>max</model>",
		},
		"machine: a guest of another architecture has no display": {change: foreign, element: "graphics"},
	})
	rows := map[string]struct {
		host  domain.Host
		allow bool
		want  string
	}{
		"C1: the type is kvm":                              {host: domain.Host{KVM: true}, want: "kvm"},
		"C1: allowed emulation is not used where KVM is":   {host: domain.Host{KVM: true}, allow: true, want: "kvm"},
		"C83: without KVM emulation has to be allowed":     {host: domain.Host{Name: "node01", KVMReason: "no device"}},
		"C83: without KVM an allowed emulation is of qemu": {allow: true, want: "qemu"},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			emulated, err := EmulationFor(r.host, r.allow)
			if r.want == "" {
				wantError(t, err, "", domain.ErrUnsupported)
				return
			}
			f := domainfixture.Facts[Facts]()
			f.Emulation = emulated
			d, err := Convert(domainfixture.Small(), f)
			if err != nil {
				t.Fatal(err)
			}
			if d.Type != r.want {
				t.Errorf("type is %s, want %s", d.Type, r.want)
			}
		})
	}
	if vmi, f := domainfixture.Small(), domainfixture.Facts[Facts](); true {
		foreign(vmi, &f)
		d, err := Convert(vmi, f)
		if err != nil || d.Type != "qemu" {
			t.Errorf("machine: cross-architecture guest: type %q, error %v", d.Type, err)
		}
	}
}

func TestSpecMachine_Errors(t *testing.T) {
	runMachineErrors(t, map[string]machineError{
		"machine: an architecture the node cannot emulate": {
			func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Architecture = "s390x" }, "spec.architecture", domain.ErrInvalid,
		},
		"machine: an architecture nobody knows": {
			func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Architecture = "riscv64" }, "spec.architecture", domain.ErrInvalid,
		},
		"machine: an emulator without a path": {func(v *v1.VirtualMachineInstance, f *Facts) {
			v.Spec.Architecture, f.Emulators = "arm64", map[string]string{xmlspec.ArchARM: "qemu"}
		}, "", domain.ErrInvalid},
		"machine: a node of an architecture nobody knows": {
			func(_ *v1.VirtualMachineInstance, f *Facts) { f.Arch = "riscv64" }, "", domain.ErrUnsupported,
		},
		"machine: BIOS and UEFI": {func(v *v1.VirtualMachineInstance, _ *Facts) {
			v.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{BIOS: &v1.BIOS{}, EFI: &v1.EFI{}}}
		}, "spec.domain.firmware.bootloader", domain.ErrInvalid},
	})
}

func TestSpecMemory(t *testing.T) {
	huge := func(page string) func(*v1.VirtualMachineInstance, *Facts) {
		return func(v *v1.VirtualMachineInstance, _ *Facts) {
			if v.Spec.Domain.Memory == nil {
				v.Spec.Domain.Memory = &v1.Memory{}
			}
			v.Spec.Domain.Memory.Hugepages = &v1.Hugepages{PageSize: page}
		}
	}
	noMemfd := func(v *v1.VirtualMachineInstance, _ *Facts) { annotate(v, "kubevirt.io/memfd", "false") }
	share := func(v *v1.VirtualMachineInstance, f *Facts) {
		v.Spec.Domain.Devices.Filesystems = []v1.Filesystem{{Name: "foo", Virtiofs: &v1.FilesystemVirtiofs{}}}
		v.Spec.Volumes = append(v.Spec.Volumes, v1.Volume{Name: "foo", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}})
		f.Filesystems = map[string]string{"foo": "/run/foo.sock"}
	}
	passt := func(v *v1.VirtualMachineInstance, f *Facts) {
		v.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{PasstBinding: &v1.InterfacePasstBinding{}}
		f.Links = map[string]Link{"default": {Passt: "eth0"}}
	}
	const shared = `<memoryBacking><source type="memfd"/><access mode="shared"/></memoryBacking>`
	runMachineRows(t, map[string]machineRow{
		"C2: memory is what is requested": {
			change: changes(noMemory, resourcesOf(memoryAmount("8192Ki"), nil)), element: "memory", want: `<memory unit="b">8388608</memory>`,
		},
		"memory: the request comes before the limit": {
			change: changes(noMemory, resourcesOf(memoryAmount("16Mi"), memoryAmount("1Gi"))), element: "memory", want: `<memory unit="b">16777216</memory>`,
		},
		"memory: the limit if nothing is requested": {
			change: changes(noMemory, resourcesOf(nil, memoryAmount("1Gi"))), element: "memory", want: `<memory unit="b">1073741824</memory>`,
		},
		"memory: a huge page if there is nothing else": {change: changes(noMemory, huge("1Gi")), element: "memory", want: `<memory unit="b">1073741824</memory>`},
		"memory: room for more": {
			change: giveMemory("1Gi", "4Gi"), element: "maxMemory", want: `<maxMemory unit="b" slots="16">4294967296</maxMemory>`,
		},
		"memory: what may be added belongs to a NUMA node": {
			change: changes(giveMemory("1Gi", "4Gi"), giveCPU(v1.CPU{Sockets: 1, MaxSockets: 4})), element: "numa",
			want: `<numa><cell id="0" cpus="0-3" memory="1048576" unit="KiB"/></numa>`,
		},
		"memory: no room if it is the most already": {change: giveMemory("1Gi", "1Gi"), element: "maxMemory"},
		"memory: no room on s390x":                  {change: onArch(xmlspec.ArchS390X, giveMemory("1Gi", "4Gi")), element: "maxMemory"},
		"memory: no NUMA node on s390x":             {change: onArch(xmlspec.ArchS390X, giveMemory("1Gi", "4Gi"), share), element: "numa"},
		"memory: huge pages are of their size and in an anonymous file": {
			change: changes(giveMemory("1Gi", ""), huge("2Mi")), element: "memoryBacking",
			want: `<memoryBacking><hugepages><page size="2097152" unit="b"/></hugepages><source type="memfd"/></memoryBacking>`,
		},
		"memory: huge pages on s390x are in no file": {
			change: onArch(xmlspec.ArchS390X, giveMemory("1Gi", ""), huge("1Mi")), element: "memoryBacking",
			want: `<memoryBacking><hugepages><page size="1048576" unit="b"/></hugepages></memoryBacking>`,
		},
		"memory: a file of memory belongs to a NUMA node": {
			change: changes(giveMemory("1Gi", ""), huge("2Mi")), element: "numa", want: `<numa><cell id="0" cpus="0" memory="1048576" unit="KiB"/></numa>`,
		},
		"C79: the annotation keeps huge pages out of a file": {
			change: changes(giveMemory("1Gi", ""), huge("2Mi"), noMemfd), element: "memoryBacking",
			want: `<memoryBacking><hugepages><page size="2097152" unit="b"/></hugepages></memoryBacking>`,
		},
		"C79: without a file there is no NUMA node": {change: changes(giveMemory("1Gi", ""), huge("2Mi"), noMemfd), element: "numa"},
		"C80: virtiofs shares memory":               {change: share, element: "memoryBacking", want: shared},
		"C80: the annotation does not keep shared memory out of a file": {
			change: changes(share, noMemfd), element: "memoryBacking", want: shared,
		},
		"C80: virtiofs needs a NUMA node with all CPUs": {
			change: changes(share, giveCPU(v1.CPU{Cores: 2})), element: "numa", want: `<numa><cell id="0" cpus="0-1" memory="65536" unit="KiB"/></numa>`,
		},
		"memory: passt shares memory":             {change: passt, element: "memoryBacking", want: shared},
		"memory: nothing special by default":      {element: "memoryBacking"},
		"memory: no NUMA node by default":         {element: "numa"},
		"memory: virtiofs on s390x needs no file": {change: onArch(xmlspec.ArchS390X, share), element: "memoryBacking", want: `<memoryBacking><access mode="shared"/></memoryBacking>`},
	})
	runMachineErrors(t, map[string]machineError{
		"memory: less than there is":      {giveMemory("1Gi", "512Mi"), "spec.domain.memory.maxGuest", domain.ErrInvalid},
		"memory: huge pages of no size":   {huge("big"), "spec.domain.memory.hugepages.pageSize", domain.ErrInvalid},
		"memory: huge pages of odd size":  {huge("3Mi"), "spec.domain.memory.hugepages.pageSize", domain.ErrInvalid},
		"memory: huge pages below zero":   {huge("-2Mi"), "spec.domain.memory.hugepages.pageSize", domain.ErrInvalid},
		"memory: a fraction of huge page": {changes(giveMemory("65Mi", ""), huge("2Mi")), "spec.domain.memory.hugepages.pageSize", domain.ErrInvalid},
		"memory: less than a huge page":   {huge("1Gi"), "spec.domain.memory.hugepages.pageSize", domain.ErrInvalid},
	})
}

func TestMebibytes(t *testing.T) {
	for amount, want := range map[string]uint64{"0": 0, "-1Gi": 0, "1": 1, "1M": 1, "100M": 95, "2G": 1907, "2Gi": 2048, "1572864": 2} {
		t.Run("C73: "+amount, func(t *testing.T) {
			if got := xmlspec.Mebibytes(resource.MustParse(amount)); got != want {
				t.Errorf("%s are %d MiB, want %d", amount, got, want)
			}
		})
	}
}
