// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"errors"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// Ability is a feature that a driver may lack.
type Ability string

// Abilities of hypervisors that cases require.
const (
	// StartPaused: a guest can be started with its CPUs stopped.
	StartPaused Ability = "StartPaused"
	// Resets: the verbs Reset and Reboot.
	Resets Ability = "Resets"
	// CPUHotplug: the verb SetVCPUs. A domain fit for it has one CPU and a maximum of two.
	CPUHotplug Ability = "CPUHotplug"
	// DiskResize: the verb ResizeDisk. A domain fit for it has a disk that is not a block device.
	DiskResize Ability = "DiskResize"
	// DiskHotplug, SCSIHotplug, InterfaceHotplug, MemoryHotplug: a virtio disk, a SCSI disk, a
	// network card, memory can be attached; [Driver].Devices has them.
	DiskHotplug      Ability = "DiskHotplug"
	SCSIHotplug      Ability = "SCSIHotplug"
	InterfaceHotplug Ability = "InterfaceHotplug"
	MemoryHotplug    Ability = "MemoryHotplug"
	// MediumChange: a CD-ROM gets another medium. A domain fit for it has an empty
	// drive.
	MediumChange Ability = "MediumChange"
	// Agent: the hypervisor is a [domain.GuestAgent]. A domain fit for it has an agent that answers
	// sooner or later; any other has none.
	Agent Ability = "Agent"
	// Snapshots: the hypervisor is a [domain.Snapshotter]. A domain fit for it has disks that
	// support snapshots.
	Snapshots Ability = "Snapshots"
	// Consoles: the hypervisor is a [domain.ConsoleOpener]. A domain fit for it has
	// a serial console that echoes.
	Consoles Ability = "Consoles"
	// Statistics: the hypervisor is a [domain.StatsReader].
	Statistics Ability = "Statistics"
	// DeviceStatistics: the statistics contain counters of CPUs, disks and network cards.
	DeviceStatistics Ability = "DeviceStatistics"
	// Migration: the hypervisor is a [domain.Migrator] and Driver.Peer can be
	// migrated to.
	Migration Ability = "Migration"
	// PostCopy: the hypervisor is a [domain.PostCopier].
	PostCopy Ability = "PostCopy"
	// MigrationTuning: the hypervisor is a [domain.MigrationTuner].
	MigrationTuning Ability = "MigrationTuning"
)

// Means of a test that a driver may lack.
const (
	// GuestShutdown: guests of Definition shut down when asked.
	GuestShutdown Ability = "GuestShutdown"
	// FullAgent: the agent of a domain fit for Agent can freeze file systems and set
	// the clock.
	FullAgent Ability = "FullAgent"
	// SlowMigration: a migration can be made to last until it is aborted.
	SlowMigration Ability = "SlowMigration"
	// BrokenLinks: Driver.Cut and Driver.Mend are set.
	BrokenLinks Ability = "BrokenLinks"
	// Crashes: Driver.Crash is set.
	Crashes Ability = "Crashes"
	// Reconnects: Driver.Disconnect and Driver.Reconnect are set.
	Reconnects Ability = "Reconnects"
)

// means detects an ability.
type means struct {
	what  string
	there func(*Driver) bool
}

// found are the means of detectable abilities.
var found = map[Ability]means{
	DiskHotplug:      device(DiskHotplug),
	SCSIHotplug:      device(SCSIHotplug),
	InterfaceHotplug: device(InterfaceHotplug),
	MemoryHotplug:    device(MemoryHotplug),
	MediumChange:     device(MediumChange),
	Agent:            {"GuestAgent", is[domain.GuestAgent]},
	Snapshots:        {"Snapshotter", is[domain.Snapshotter]},
	Consoles:         {"ConsoleOpener", is[domain.ConsoleOpener]},
	Statistics:       {"StatsReader", is[domain.StatsReader]},
	DeviceStatistics: {"StatsReader", is[domain.StatsReader]},
	Migration:        {"Migrator, or Driver.Peer", func(d *Driver) bool { return is[domain.Migrator](d) && d.Peer != nil }},
	PostCopy:         {"PostCopier", is[domain.PostCopier]},
	MigrationTuning:  {"MigrationTuner", is[domain.MigrationTuner]},
	BrokenLinks:      {"Driver.Cut, or Driver.Mend", func(d *Driver) bool { return d.Cut != nil && d.Mend != nil }},
	Crashes:          {"Driver.Crash", func(d *Driver) bool { return d.Crash != nil }},
	Reconnects:       {"Driver.Disconnect, or Driver.Reconnect", func(d *Driver) bool { return d.Disconnect != nil && d.Reconnect != nil }},
}

func device(a Ability) means {
	return means{"Driver.Devices[" + string(a) + "]", func(d *Driver) bool { return d.Devices[a] != nil }}
}

func is[A any](d *Driver) bool {
	_, ok := d.Hypervisor.(A)
	return ok
}

// lacks names what an ability lacks; empty if the driver has it.
func (d *Driver) lacks(a Ability) string {
	m, known := found[a]
	if !known || m.there(d) {
		return ""
	}
	return m.what
}

// refusals check that abilities declared as unsupported are refused. Abilities that have no call
// have none.
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
	PostCopy: func(s *suite) {
		if p, ok := s.Hypervisor.(domain.PostCopier); ok {
			s.refused(p.SwitchToPostCopy(s.ctx, s.name))
		}
	},
	MigrationTuning: func(s *suite) {
		if m, ok := s.Hypervisor.(domain.MigrationTuner); ok {
			s.refused(m.SetMaxDowntime(s.ctx, s.name, time.Second))
			s.refused(m.SetMigrationBandwidth(s.ctx, s.name, 1))
		}
	},
}

// probeAlias is the alias of a device that no domain has.
func probeAlias() *libvirtxml.DomainAlias {
	return &libvirtxml.DomainAlias{Name: domain.AliasPrefix + "probe"}
}

func (s *subject) refused(err error) {
	s.Helper()
	if !errors.Is(err, domain.ErrUnsupported) {
		s.Errorf("%v, want ErrUnsupported", err)
	}
}

// refusesDevice attaches a device, which has to be refused before its content is checked.
func (s *subject) refusesDevice(d domain.Device) {
	s.Helper()
	s.refused(s.apply(domain.AttachDevice, withDevice(d)))
}
