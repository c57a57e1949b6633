// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"errors"

	"github.com/virtloom/virtloom/domain"
	"libvirt.org/go/libvirtxml"
)

// Ability is something a driver may be unable to do.
type Ability string

// The abilities of hypervisors that cases ask for.
const (
	// StartPaused: a guest can be started with its CPUs stopped.
	StartPaused Ability = "StartPaused"
	// Resets: the verbs Reset and Reboot.
	Resets Ability = "Resets"
	// CPUHotplug: the verb SetVCPUs. A domain fit for it has one CPU and room for
	// two.
	CPUHotplug Ability = "CPUHotplug"
	// DiskResize: the verb ResizeDisk. A domain fit for it has a disk that is no
	// block device.
	DiskResize Ability = "DiskResize"
	// DiskHotplug, SCSIHotplug, InterfaceHotplug, MemoryHotplug: a virtio disk, a
	// SCSI disk, a network card, memory can be attached; [Driver].Devices has them.
	DiskHotplug      Ability = "DiskHotplug"
	SCSIHotplug      Ability = "SCSIHotplug"
	InterfaceHotplug Ability = "InterfaceHotplug"
	MemoryHotplug    Ability = "MemoryHotplug"
	// MediumChange: a CD-ROM gets another medium. A domain fit for it has an empty
	// drive.
	MediumChange Ability = "MediumChange"
	// Agent: the hypervisor is a [domain.GuestAgent]. A domain fit for it has an
	// agent that answers sooner or later; one that is not has none.
	Agent Ability = "Agent"
	// Snapshots: the hypervisor is a [domain.Snapshotter]. A domain fit for it has
	// disks that can be kept.
	Snapshots Ability = "Snapshots"
	// Consoles: the hypervisor is a [domain.ConsoleOpener]. A domain fit for it has
	// a serial console that echoes.
	Consoles Ability = "Consoles"
	// Statistics: the hypervisor is a [domain.StatsReader].
	Statistics Ability = "Statistics"
	// DeviceStatistics: the statistics count for CPUs, disks and network cards.
	DeviceStatistics Ability = "DeviceStatistics"
	// Migration: the hypervisor is a [domain.Migrator] and Driver.Peer can be
	// migrated to.
	Migration Ability = "Migration"
)

// The means of a test that a driver may not have.
const (
	// GuestShutdown: guests of Definition shut down when asked.
	GuestShutdown Ability = "GuestShutdown"
	// FullAgent: the agent of a domain fit for Agent can freeze file systems and set
	// the clock.
	FullAgent Ability = "FullAgent"
	// SlowMigration: a migration can be made to last until it is aborted.
	SlowMigration Ability = "SlowMigration"
	// Crashes: Driver.Crash is there.
	Crashes Ability = "Crashes"
	// Reconnects: Driver.Disconnect and Driver.Reconnect are there.
	Reconnects Ability = "Reconnects"
)

// lacks tells what is missing for an ability; nothing if it is there.
func (d *Driver) lacks(a Ability) string {
	ok, what := true, ""
	switch a {
	case DiskHotplug, SCSIHotplug, InterfaceHotplug, MemoryHotplug, MediumChange:
		ok, what = d.Devices[a] != nil, "Driver.Devices["+string(a)+"]"
	case Agent:
		_, ok = d.Hypervisor.(domain.GuestAgent)
		what = "GuestAgent"
	case Snapshots:
		_, ok = d.Hypervisor.(domain.Snapshotter)
		what = "Snapshotter"
	case Consoles:
		_, ok = d.Hypervisor.(domain.ConsoleOpener)
		what = "ConsoleOpener"
	case Statistics, DeviceStatistics:
		_, ok = d.Hypervisor.(domain.StatsReader)
		what = "StatsReader"
	case Migration:
		_, ok = d.Hypervisor.(domain.Migrator)
		ok, what = ok && d.Peer != nil, "Migrator, or Driver.Peer"
	case Crashes:
		ok, what = d.Crash != nil, "Driver.Crash"
	case Reconnects:
		ok, what = d.Disconnect != nil && d.Reconnect != nil, "Driver.Disconnect, or Driver.Reconnect"
	}
	if ok {
		return ""
	}
	return what
}

// refusals check that what is declared unsupported is refused as such. What the
// hypervisor cannot even be asked for has none.
var refusals = map[Ability]func(*suite){
	StartPaused: func(s *suite) {
		s.must(domain.Destroy)
		s.refused(s.apply(domain.Start, paused))
	},
	Resets: func(s *suite) {
		s.refused(s.apply(domain.Reset))
		s.refused(s.apply(domain.Reboot))
	},
	CPUHotplug:       func(s *suite) { s.refused(s.apply(domain.SetVCPUs, withVCPUs(2))) },
	DiskResize:       func(s *suite) { s.refused(s.apply(domain.ResizeDisk, withDisk(s.disk(), 1<<40))) },
	DiskHotplug:      func(s *suite) { s.refusesDevice(&libvirtxml.DomainDisk{Device: "disk", Alias: probeAlias()}) },
	SCSIHotplug:      func(s *suite) { s.refusesDevice(&libvirtxml.DomainDisk{Device: "disk", Alias: probeAlias()}) },
	InterfaceHotplug: func(s *suite) { s.refusesDevice(&libvirtxml.DomainInterface{Alias: probeAlias()}) },
	MemoryHotplug:    func(s *suite) { s.refusesDevice(&libvirtxml.DomainMemorydev{Model: "dimm", Alias: probeAlias()}) },
	Agent: func(s *suite) {
		if a, ok := s.Hypervisor.(domain.GuestAgent); ok {
			_, err := a.GuestInfo(s.ctx, s.name)
			s.refused(err)
			_, err = a.AgentCommand(s.ctx, s.name, pingCommand)
			s.refused(err)
			s.refused(a.Freeze(s.ctx, s.name))
		}
	},
	Snapshots: func(s *suite) {
		if k, ok := s.Hypervisor.(domain.Snapshotter); ok {
			s.refused(k.TakeSnapshot(s.ctx, s.name, domain.Snapshot{Name: "a", Memory: true}))
		}
	},
	Consoles: func(s *suite) {
		if o, ok := s.Hypervisor.(domain.ConsoleOpener); ok {
			_, err := o.OpenConsole(s.ctx, s.name, "")
			s.refused(err)
		}
	},
	Statistics: func(s *suite) {
		if r, ok := s.Hypervisor.(domain.StatsReader); ok {
			_, err := r.Stats(s.ctx)
			s.refused(err)
		}
	},
	Migration: func(s *suite) {
		if m, ok := s.Hypervisor.(domain.Migrator); ok {
			s.refused(m.Migrate(s.ctx, domain.MigrationRequest{Domain: s.name, DestinationURI: "test:///default"}))
		}
	},
}

// probeAlias is the name of devices that nobody has.
func probeAlias() *libvirtxml.DomainAlias {
	return &libvirtxml.DomainAlias{Name: domain.AliasPrefix + "probe"}
}

func (s *suite) refused(err error) {
	s.Helper()
	if !errors.Is(err, domain.ErrUnsupported) {
		s.Errorf("%v, want ErrUnsupported", err)
	}
}

// refusesDevice attaches a device, which has to be refused before anybody looks at
// what is in it.
func (s *suite) refusesDevice(d domain.Device) {
	s.Helper()
	s.refused(s.apply(domain.AttachDevice, withDevice(d)))
}
