// SPDX-License-Identifier: Apache-2.0

package domaintest_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"
)

// definition is a domain good enough for memory.
func definition(t testing.TB, name string) *libvirtxml.Domain {
	t.Helper()
	id := uuid.NewSHA1(uuid.NameSpaceOID, []byte(name)).String()
	d := &libvirtxml.Domain{
		Type: "qemu", Name: name, UUID: id, Memory: &libvirtxml.DomainMemory{Value: 64, Unit: "MiB"},
		Devices: &libvirtxml.DomainDeviceList{},
	}
	if err := domain.PutMetadata(d, domain.Metadata{Namespace: "conformance", Name: name, UID: types.UID(id), Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	return d
}

func alias(name string) *libvirtxml.DomainAlias {
	return &libvirtxml.DomainAlias{Name: domain.AliasPrefix + name}
}

func file(path string) *libvirtxml.DomainDiskSource {
	return &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}}
}

// fit are the changes of a definition that memory needs for an ability.
func fit(here *domaintest.Hypervisor) map[domaintest.Ability]func(testing.TB, *libvirtxml.Domain) {
	addDisk := func(d libvirtxml.DomainDisk) func(testing.TB, *libvirtxml.Domain) {
		return func(_ testing.TB, to *libvirtxml.Domain) { to.Devices.Disks = append(to.Devices.Disks, d) }
	}
	return map[domaintest.Ability]func(testing.TB, *libvirtxml.Domain){
		domaintest.CPUHotplug:   func(_ testing.TB, d *libvirtxml.Domain) { d.VCPU = &libvirtxml.DomainVCPU{Value: 2, Current: 1} },
		domaintest.DiskResize:   addDisk(libvirtxml.DomainDisk{Device: "disk", Alias: alias("root"), Source: file("/root.img")}),
		domaintest.MediumChange: addDisk(libvirtxml.DomainDisk{Device: "cdrom", Alias: alias("drive")}),
		domaintest.Agent: func(testing.TB, *libvirtxml.Domain) {
			here.SetAgents(&domain.GuestInfo{
				AgentVersion: "1.0", Hostname: "guest",
				Commands: []string{"guest-fsfreeze-freeze", "guest-ping"},
			})
		},
	}
}

// plugs are the devices that can be attached.
func plugs() map[domaintest.Ability]func(testing.TB) domain.Device {
	disk := func(bus string) func(testing.TB) domain.Device {
		return func(testing.TB) domain.Device {
			return &libvirtxml.DomainDisk{
				Device: "disk", Alias: alias("more-" + bus), Source: file("/more.img"),
				Target: &libvirtxml.DomainDiskTarget{Dev: "disk-on-" + bus, Bus: bus},
			}
		}
	}
	return map[domaintest.Ability]func(testing.TB) domain.Device{
		domaintest.DiskHotplug: disk("virtio"),
		domaintest.SCSIHotplug: disk("scsi"),
		domaintest.InterfaceHotplug: func(testing.TB) domain.Device {
			return &libvirtxml.DomainInterface{
				Alias: alias("second"), MAC: &libvirtxml.DomainInterfaceMAC{Address: "02:00:00:00:00:02"},
				Source: &libvirtxml.DomainInterfaceSource{Bridge: &libvirtxml.DomainInterfaceSourceBridge{Bridge: "br0"}},
			}
		},
		domaintest.MemoryHotplug: func(testing.TB) domain.Device {
			return &libvirtxml.DomainMemorydev{
				Model: string(domain.VirtioMem), Alias: alias("memory"),
				Target: &libvirtxml.DomainMemorydevTarget{
					Size:      &libvirtxml.DomainMemorydevTargetSize{Value: 128, Unit: "MiB"},
					Requested: &libvirtxml.DomainMemorydevTargetRequested{Value: 64, Unit: "MiB"},
				},
			}
		},
		domaintest.MediumChange: func(testing.TB) domain.Device {
			return &libvirtxml.DomainDisk{Device: "cdrom", Alias: alias("drive"), Source: file("/disc.iso")}
		},
	}
}

func TestMemoryHypervisorConforms(t *testing.T) {
	domaintest.Conformance(t, func(testing.TB) domaintest.Driver {
		here, there := domaintest.New("here"), domaintest.New("there")
		here.SetHost(domain.Host{Name: "here", Arch: "x86_64", Hypervisor: "MEMORY", Version: "1.0.0", CPUs: 4, MemoryBytes: 16 << 30,
			LibraryVersion: "1.0.0", KVMReason: "guests live in memory", Cells: []domain.Cell{{ID: 1}}})
		here.Connect("memory://there", there)
		return domaintest.Driver{
			Hypervisor: here, Peer: there, PeerURI: "memory://there",
			Definition: definition, Fit: fit(here), Devices: plugs(),
			Crash:      func(_ testing.TB, name string) { here.Crash(name) },
			Disconnect: func(testing.TB) { here.Disconnect() },
			Reconnect:  func(testing.TB) { here.Reconnect() },
			Slow:       func(r *domain.MigrationRequest) { r.BandwidthMiB = 1 },
			Cut:        func(testing.TB) { here.Link("memory://there").Cut() },
			Mend:       func(testing.TB) { here.Link("memory://there").Restore() },
		}
	})
}
