// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"context"
	"errors"
	"slices"

	"github.com/virtloom/virtloom/domain"
)

// moreCases are about events, devices, faults and migration.
var moreCases = map[string]conformanceCase{
	"a watcher is told about every kind of change": {run: func(s *suite) {
		ch := s.watch(s.ctx)
		for _, verb := range []domain.Verb{domain.Start, domain.Suspend, domain.Resume, domain.SetMetadata, domain.Destroy, domain.Undefine} {
			s.must(verb, withMetadata(domain.Metadata{Name: "n", UID: "u"}))
			s.hinted(ch)
		}
	}},
	"a slow watcher loses nothing and stops nobody": {run: func(s *suite) {
		ch := s.watch(s.ctx)
		s.must(domain.Start)
		for range 20 {
			s.must(domain.Suspend)
			s.must(domain.Resume)
		}
		other := s.name + "-b"
		s.must(domain.Start, func(op *domain.Operation) { op.Domain = other })
		seen := map[string]int{}
		s.until("both hints", func() bool {
			e := s.next(ch)
			seen[e.Domain]++
			return seen[s.name] > 0 && seen[other] > 0
		})
		if seen[s.name] > 20 {
			s.Errorf("%d hints about one domain were not merged", seen[s.name])
		}
	}},
	"every watcher has a stream of its own that ends with its context": {run: func(s *suite) {
		ctx, cancel := context.WithCancel(s.ctx)
		first, second := s.watch(ctx), s.watch(s.ctx)
		cancel()
		s.until("end of the first stream", func() bool {
			select {
			case _, ok := <-first:
				return !ok
			default:
				return false
			}
		})
		s.must(domain.Start)
		s.hinted(second)
	}},
	"a device is attached once": {needs: []Ability{Devices}, run: func(s *suite) {
		s.must(domain.Start)
		dev := s.Device(s)
		alias := s.alias(dev)
		s.must(domain.AttachDevice, withDevice(dev))
		s.must(domain.AttachDevice, withDevice(dev))
		if !domain.HasDevice(s.get().Domain, alias) {
			s.Error("the device is missing")
		}
	}},
	"a device is detached, and then detaching succeeds again": {needs: []Ability{Devices}, run: func(s *suite) {
		s.must(domain.Start)
		dev := s.Device(s)
		alias := s.alias(dev)
		s.must(domain.AttachDevice, withDevice(dev))
		s.until("release of the device", func() bool {
			// A guest that has not booted ignores the request.
			if err := s.apply(domain.DetachDevice, withDevice(dev)); err != nil && !errors.Is(err, domain.ErrInvalidState) {
				s.Logf("detach: %v", err)
			}
			return !domain.HasDevice(s.get().Domain, alias)
		})
		s.must(domain.DetachDevice, withDevice(dev))
	}},
	"updating a device that is not there is not found": {needs: []Ability{Devices}, run: func(s *suite) {
		s.must(domain.Start)
		if err := s.apply(domain.UpdateDevice, withDevice(s.Device(s))); !errors.Is(err, domain.ErrNotFound) {
			s.Errorf("update: %v, want ErrNotFound", err)
		}
	}},
	"a crashed guest is seen": {needs: []Ability{Crashes}, run: func(s *suite) {
		s.must(domain.Start)
		ch := s.watch(s.ctx)
		s.Crash(s, s.name)
		s.hinted(ch)
		s.becomes(domain.StatusShutoff, domain.ReasonCrashed)
	}},
	"a lost connection is told, survived and followed by a resync": {needs: []Ability{Reconnects}, run: func(s *suite) {
		s.must(domain.Start)
		ch := s.watch(s.ctx)
		s.Disconnect(s)
		for e := s.next(ch); e.Kind != domain.Lost; e = s.next(ch) {
			if e.Kind != domain.Changed {
				s.Fatalf("event is %+v", e)
			}
		}
		if _, err := s.Hypervisor.List(s.ctx); !errors.Is(err, domain.ErrDisconnected) {
			s.Errorf("list: %v, want ErrDisconnected", err)
		}
		s.Reconnect(s)
		if e := s.next(ch); e.Kind != domain.Resync {
			s.Fatalf("event is %+v, want Resync", e)
		}
		s.want(domain.StatusRunning, domain.ReasonUnknown)
		s.must(domain.Suspend)
		s.hinted(ch)
	}},
	"a running guest migrates": {needs: []Ability{Migration}, run: func(s *suite) {
		s.must(domain.Start)
		if err := s.migrator().Migrate(s.ctx, domain.MigrationRequest{Domain: s.name, DestinationURI: s.PeerURI}); err != nil {
			s.Fatal(err)
		}
		s.want(domain.StatusShutoff, domain.ReasonMigrated)
		there, err := s.Peer.Get(s.ctx, s.name)
		if err != nil || there.Status != domain.StatusRunning {
			s.Fatalf("at the destination: %+v, %v", there, err)
		}
		if here := s.get(); there.UUID != here.UUID || there.Metadata.UID != here.Metadata.UID {
			s.Errorf("there %+v, here %+v", there, here)
		}
	}},
	"a paused guest stays paused when it migrates": {needs: []Ability{Migration}, run: func(s *suite) {
		s.must(domain.Start)
		s.must(domain.Suspend)
		if err := s.migrator().Migrate(s.ctx, domain.MigrationRequest{Domain: s.name, DestinationURI: s.PeerURI, Paused: true}); err != nil {
			s.Fatal(err)
		}
		there, err := s.Peer.Get(s.ctx, s.name)
		if err != nil || there.Status != domain.StatusPaused {
			s.Errorf("at the destination: %s/%s, %v", there.Status, there.Reason, err)
		}
	}},
	"a migration to nowhere leaves the guest running": {needs: []Ability{Migration}, run: func(s *suite) {
		s.must(domain.Start)
		err := s.migrator().Migrate(s.ctx, domain.MigrationRequest{Domain: s.name, DestinationURI: "qemu+unix:///system?socket=/nonexistent"})
		if err == nil {
			s.Error("it succeeded")
		}
		s.want(domain.StatusRunning, domain.ReasonUnknown)
	}},
	"a guest that does not run does not migrate": {needs: []Ability{Migration}, run: func(s *suite) {
		req := domain.MigrationRequest{Domain: s.name, DestinationURI: s.PeerURI}
		if err := s.migrator().Migrate(s.ctx, req); !errors.Is(err, domain.ErrNotFound) {
			s.Errorf("unknown: %v, want ErrNotFound", err)
		}
		s.must(domain.Start)
		s.must(domain.Destroy)
		if err := s.migrator().Migrate(s.ctx, req); !errors.Is(err, domain.ErrInvalidState) {
			s.Errorf("ended: %v, want ErrInvalidState", err)
		}
	}},
	"a migration can be aborted": {needs: []Ability{Migration, SlowMigration}, run: func(s *suite) {
		done := s.migrateSlowly(s.ctx)
		if err := s.migrator().AbortMigration(s.ctx, s.name); err != nil {
			s.Errorf("abort: %v", err)
		}
		s.aborted(done)
		if err := s.migrator().AbortMigration(s.ctx, s.name); err != nil {
			s.Errorf("abort of nothing: %v", err)
		}
	}},
	"a cancelled context aborts the migration": {needs: []Ability{Migration, SlowMigration}, run: func(s *suite) {
		ctx, cancel := context.WithCancel(s.ctx)
		done := s.migrateSlowly(ctx)
		cancel()
		s.aborted(done)
	}},
	"without a migration there is no progress": {needs: []Ability{Migration}, run: func(s *suite) {
		if _, err := s.migrator().MigrationProgress(s.ctx, s.name); !errors.Is(err, domain.ErrNotFound) {
			s.Errorf("unknown: %v, want ErrNotFound", err)
		}
		s.must(domain.Start)
		if p, err := s.migrator().MigrationProgress(s.ctx, s.name); err != nil || p.Active {
			s.Errorf("progress is %+v, %v", p, err)
		}
	}},
}

