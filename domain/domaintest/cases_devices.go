// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"errors"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// deviceCases are about attaching, changing and detaching devices of each class.
var deviceCases = merge(
	hotplugCases(DiskHotplug, "a virtio disk"),
	hotplugCases(SCSIHotplug, "a SCSI disk"),
	hotplugCases(InterfaceHotplug, "a network card"),
	map[string]conformanceCase{
		"memory is attached once and grows the guest": {needs: []Ability{MemoryHotplug}, run: func(s *suite) {
			s.start()
			dev := s.Devices[MemoryHotplug](s)
			s.must(domain.AttachDevice, withDevice(dev))
			s.must(domain.AttachDevice, withDevice(dev))
			if n := len(devices(s.get().Domain).Memorydevs); n != 1 {
				s.Errorf("%d memory devices, want 1", n)
			}
		}},
		"memory can be changed": {needs: []Ability{MemoryHotplug}, run: func(s *suite) {
			s.start()
			dev := s.Devices[MemoryHotplug](s)
			memory, ok := dev.(*libvirtxml.DomainMemorydev)
			if !ok || memory.Target == nil || memory.Target.Requested == nil {
				s.Fatalf("memory device is %+v, want one that can change", dev)
			}
			s.must(domain.AttachDevice, withDevice(memory))
			memory.Target.Requested.Value = 0
			s.must(domain.UpdateDevice, withDevice(memory))
			got := devices(s.get().Domain).Memorydevs
			if len(got) != 1 || got[0].Target.Requested == nil || got[0].Target.Requested.Value != 0 {
				s.Errorf("memory devices are %+v", got)
			}
		}},
		"the model of memory devices is reported": {needs: []Ability{MemoryHotplug}, run: func(s *suite) {
			h, err := s.Hypervisor.Host(s.ctx)
			s.ok("host", err)
			m, err := ability[domain.MemoryHotplugger](s.subject).MemoryModel(s.ctx, h.Arch)
			if err != nil || m != domain.VirtioMem && m != domain.DIMM {
				s.Errorf("model is %q, %v", m, err)
			}
		}},
		"a drive gets a medium and loses it": {needs: []Ability{MediumChange}, run: func(s *suite) {
			s.start()
			loaded, ok := s.Devices[MediumChange](s).(*libvirtxml.DomainDisk)
			if !ok {
				s.Fatal("a drive is a disk")
			}
			empty := *loaded
			empty.Source = nil
			for _, drive := range []*libvirtxml.DomainDisk{loaded, loaded, &empty, loaded} {
				s.must(domain.UpdateDevice, withDevice(drive))
				if got := s.medium(loaded.Alias.Name); got != loads(drive) {
					s.Errorf("medium in the drive: %t", got)
				}
			}
		}},
		"a drive keeps its medium when the guest is paused": {needs: []Ability{MediumChange}, run: func(s *suite) {
			s.start()
			s.must(domain.Suspend)
			drive := s.Devices[MediumChange](s)
			s.must(domain.UpdateDevice, withDevice(drive))
			s.must(domain.Resume)
			if !s.medium(s.alias(drive)) {
				s.Error("the drive is empty")
			}
		}},
		"a device goes into the definition of a guest that ended": {needs: []Ability{DiskHotplug}, run: func(s *suite) {
			s.start()
			s.must(domain.Destroy)
			dev := s.Devices[DiskHotplug](s)
			s.must(domain.AttachDevice, withDevice(dev))
			if !s.get().HasDevice(s.alias(dev)) {
				s.Error("the device is missing")
			}
			s.must(domain.DetachDevice, withDevice(dev))
			if s.get().HasDevice(s.alias(dev)) {
				s.Error("the device is still there")
			}
		}},
		"a device that was attached is there after the guest has ended": {needs: []Ability{DiskHotplug}, run: func(s *suite) {
			s.start()
			dev := s.Devices[DiskHotplug](s)
			s.must(domain.AttachDevice, withDevice(dev))
			s.must(domain.Destroy)
			if !s.get().HasDevice(s.alias(dev)) {
				s.Error("the device is missing")
			}
		}},
		"concurrent attaches of a device make one": {needs: []Ability{DiskHotplug}, run: func(s *suite) {
			s.start()
			dev := s.Devices[DiskHotplug](s)
			s.atOnce(4, func(int) domain.Operation {
				return domain.Operation{Verb: domain.AttachDevice, Domain: s.name, Device: dev}
			})
			found := 0
			for _, d := range devices(s.get().Domain).Disks {
				if d.Alias != nil && d.Alias.Name == s.alias(dev) {
					found++
				}
			}
			if found != 1 {
				s.Errorf("%d disks of that alias, want 1", found)
			}
		}},
	},
)

