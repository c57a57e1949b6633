// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/virtloom/virtloom/domain"
	"libvirt.org/go/libvirtxml"
)

// Ability is something a driver may be unable to do.
type Ability string

// The abilities cases ask for.
const (
	// StartPaused: a guest can be started with its CPUs stopped.
	StartPaused Ability = "StartPaused"
	// GuestShutdown: guests of the driver shut down when asked.
	GuestShutdown Ability = "GuestShutdown"
	// Devices: devices can be attached, updated and detached.
	Devices Ability = "Devices"
	// Migration: Driver.Peer can be migrated to.
	Migration Ability = "Migration"
	// SlowMigration: a migration can be made to last until it is aborted.
	SlowMigration Ability = "SlowMigration"
	// Crashes: Driver.Crash is there.
	Crashes Ability = "Crashes"
	// Reconnects: Driver.Disconnect and Driver.Reconnect are there.
	Reconnects Ability = "Reconnects"
)

// Driver is what [Conformance] tests: a hypervisor and how to provoke it.
type Driver struct {
	// Hypervisor is under test. The suite touches only domains it has named.
	Hypervisor domain.Hypervisor
	// Definition returns a domain of that name that can be started, with our
	// metadata in it. UUIDs of different names differ.
	Definition func(t testing.TB, name string) *libvirtxml.Domain
	// Unsupported declares what the driver cannot do, and why.
	Unsupported map[Ability]string
	// Device returns a disk or network card that can be attached to a running
	// domain of Definition; the guest may need some time to release it.
	Device func(t testing.TB) domain.Device
	// Crash kills the process of a guest.
	Crash func(t testing.TB, name string)
	// Disconnect breaks the connection and Reconnect makes it possible again.
	Disconnect, Reconnect func(t testing.TB)
	// Peer is another hypervisor, reached from this one at PeerURI.
	Peer    domain.Hypervisor
	PeerURI string
	// Slow makes a request for a migration that takes long; nil means that all do.
	Slow func(*domain.MigrationRequest)
	// Timeout bounds every wait; default 60 s. It only matters when a test fails.
	Timeout time.Duration
}

// conformanceCase is one test of the suite.
type conformanceCase struct {
	needs []Ability
	run   func(*suite)
}

// suite is a case under way.
type suite struct {
	testing.TB
	Driver
	ctx  context.Context
	name string
}

// Conformance runs the contract of [domain.Hypervisor] and [domain.Migrator]
// against the driver that open returns; open is called once per case. What the
// driver has declared not to support is skipped and printed at the end.
func Conformance(t *testing.T, open func(t testing.TB) Driver) {
	t.Helper()
	cases := maps.Clone(basicCases)
	maps.Copy(cases, moreCases)
	names := slices.Sorted(maps.Keys(cases))
	declared := map[string][]string{} // by ability and reason
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			for _, a := range cases[name].needs {
				if why, ok := d.Unsupported[a]; ok {
					key := fmt.Sprintf("%s: %s", a, why)
					declared[key] = append(declared[key], name)
					t.Skipf("declared unsupported: %s: %s", a, why)
				}
			}
			if d.Timeout == 0 {
				d.Timeout = time.Minute
			}
			ctx, cancel := context.WithTimeout(t.Context(), d.Timeout)
			defer cancel()
			s := &suite{TB: t, Driver: d, ctx: ctx, name: fmt.Sprintf("conformance_case%02d", i)}
			t.Cleanup(s.cleanUp)
			cases[name].run(s)
		})
	}
	for _, what := range slices.Sorted(maps.Keys(declared)) {
		t.Logf("declared unsupported: %s: %q", what, declared[what])
	}
}

// cleanUp removes the domains of the case everywhere.
func (s *suite) cleanUp() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), s.Timeout)
	defer cancel()
	for _, h := range []domain.Hypervisor{s.Hypervisor, s.Peer} {
		if h == nil {
			continue
		}
		for _, name := range []string{s.name, s.name + "-b"} {
			for _, verb := range []domain.Verb{domain.Destroy, domain.Undefine} {
				if err := h.Apply(ctx, domain.Operation{Verb: verb, Domain: name}); err != nil {
					s.Errorf("clean up: %v", err)
				}
			}
		}
	}
}

// must applies an operation that has to succeed.
func (s *suite) must(verb domain.Verb, change ...func(*domain.Operation)) {
	s.Helper()
	if err := s.apply(verb, change...); err != nil {
		s.Fatalf("%s: %v", verb, err)
	}
}

func (s *suite) apply(verb domain.Verb, change ...func(*domain.Operation)) error {
	op := domain.Operation{Verb: verb, Domain: s.name}
	for _, c := range change {
		c(&op)
	}
	if verb == domain.Start && op.Definition == nil {
		op.Definition = s.Definition(s, op.Domain)
	}
	return s.Hypervisor.Apply(s.ctx, op)
}

// get returns the domain of the case, which has to exist.
func (s *suite) get() domain.State {
	s.Helper()
	st, err := s.Hypervisor.Get(s.ctx, s.name)
	if err != nil {
		s.Fatalf("get: %v", err)
	}
	return st
}

// want checks status and reason.
func (s *suite) want(status domain.Status, reason domain.Reason) {
	s.Helper()
	if st := s.get(); st.Status != status || st.Reason != reason {
		s.Fatalf("domain is %s/%s, want %s/%s", st.Status, st.Reason, status, reason)
	}
}

// until polls until ok answers true.
func (s *suite) until(what string, ok func() bool) {
	s.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			s.Fatalf("never came: %s", what)
		}
	}
}

// becomes waits for a status and checks the reason.
func (s *suite) becomes(status domain.Status, reason domain.Reason) {
	s.Helper()
	s.until(string(status), func() bool { return s.get().Status == status })
	s.want(status, reason)
}

// watch opens a stream whose first event has been taken.
func (s *suite) watch(ctx context.Context) <-chan domain.Event {
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

// next takes an event.
func (s *suite) next(ch <-chan domain.Event) domain.Event {
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
func (s *suite) hinted(ch <-chan domain.Event) {
	s.Helper()
	for {
		if e := s.next(ch); e.Kind == domain.Changed && e.Domain == s.name {
			return
		}
	}
}

func paused(op *domain.Operation) { op.Paused = true }

func withMetadata(m domain.Metadata) func(*domain.Operation) {
	return func(op *domain.Operation) { op.Metadata = m }
}

func withDevice(d domain.Device) func(*domain.Operation) {
	return func(op *domain.Operation) { op.Device = d }
}
