// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"context"
	"errors"
	"slices"

	"github.com/virtloom/virtloom/domain"
)

// migrationCases are about live migration to a peer.
var migrationCases = map[string]conformanceCase{
	"a running guest migrates": {needs: []Ability{Migration}, run: func(s *suite) {
		s.must(domain.Start)
		if err := s.migrator().Migrate(s.ctx, s.request()); err != nil {
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
		if err := s.migrator().Migrate(s.ctx, s.request(func(r *domain.MigrationRequest) { r.Paused = true })); err != nil {
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
		req := s.request()
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

// migrationCase is about migrations.
type migrationCase struct{ *subject }

// request returns a request to migrate the domain of the case.
func (s migrationCase) request(change ...func(*domain.MigrationRequest)) domain.MigrationRequest {
	req := domain.MigrationRequest{Domain: s.name, DestinationURI: s.PeerURI}
	if s.Route != nil {
		r := s.Route(s, s.name)
		req.DestinationURI, req.MigrateURI, req.DisksURI = r.DestinationURI, r.MigrateURI, r.DisksURI
	}
	for _, c := range change {
		c(&req)
	}
	return req
}

// migrateSlowly begins a migration and returns when it is under way.
func (s migrationCase) migrateSlowly(ctx context.Context, change ...func(*domain.MigrationRequest)) <-chan error {
	s.must(domain.Start)
	if s.Slow != nil {
		change = append([]func(*domain.MigrationRequest){s.Slow}, change...)
	}
	req := s.request(change...)
	done := make(chan error, 1)
	go func() { done <- s.migrator().Migrate(ctx, req) }()
	s.until("begin of the migration", func() bool {
		select {
		case err := <-done:
			s.Fatalf("the migration ended early: %v", err)
		default:
		}
		p, err := s.migrator().MigrationProgress(s.ctx, s.name)
		return err == nil && p.Active && p.Total > 0
	})
	return done
}

// aborted checks the outcome of an aborted migration.
func (s migrationCase) aborted(done <-chan error) {
	s.Helper()
	s.ended(done, domain.ErrMigrationAborted)
	s.stays()
}

// stays checks that the domain runs here, and nowhere else.
func (s migrationCase) stays() {
	s.Helper()
	s.want(domain.StatusRunning, domain.ReasonUnknown)
	s.until("disappearance at the destination", func() bool {
		all, err := s.Peer.List(s.ctx)
		return err == nil && !slices.ContainsFunc(all, func(st domain.State) bool { return st.Name == s.name && st.Alive() })
	})
}