// hotplugCases are the cases of any class of devices.
func hotplugCases(a Ability, what string) map[string]conformanceCase {
	needs := []Ability{a}
	return map[string]conformanceCase{
		what + " is attached once": {needs: needs, run: func(s *suite) {
			s.start()
			dev := s.Devices[a](s)
			before := countDevices(s.get().Domain)
			s.must(domain.AttachDevice, withDevice(dev))
			s.must(domain.AttachDevice, withDevice(dev))
			st := s.get()
			if !st.HasDevice(s.alias(dev)) || countDevices(st.Domain) != before+1 {
				s.Errorf("%d devices, want one more than %d", countDevices(st.Domain), before)
			}
		}},
		what + " is attached to a paused guest": {needs: needs, run: func(s *suite) {
			s.start()
			s.must(domain.Suspend)
			dev := s.Devices[a](s)
			s.must(domain.AttachDevice, withDevice(dev))
			if !s.get().HasDevice(s.alias(dev)) {
				s.Error("the device is missing")
			}
			s.want(domain.StatusPaused, domain.ReasonUser)
		}},
		what + " is detached, and then detaching succeeds again": {needs: needs, run: func(s *suite) {
			s.start()
			dev := s.Devices[a](s)
			s.must(domain.AttachDevice, withDevice(dev))
			s.until("release of the device", func() bool {
				// A guest that has not booted ignores the request.
				if err := s.apply(domain.DetachDevice, withDevice(dev)); err != nil && !errors.Is(err, domain.ErrInvalidState) {
					s.Logf("detach: %v", err)
				}
				return !s.get().HasDevice(s.alias(dev))
			})
			s.must(domain.DetachDevice, withDevice(dev))
		}},
		what + " that is not there cannot be updated": {needs: needs, run: func(s *suite) {
			s.start()
			s.fails(domain.ErrNotFound, domain.UpdateDevice, withDevice(s.Devices[a](s)))
		}},
		what + " that comes is reported to watchers": {needs: needs, run: func(s *suite) {
			s.start()
			ch := s.watch(s.ctx)
			s.must(domain.AttachDevice, withDevice(s.Devices[a](s)))
			s.hinted(ch)
		}},
	}
}

// countDevices is the number of disks and network cards.
func countDevices(d *libvirtxml.Domain) int {
	return len(devices(d).Disks) + len(devices(d).Interfaces)
}

// medium reports whether there is one in the drive.
func (s *subject) medium(alias string) bool {
	s.Helper()
	for _, d := range devices(s.get().Domain).Disks {
		if d.Alias != nil && d.Alias.Name == alias {
			return loads(&d)
		}
	}
	s.Fatalf("no drive %s", alias)
	return false
}

// loads reports whether a drive comes with a medium; an empty one may have a source without
// content.
func loads(d *libvirtxml.DomainDisk) bool {
	s := d.Source
	return s != nil && (s.File != nil && s.File.File != "" || s.Block != nil && s.Block.Dev != "")
}

func merge(all ...map[string]conformanceCase) map[string]conformanceCase {
	out := map[string]conformanceCase{}
	for _, some := range all {
		for name, c := range some {
			out[name] = c
		}
	}
	return out
}
