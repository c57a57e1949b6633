// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"slices"
	"strings"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/stats"
)

// statsCases are about counters.
var statsCases = map[string]conformanceCase{
	"statistics are of running guests, sorted": {needs: []Ability{Statistics}, run: func(s *suite) {
		s.must(domain.Start, s.ofOther)
		s.start()
		all := s.stats()
		if !slices.IsSortedFunc(all, func(a, b stats.Domain) int { return strings.Compare(a.Name, b.Name) }) {
			s.Error("they are not sorted")
		}
		for _, name := range []string{s.name, s.other()} {
			if st := findStats(all, name); st == nil || st.UUID != s.Definition(s, name).UUID {
				s.Errorf("statistics of %s are %+v", name, st)
			}
		}
	}},
	"statistics of paused guests are there": {needs: []Ability{Statistics}, run: func(s *suite) {
		s.start()
		s.must(domain.Suspend)
		if findStats(s.stats(), s.name) == nil {
			s.Error("they are missing")
		}
	}},
	"a guest that ended has no statistics": {needs: []Ability{Statistics}, run: func(s *suite) {
		s.start()
		s.must(domain.Destroy)
		if st := findStats(s.stats(), s.name); st != nil {
			s.Errorf("statistics are %+v", st)
		}
	}},
	"statistics know the CPUs of the guest": {needs: []Ability{DeviceStatistics, CPUHotplug}, run: func(s *suite) {
		s.start()
		s.must(domain.SetVCPUs, withVCPUs(2))
		st := findStats(s.stats(), s.name)
		if st == nil || len(st.VCPUs) != 2 {
			s.Errorf("statistics are %+v", st)
		}
	}},
	"statistics know a disk by the name it has in the spec": {needs: []Ability{DeviceStatistics, DiskHotplug}, run: func(s *suite) {
		s.start()
		s.stats() // before the disk is there
		dev := s.Devices[DiskHotplug](s)
		s.must(domain.AttachDevice, withDevice(dev))
		st := findStats(s.stats(), s.name)
		if st == nil || !slices.ContainsFunc(st.Disks, func(d stats.Disk) bool {
			return d.Alias == s.alias(dev) && d.Target != "" && d.Capacity > 0
		}) {
			s.Errorf("statistics are %+v, want %s in them", st, s.alias(dev))
		}
	}},
	"statistics know a network card by the name it has in the spec": {needs: []Ability{DeviceStatistics, InterfaceHotplug}, run: func(s *suite) {
		s.start()
		dev := s.Devices[InterfaceHotplug](s)
		s.must(domain.AttachDevice, withDevice(dev))
		st := findStats(s.stats(), s.name)
		if st == nil || !slices.ContainsFunc(st.Interfaces, func(i stats.Interface) bool { return i.Alias == s.alias(dev) }) {
			s.Errorf("statistics are %+v, want %s in them", st, s.alias(dev))
		}
	}},
}

func (s *subject) stats() []stats.Domain {
	s.Helper()
	all, err := ability[domain.StatsReader](s).Stats(s.ctx)
	s.ok("statistics", err)
	return all
}

// findStats returns the statistics of a domain; nil if there are none.
func findStats(all []stats.Domain, name string) *stats.Domain {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}
