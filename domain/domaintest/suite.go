// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"context"
	"errors"
	"testing"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// suite is a case under way.
type suite struct {
	*subject
	callCase
	agentCase
	snapshotCase
	consoleCase
	migrationCase
}

// subject is the driver of a case, and its domain.
type subject struct {
	testing.TB
	Driver
	ctx   context.Context
	name  string
	needs []Ability
}

// cleanUp removes the domains of the case everywhere.
func (s *subject) cleanUp() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), s.Timeout)
	defer cancel()
	for _, h := range []domain.Hypervisor{s.Hypervisor, s.Peer} {
		if h == nil {
			continue
		}
		for _, name := range []string{s.name, s.other()} {
			for _, verb := range []domain.Verb{domain.Destroy, domain.Undefine} {
				if err := h.Apply(ctx, domain.Operation{Verb: verb, Domain: name}); err != nil {
					s.Errorf("clean up: %v", err)
				}
			}
		}
	}
}

// other is the name of a second domain.
func (s *subject) other() string { return s.name + "-b" }

func (s *subject) ofOther(op *domain.Operation) { op.Domain = s.other() }

// definition is a domain that is fit for the case's needs.
func (s *subject) definition(name string) *libvirtxml.Domain {
	d := s.Definition(s, name)
	for _, a := range s.needs {
		if fit := s.Fit[a]; fit != nil {
			fit(s, d)
		}
	}
	return d
}

// start runs the domain of the case.
func (s *subject) start() {
	s.Helper()
	s.must(domain.Start)
}

// must applies an operation that has to succeed.
func (s *subject) must(verb domain.Verb, change ...func(*domain.Operation)) {
	s.Helper()
	if err := s.apply(verb, change...); err != nil {
		s.Fatalf("%s: %v", verb, err)
	}
}

// fails applies an operation that has to fail with that error.
func (s *subject) fails(want error, verb domain.Verb, change ...func(*domain.Operation)) {
	s.Helper()
	if err := s.apply(verb, change...); !errors.Is(err, want) {
		s.Errorf("%s: %v, want %v", verb, err, want)
	}
}

// is checks the error of another call.
func (s *subject) is(what string, err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("%s: %v, want %v", what, err, want)
	}
}

// ok checks that a call has succeeded.
func (s *subject) ok(what string, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

func (s *subject) apply(verb domain.Verb, change ...func(*domain.Operation)) error {
	op := domain.Operation{Verb: verb, Domain: s.name}
	for _, c := range change {
		c(&op)
	}
	if verb == domain.Start && op.Definition == nil {
		op.Definition = s.definition(op.Domain)
	}
	return s.Hypervisor.Apply(s.ctx, op)
}

// get returns the domain of the case, which has to exist.
func (s *subject) get() domain.State {
	s.Helper()
	st, err := s.Hypervisor.Get(s.ctx, s.name)
	if err != nil {
		s.Fatalf("get: %v", err)
	}
	return st
}

// want checks status and reason.
func (s *subject) want(status domain.Status, reason domain.Reason) {
	s.Helper()
	if st := s.get(); st.Status != status || st.Reason != reason {
		s.Fatalf("domain is %s/%s, want %s/%s", st.Status, st.Reason, status, reason)
	}
}

// until polls until ok returns true.
func (s *subject) until(what string, ok func() bool) {
	s.Helper()
	if !comes(s.ctx, ok) {
		s.Fatalf("never came: %s", what)
	}
}

// comes polls until ok returns true, or the context ends.
func comes(ctx context.Context, ok func() bool) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// becomes waits for a status and checks the reason.
func (s *subject) becomes(status domain.Status, reason domain.Reason) {
	s.Helper()
	s.until(string(status), func() bool { return s.get().Status == status })
	s.want(status, reason)
}

// watch opens a stream and receives its first event.
func (s *subject) watch(ctx context.Context) <-chan domain.Event {
	s.Helper()
	ch, err := s.Hypervisor.Watch(ctx)
	if err != nil {
		s.Fatalf("watch: %v", err)
	}
	if e := s.next(ch); e.Kind != domain.Resync {
		s.Fatalf("first event is %+v, want Resync", e)
	}
	return ch
}

// next receives an event.
func (s *subject) next(ch <-chan domain.Event) domain.Event {
	s.Helper()
	select {
	case e, ok := <-ch:
		if !ok {
			s.Fatal("the stream ended")
		}
		return e
	case <-s.ctx.Done():
		s.Fatal("no event came")
	}
	return domain.Event{}
}

// hinted waits for a hint about the domain of the case.
func (s *subject) hinted(ch <-chan domain.Event) {
	s.Helper()
	for {
		if e := s.next(ch); e.Kind == domain.Changed && e.Domain == s.name {
			return
		}
	}
}

// disk is the alias of the first disk of the definition; an unknown one if it has none.
func (s *subject) disk() string {
	for _, d := range devices(s.definition(s.name)).Disks {
		if d.Device != "cdrom" && d.Alias != nil {
			return d.Alias.Name
		}
	}
	return probeAlias().Name
}

func devices(d *libvirtxml.Domain) *libvirtxml.DomainDeviceList {
	if d == nil || d.Devices == nil {
		return &libvirtxml.DomainDeviceList{}
	}
	return d.Devices
}

func (s *subject) alias(d domain.Device) string {
	s.Helper()
	a, err := domain.DeviceAlias(d)
	if err != nil {
		s.Fatal(err)
	}
	return a
}

func paused(op *domain.Operation) { op.Paused = true }

func byAgent(op *domain.Operation) { op.Agent = true }

func withMetadata(m domain.Metadata) func(*domain.Operation) {
	return func(op *domain.Operation) { op.Metadata = m }
}

func withDevice(d domain.Device) func(*domain.Operation) {
	return func(op *domain.Operation) { op.Device = d }
}

func withVCPUs(n uint) func(*domain.Operation) {
	return func(op *domain.Operation) { op.VCPUs = n }
}

func withDisk(alias string, bytes uint64) func(*domain.Operation) {
	return func(op *domain.Operation) { op.Disk, op.Bytes = alias, bytes }
}
