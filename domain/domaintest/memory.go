// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"fmt"
	"hash/crc32"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/memory"
)

// peerURI is the URI of the peer of [Memory].
const peerURI = "memory://there"

// Memory returns a driver for [Conformance] whose hypervisors are in memory, and the one of them
// that is under test. A hypervisor that forwards calls, over a wire for example, is tested in front
// of that one: it takes the place of Driver.Hypervisor.
func Memory() (Driver, *memory.Hypervisor) {
	here, there := memory.New("here"), memory.New("there")
	here.SetHost(domain.Host{
		Name: "here", Arch: "x86_64", Hypervisor: "MEMORY", Version: "1.0.0", CPUs: 4, MemoryBytes: 16 << 30,
		LibraryVersion: "1.0.0", KVMReason: "guests live in memory", Cells: []domain.Cell{{ID: 1}},
	})
	here.Connect(peerURI, there)
	d := DriverOf(here)
	d.Peer, d.PeerURI = there, peerURI
	d.Cut = func(testing.TB) { here.Link(peerURI).Cut() }
	d.Mend = func(testing.TB) { here.Link(peerURI).Restore() }
	return d, here
}

// DriverOf returns the driver of a hypervisor in memory for [Conformance], without a peer.
func DriverOf(h *memory.Hypervisor) Driver {
	return Driver{
		Hypervisor: h, Definition: Definition, Fit: memoryFit(h), Devices: memoryDevices(),
		Crash:      func(_ testing.TB, name string) { h.Crash(name) },
		Disconnect: func(testing.TB) { h.Disconnect() },
		Reconnect:  func(testing.TB) { h.Reconnect() },
		Slow:       func(r *domain.MigrationRequest) { r.BandwidthMiB = 1 },
	}
}

// Definition returns a domain that is valid in memory, for [Driver].Definition.
func Definition(t testing.TB, name string) *libvirtxml.Domain {
	t.Helper()
	id := fmt.Sprintf("00000000-0000-4000-8000-%012x", crc32.ChecksumIEEE([]byte(name)))
	d := &libvirtxml.Domain{
		Type: "qemu", Name: name, UUID: id, Memory: &libvirtxml.DomainMemory{Value: 64, Unit: "MiB"},
		Devices: &libvirtxml.DomainDeviceList{},
	}
	m := domain.Metadata{Namespace: "conformance", Name: name, UID: types.UID(id), Epoch: 1}
	if err := m.Put(d); err != nil {
		t.Fatal(err)
	}
	return d
}

func aliased(name string) *libvirtxml.DomainAlias {
	return &libvirtxml.DomainAlias{Name: domain.AliasPrefix + name}
}

func inFile(path string) *libvirtxml.DomainDiskSource {
	return &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}}
}

// memoryFit are the changes of a definition for each ability.
func memoryFit(here *memory.Hypervisor) map[Ability]func(testing.TB, *libvirtxml.Domain) {
	addDisk := func(d libvirtxml.DomainDisk) func(testing.TB, *libvirtxml.Domain) {
		return func(_ testing.TB, to *libvirtxml.Domain) { to.Devices.Disks = append(to.Devices.Disks, d) }
	}
	return map[Ability]func(testing.TB, *libvirtxml.Domain){
		CPUHotplug:   func(_ testing.TB, d *libvirtxml.Domain) { d.VCPU = &libvirtxml.DomainVCPU{Value: 2, Current: 1} },
		DiskResize:   addDisk(libvirtxml.DomainDisk{Device: "disk", Alias: aliased("root"), Source: inFile("/root.img")}),
		MediumChange: addDisk(libvirtxml.DomainDisk{Device: "cdrom", Alias: aliased("drive")}),
		Agent: func(testing.TB, *libvirtxml.Domain) {
			here.SetAgents(&guestagent.Info{
				AgentVersion: "1.0", Hostname: "guest",
				Commands: []string{"guest-fsfreeze-freeze", "guest-ping"},
			})
		},
	}
}

// memoryDevices are the devices that can be attached.
func memoryDevices() map[Ability]func(testing.TB) domain.Device {
	disk := func(bus string) func(testing.TB) domain.Device {
		return func(testing.TB) domain.Device {
			return &libvirtxml.DomainDisk{
				Device: "disk", Alias: aliased("more-" + bus), Source: inFile("/more.img"),
				Target: &libvirtxml.DomainDiskTarget{Dev: "disk-on-" + bus, Bus: bus},
			}
		}
	}
	return map[Ability]func(testing.TB) domain.Device{
		DiskHotplug: disk("virtio"),
		SCSIHotplug: disk("scsi"),
		InterfaceHotplug: func(testing.TB) domain.Device {
			return &libvirtxml.DomainInterface{
				Alias: aliased("second"), MAC: &libvirtxml.DomainInterfaceMAC{Address: "02:00:00:00:00:02"},
				Source: &libvirtxml.DomainInterfaceSource{Bridge: &libvirtxml.DomainInterfaceSourceBridge{Bridge: "br0"}},
			}
		},
		MemoryHotplug: func(testing.TB) domain.Device {
			return &libvirtxml.DomainMemorydev{
				Model: string(domain.VirtioMem), Alias: aliased("memory"),
				Target: &libvirtxml.DomainMemorydevTarget{
					Size:      &libvirtxml.DomainMemorydevTargetSize{Value: 128, Unit: "MiB"},
					Requested: &libvirtxml.DomainMemorydevTargetRequested{Value: 64, Unit: "MiB"},
				},
			}
		},
		MediumChange: func(testing.TB) domain.Device {
			return &libvirtxml.DomainDisk{Device: "cdrom", Alias: aliased("drive"), Source: inFile("/disc.iso")}
		},
	}
}
