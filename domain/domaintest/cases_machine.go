// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// machineCases are about CPUs, sizes of disks and the reset button.
var machineCases = map[string]conformanceCase{
	"a running guest gets another CPU, once": {needs: []Ability{CPUHotplug}, run: func(s *suite) {
		s.start()
		s.must(domain.SetVCPUs, withVCPUs(2))
		s.must(domain.SetVCPUs, withVCPUs(2))
		if n := vcpus(s.get().Domain); n != 2 {
			s.Errorf("%d CPUs, want 2", n)
		}
		s.want(domain.StatusRunning, domain.ReasonUnknown)
	}},
	"CPUs that were plugged are there after the guest has ended": {needs: []Ability{CPUHotplug}, run: func(s *suite) {
		s.start()
		s.must(domain.SetVCPUs, withVCPUs(2))
		s.must(domain.Destroy)
		if n := vcpus(s.get().Domain); n != 2 {
			s.Errorf("%d CPUs, want 2", n)
		}
	}},
	"more CPUs than there is room for are invalid": {needs: []Ability{CPUHotplug}, run: func(s *suite) {
		s.start()
		s.fails(domain.ErrInvalid, domain.SetVCPUs, withVCPUs(3))
		if n := vcpus(s.get().Domain); n != 1 {
			s.Errorf("%d CPUs, want 1", n)
		}
		s.must(domain.Destroy)
		s.fails(domain.ErrInvalid, domain.SetVCPUs, withVCPUs(3))
	}},
	"a disk grows, once, and does not shrink": {needs: []Ability{DiskResize}, run: func(s *suite) {
		s.start()
		disk := s.disk()
		s.must(domain.ResizeDisk, withDisk(disk, 1<<31))
		s.must(domain.ResizeDisk, withDisk(disk, 1<<31))
		s.fails(domain.ErrInvalid, domain.ResizeDisk, withDisk(disk, 1<<31-512))
		s.must(domain.ResizeDisk, withDisk(disk, 1<<32))
		s.want(domain.StatusRunning, domain.ReasonUnknown)
	}},
	"a disk on no block device has nothing to take its size from": {needs: []Ability{DiskResize}, run: func(s *suite) {
		s.start()
		s.fails(domain.ErrInvalid, domain.ResizeDisk, withDisk(s.disk(), 0))
	}},
	"a disk that is not there does not grow": {needs: []Ability{DiskResize}, run: func(s *suite) {
		s.start()
		s.fails(domain.ErrNotFound, domain.ResizeDisk, withDisk(probeAlias().Name, 1<<31))
	}},
	"a reset can be repeated and keeps the domain": {needs: []Ability{Resets}, run: func(s *suite) {
		s.start()
		before := s.get()
		for range 3 {
			s.must(domain.Reset)
		}
		s.want(domain.StatusRunning, domain.ReasonUnknown)
		if after := s.get(); after.UUID != before.UUID || after.Metadata.UID != before.Metadata.UID {
			s.Errorf("domain is %s of %s", after.UUID, after.Metadata.UID)
		}
	}},
	"a reboot by an agent that is not there is reported": {needs: []Ability{Resets, Agent}, run: func(s *suite) {
		s.needs = nil // the guest has none
		s.start()
		s.fails(domain.ErrNoAgent, domain.Reboot, byAgent)
		s.want(domain.StatusRunning, domain.ReasonUnknown)
	}},
}

// vcpus returns the number of CPUs of a domain.
func vcpus(d *libvirtxml.Domain) uint {
	switch {
	case d.VCPU == nil:
		return 1
	case d.VCPU.Current != 0:
		return d.VCPU.Current
	}
	return d.VCPU.Value
}
