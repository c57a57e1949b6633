// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/transport"
)

func testConformance(t *testing.T, ns *nodes) {
	domaintest.Conformance(t, func(t testing.TB) domaintest.Driver {
		here, there := ns.n[0], ns.n[1]
		from, to := ns.open(t, here), ns.open(t, there)
		way := newRelay(t, from, to, "conformance")
		return domaintest.Driver{
			Hypervisor: from, Peer: to,
			Route: func(testing.TB, string) transport.Route { return way.route() },
			Cut:   func(testing.TB) { way.cut() }, Mend: func(testing.TB) { way.mend() },
			Definition: ns.definition, Fit: ns.fit(), Devices: ns.plugs(),
			Unsupported: map[domaintest.Ability]string{
				domaintest.FullAgent: "the guest image has nothing but memory to freeze, and no hwclock",
			},
			Crash: func(t testing.TB, name string) { killQEMU(t, here, name) },
			Disconnect: func(t testing.TB) {
				if err := here.KillLibvirtd(t.Context()); err != nil {
					t.Fatal(err)
				}
			},
			Reconnect: func(t testing.TB) {
				if err := here.StartLibvirtd(t.Context()); err != nil {
					t.Fatal(err)
				}
			},
			Slow:    func(r *domain.MigrationRequest) { r.BandwidthMiB = 1 },
			Timeout: 2 * time.Minute,
		}
	})
}

func uaAlias(name string) *libvirtxml.DomainAlias {
	return &libvirtxml.DomainAlias{Name: domain.AliasPrefix + name}
}

func fileSource(path string) *libvirtxml.DomainDiskSource {
	return &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}}
}

// fit are the changes of a domain for each ability.
func (ns *nodes) fit() map[domaintest.Ability]func(testing.TB, *libvirtxml.Domain) {
	return map[domaintest.Ability]func(testing.TB, *libvirtxml.Domain){
		domaintest.DiskResize: ns.addQcow2,
		domaintest.Snapshots:  ns.addQcow2,
		domaintest.MediumChange: func(_ testing.TB, d *libvirtxml.Domain) {
			d.Devices.Disks = append(d.Devices.Disks, libvirtxml.DomainDisk{
				Device: "cdrom", Alias: uaAlias("drive"), Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
				Target: &libvirtxml.DomainDiskTarget{Dev: "sda", Bus: "sata"}, ReadOnly: &libvirtxml.DomainDiskReadOnly{},
			})
		},
		domaintest.CPUHotplug: func(_ testing.TB, d *libvirtxml.Domain) {
			d.VCPU = &libvirtxml.DomainVCPU{Placement: "static", Value: 2, Current: 1}
			d.VCPUs = nil
			d.CPU.Topology = &libvirtxml.DomainCPUTopology{Sockets: 2, Cores: 1, Threads: 1}
		},
		domaintest.MemoryHotplug: func(_ testing.TB, d *libvirtxml.Domain) {
			cell := uint(0)
			d.MaximumMemory = &libvirtxml.DomainMaxMemory{Value: 1, Unit: "GiB", Slots: 4}
			d.CPU.Numa = &libvirtxml.DomainNuma{Cell: []libvirtxml.DomainCell{
				{ID: &cell, CPUs: fmt.Sprintf("0-%d", d.VCPU.Value-1), Memory: d.Memory.Value >> 10, Unit: "KiB"},
			}}
		},
		domaintest.Agent: func(_ testing.TB, d *libvirtxml.Domain) {
			d.OS.Initrd = ns.image.AgentInitrd
			d.Memory = &libvirtxml.DomainMemory{Value: 192, Unit: "MiB"}
		},
	}
}

// addQcow2 gives a guest a disk that supports snapshots, on the first node.
func (ns *nodes) addQcow2(t testing.TB, d *libvirtxml.Domain) {
	t.Helper()
	path := filepath.Join(ns.fabric.StateDir(), d.Name+".qcow2")
	ns.makeQcow2(t, path)
	d.Devices.Disks = append(d.Devices.Disks, libvirtxml.DomainDisk{
		Device: "disk", Alias: uaAlias("root"), Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "qcow2"},
		Source: fileSource(path), Target: &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
	})
}

// makeQcow2 makes an image of 1 GiB on the first node, unless it is there.
func (ns *nodes) makeQcow2(t testing.TB, path string) {
	t.Helper()
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.made[path] {
		return
	}
	ns.made[path] = true
	out, err := exec.CommandContext(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2", ns.n[0].HostPath(path), "1G").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// plugs are the devices that can be hotplugged.
func (ns *nodes) plugs() map[domaintest.Ability]func(testing.TB) domain.Device {
	image := func(t testing.TB, name string) *libvirtxml.DomainDiskSource {
		return fileSource(ns.file(t, filepath.Join(ns.fabric.StateDir(), name), 1<<20))
	}
	disk := func(bus, dev string) func(testing.TB) domain.Device {
		return func(t testing.TB) domain.Device {
			return &libvirtxml.DomainDisk{
				Device: "disk", Alias: uaAlias("more-" + bus), Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
				Source: image(t, "more-"+bus+".img"), Target: &libvirtxml.DomainDiskTarget{Dev: dev, Bus: bus},
			}
		}
	}
	return map[domaintest.Ability]func(testing.TB) domain.Device{
		domaintest.DiskHotplug: disk("virtio", "vdz"),
		domaintest.SCSIHotplug: disk("scsi", "sdz"),
		domaintest.InterfaceHotplug: func(testing.TB) domain.Device {
			return &libvirtxml.DomainInterface{
				Alias: uaAlias("second"), MAC: &libvirtxml.DomainInterfaceMAC{Address: "02:aa:00:00:00:77"},
				Model:  &libvirtxml.DomainInterfaceModel{Type: "virtio-non-transitional"},
				Source: &libvirtxml.DomainInterfaceSource{Bridge: &libvirtxml.DomainInterfaceSourceBridge{Bridge: "br0"}},
			}
		},
		domaintest.MemoryHotplug: func(testing.TB) domain.Device {
			return &libvirtxml.DomainMemorydev{
				Model: string(domain.VirtioMem), Alias: uaAlias("memory"),
				Target: &libvirtxml.DomainMemorydevTarget{
					Size:      &libvirtxml.DomainMemorydevTargetSize{Value: 128, Unit: "MiB"},
					Node:      &libvirtxml.DomainMemorydevTargetNode{Value: 0},
					Block:     &libvirtxml.DomainMemorydevTargetBlock{Value: 2, Unit: "MiB"},
					Requested: &libvirtxml.DomainMemorydevTargetRequested{Value: 64, Unit: "MiB"},
				},
			}
		},
		domaintest.MediumChange: func(t testing.TB) domain.Device {
			return &libvirtxml.DomainDisk{
				Device: "cdrom", Alias: uaAlias("drive"), Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
				Source: image(t, "disc.iso"), Target: &libvirtxml.DomainDiskTarget{Dev: "sda", Bus: "sata"}, ReadOnly: &libvirtxml.DomainDiskReadOnly{},
			}
		},
	}
}
