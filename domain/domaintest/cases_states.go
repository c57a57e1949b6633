// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// states are those a domain may be in when an operation is applied, and how to get there.
var states = []struct {
	name string
	// status is that of the domain; empty if it is unknown.
	status domain.Status
	enter  func(*suite)
}{
	{"an unknown domain", "", func(*suite) {}},
	{"a running guest", domain.StatusRunning, func(s *suite) { s.start() }},
	{"a paused guest", domain.StatusPaused, func(s *suite) {
		s.start()
		s.must(domain.Suspend)
	}},
	{"a guest that ended", domain.StatusShutoff, func(s *suite) {
		s.start()
		s.must(domain.Destroy)
	}},
}

// outcome is the result of a verb: an error, or nil and the status afterwards. Without a status it
// is unchanged; gone: the domain does not exist afterwards.
type outcome struct {
	err    error
	status domain.Status
}

const gone domain.Status = "gone"

var (
	done     = outcome{}
	unknown  = outcome{err: domain.ErrNotFound}
	wrong    = outcome{err: domain.ErrInvalidState}
	runs     = outcome{status: domain.StatusRunning}
	pauses   = outcome{status: domain.StatusPaused}
	ends     = outcome{status: domain.StatusShutoff}
	vanishes = outcome{status: gone}
)

// verbStates are the outcomes of each verb in each of the states.
var verbStates = []struct {
	verb     domain.Verb
	needs    []Ability
	change   func(*suite, *domain.Operation)
	outcomes [4]outcome
}{
	{verb: domain.Start, outcomes: [4]outcome{runs, done, done, runs}},
	// A guest that has not booted ignores it, so that a running one may stay.
	{verb: domain.Shutdown, outcomes: [4]outcome{unknown, {status: "any"}, wrong, done}},
	{verb: domain.Destroy, outcomes: [4]outcome{vanishes, ends, ends, done}},
	{verb: domain.Undefine, outcomes: [4]outcome{vanishes, wrong, wrong, vanishes}},
	{verb: domain.Suspend, outcomes: [4]outcome{unknown, pauses, done, wrong}},
	{verb: domain.Resume, outcomes: [4]outcome{unknown, done, runs, wrong}},
	{verb: domain.SetMetadata, outcomes: [4]outcome{unknown, done, done, done}},
	{verb: domain.Reset, needs: []Ability{Resets}, outcomes: [4]outcome{unknown, done, done, wrong}},
	{verb: domain.Reboot, needs: []Ability{Resets}, outcomes: [4]outcome{unknown, done, wrong, wrong}},
	{verb: domain.SetVCPUs, needs: []Ability{CPUHotplug}, outcomes: [4]outcome{unknown, done, done, done},
		change: func(_ *suite, op *domain.Operation) { op.VCPUs = 1 }},
	{verb: domain.ResizeDisk, needs: []Ability{DiskResize}, outcomes: [4]outcome{unknown, done, done, wrong},
		change: func(s *suite, op *domain.Operation) { op.Disk, op.Bytes = s.disk(), 1<<31 }},
	{verb: domain.AttachDevice, needs: []Ability{DiskHotplug}, outcomes: [4]outcome{unknown, done, done, done},
		change: func(s *suite, op *domain.Operation) { op.Device = s.Devices[DiskHotplug](s) }},
	{verb: domain.DetachDevice, needs: []Ability{DiskHotplug}, outcomes: [4]outcome{unknown, done, done, done},
		change: func(_ *suite, op *domain.Operation) { op.Device = probeDisk() }},
	{verb: domain.UpdateDevice, needs: []Ability{DiskHotplug}, outcomes: [4]outcome{unknown, unknown, unknown, unknown},
		change: func(_ *suite, op *domain.Operation) { op.Device = probeDisk() }},
}

func probeDisk() *libvirtxml.DomainDisk {
	return &libvirtxml.DomainDisk{Device: "disk", Alias: probeAlias()}
}

// stateCases are all verbs in all states.
func stateCases() map[string]conformanceCase {
	out := map[string]conformanceCase{}
	for _, v := range verbStates {
		for i, st := range states {
			want := v.outcomes[i]
			out[fmt.Sprintf("%s of %s", v.verb, st.name)] = conformanceCase{
				needs: v.needs, core: v.needs == nil,
				run: func(s *suite) {
					st.enter(s)
					err := s.apply(v.verb, func(op *domain.Operation) {
						if v.change != nil {
							v.change(s, op)
						}
					})
					if want.err == nil {
						s.ok(string(v.verb), err)
					} else {
						s.is(string(v.verb), err, want.err)
					}
					s.leadsTo(st.status, want.status)
				},
			}
		}
	}
	return out
}

// leadsTo checks the status after a verb, which was before.
func (s *subject) leadsTo(before, after domain.Status) {
	s.Helper()
	switch {
	case after == "any":
	case after == gone, after == "" && before == "":
		_, err := s.Hypervisor.Get(s.ctx, s.name)
		s.is("get", err, domain.ErrNotFound)
	case after == "":
		if st := s.get(); st.Status != before {
			s.Errorf("domain is %s/%s, want %s as before", st.Status, st.Reason, before)
		}
	default:
		if st := s.get(); st.Status != after {
			s.Errorf("domain is %s/%s, want %s", st.Status, st.Reason, after)
		}
	}
}