func (s *suite) alias(d domain.Device) string {
	a, err := domain.DeviceAlias(d)
	if err != nil {
		s.Fatal(err)
	}
	return a
}

func (s *suite) migrator() domain.Migrator {
	m, ok := s.Hypervisor.(domain.Migrator)
	if !ok {
		s.Fatal("the driver is no Migrator and has not declared that")
	}
	return m
}

// migrateSlowly begins a migration and returns when it is under way.
func (s *suite) migrateSlowly(ctx context.Context) <-chan error {
	s.must(domain.Start)
	req := domain.MigrationRequest{Domain: s.name, DestinationURI: s.PeerURI}
	if s.Slow != nil {
		s.Slow(&req)
	}
	done := make(chan error, 1)
	go func() { done <- s.migrator().Migrate(ctx, req) }()
	s.until("begin of the migration", func() bool {
		select {
		case err := <-done:
			s.Fatalf("the migration ended early: %v", err)
		default:
		}
		p, err := s.migrator().MigrationProgress(s.ctx, s.name)
		return err == nil && p.Active
	})
	return done
}

// aborted checks how an aborted migration ends.
func (s *suite) aborted(done <-chan error) {
	select {
	case err := <-done:
		if !errors.Is(err, domain.ErrMigrationAborted) {
			s.Errorf("migrate: %v, want ErrMigrationAborted", err)
		}
	case <-s.ctx.Done():
		s.Fatal("the migration never ended")
	}
	s.want(domain.StatusRunning, domain.ReasonUnknown)
	s.until("disappearance at the destination", func() bool {
		all, err := s.Peer.List(s.ctx)
		return err == nil && !slices.ContainsFunc(all, func(st domain.State) bool { return st.Name == s.name && st.Alive() })
	})
}
