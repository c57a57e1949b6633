// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"context"
	"errors"
	"time"

	"github.com/virtloom/virtloom/domain"
)

// movingCases are about adjusting and breaking a migration under way.
var movingCases = map[string]conformanceCase{
	"a migration that has ended is remembered": {needs: []Ability{Migration}, run: func(s *suite) {
		s.must(domain.Start)
		s.ok("migrate", s.migrator().Migrate(s.ctx, s.request()))
		p, err := s.migrator().MigrationProgress(s.ctx, s.name)
		if err != nil || p.Active || p.Total == 0 || p.Processed == 0 || p.Remaining != 0 {
			s.Errorf("progress is %+v, %v", p, err)
		}
	}},
	"progress does not go back": {needs: []Ability{Migration, SlowMigration}, run: func(s *suite) {
		done := s.migrateSlowly(s.ctx)
		var last domain.Progress
		seen := 0
		s.until("more of the guest to be sent, three times", func() bool {
			p, err := s.migrator().MigrationProgress(s.ctx, s.name)
			s.ok("progress", err)
			if !p.Active || p.Elapsed < last.Elapsed || p.Processed < last.Processed || p.Iteration < last.Iteration || p.Remaining > p.Total {
				s.Fatalf("progress is %+v, after %+v", p, last)
			}
			if p.Processed > last.Processed {
				seen++
			}
			last = p
			return seen >= 3
		})
		s.ok("abort", s.migrator().AbortMigration(s.ctx, s.name))
		s.aborted(done)
	}},
	"an abort counts before the migration has begun": {needs: []Ability{Migration, SlowMigration}, run: func(s *suite) {
		s.must(domain.Start)
		req := s.request()
		if s.Slow != nil {
			s.Slow(&req)
		}
		done := make(chan error, 1)
		go func() { done <- s.migrator().Migrate(s.ctx, req) }()
		s.until("end of the migration", func() bool {
			s.ok("abort", s.migrator().AbortMigration(s.ctx, s.name))
			return len(done) > 0
		})
		s.aborted(done)
	}},
	"a guest migrates again after an abort": {needs: []Ability{Migration, SlowMigration}, run: func(s *suite) {
		done := s.migrateSlowly(s.ctx)
		s.ok("abort", s.migrator().AbortMigration(s.ctx, s.name))
		s.aborted(done)
		s.ok("migrate", s.migrator().Migrate(s.ctx, s.request()))
		s.movedAway()
	}},
	"a second migration of a guest is refused": {needs: []Ability{Migration, SlowMigration}, run: func(s *suite) {
		done := s.migrateSlowly(s.ctx)
		if err := s.migrator().Migrate(s.ctx, s.request()); err == nil || errors.Is(err, domain.ErrMigrationAborted) {
			s.Errorf("it ended with %v", err)
		}
		if p, err := s.migrator().MigrationProgress(s.ctx, s.name); err != nil || !p.Active {
			s.Errorf("the first one is %+v, %v", p, err)
		}
		s.ok("abort", s.migrator().AbortMigration(s.ctx, s.name))
		s.aborted(done)
	}},
	"a slow migration ends when its limit is lifted": {needs: []Ability{Migration, SlowMigration, MigrationTuning}, run: func(s *suite) {
		done := s.migrateSlowly(s.ctx)
		s.ok("allow a standstill", s.tuner().SetMaxDowntime(s.ctx, s.name, 2*time.Second))
		s.is("a standstill of nothing", s.tuner().SetMaxDowntime(s.ctx, s.name, 0), domain.ErrInvalid)
		s.ok("lift the limit", s.tuner().SetMigrationBandwidth(s.ctx, s.name, 0))
		s.ended(done, nil)
		s.movedAway()
	}},
	"what a migration was tuned to ends with it": {needs: []Ability{Migration, SlowMigration, MigrationTuning}, run: func(s *suite) {
		done := s.migrateSlowly(s.ctx)
		for _, mib := range []uint64{3, 3, 1} {
			s.ok("limit the bandwidth", s.tuner().SetMigrationBandwidth(s.ctx, s.name, mib))
			s.ok("allow a standstill", s.tuner().SetMaxDowntime(s.ctx, s.name, time.Millisecond))
		}
		if p, err := s.migrator().MigrationProgress(s.ctx, s.name); err != nil || !p.Active {
			s.Errorf("progress is %+v, %v", p, err)
		}
		s.ok("abort", s.migrator().AbortMigration(s.ctx, s.name))
		s.aborted(done)
		s.is("bandwidth", s.tuner().SetMigrationBandwidth(s.ctx, s.name, 1), domain.ErrInvalidState)
		s.ok("migrate", s.migrator().Migrate(s.ctx, s.request()))
		s.movedAway()
	}},
	"without a migration nothing is tuned": {needs: []Ability{Migration, MigrationTuning}, run: func(s *suite) {
		s.is("unknown", s.tuner().SetMigrationBandwidth(s.ctx, s.name, 1), domain.ErrNotFound)
		s.must(domain.Start)
		s.is("bandwidth", s.tuner().SetMigrationBandwidth(s.ctx, s.name, 1), domain.ErrInvalidState)
		s.is("standstill", s.tuner().SetMaxDowntime(s.ctx, s.name, time.Second), domain.ErrInvalidState)
	}},
	"without a migration there is no post-copy": {needs: []Ability{Migration, PostCopy}, run: func(s *suite) {
		s.is("unknown", s.postCopier().SwitchToPostCopy(s.ctx, s.name), domain.ErrNotFound)
		s.must(domain.Start)
		s.is("running", s.postCopier().SwitchToPostCopy(s.ctx, s.name), domain.ErrInvalidState)
		s.is("resumed", s.migrator().Migrate(s.ctx, s.request(resumed)), domain.ErrInvalidState)
		s.want(domain.StatusRunning, domain.ReasonUnknown)
	}},
	"a guest goes on at the destination by post-copy": {needs: []Ability{Migration, SlowMigration, PostCopy, MigrationTuning}, run: func(s *suite) {
		done := s.migrateSlowly(s.ctx, withPostCopy)
		s.toPostCopy()
		if p, err := s.migrator().MigrationProgress(s.ctx, s.name); err != nil || !p.Active || !p.PostCopy {
			s.Errorf("progress is %+v, %v", p, err)
		}
		s.is("abort", s.migrator().AbortMigration(s.ctx, s.name), domain.ErrInvalidState)
		s.ok("lift the limit", s.tuner().SetMigrationBandwidth(s.ctx, s.name, 0))
		s.ended(done, nil)
		s.movedAway()
	}},
	"a broken connection leaves the guest where it is": {needs: []Ability{Migration, SlowMigration, BrokenLinks}, run: func(s *suite) {
		defer s.Mend(s)
		done := s.migrateSlowly(s.ctx)
		s.Cut(s)
		if err := s.result(done); err == nil || errors.Is(err, domain.ErrMigrationAborted) {
			s.Errorf("migrate: %v, want that the connection broke", err)
		}
		s.stays()
	}},
	"post-copy that broke off is resumed": {
		needs: []Ability{Migration, SlowMigration, PostCopy, MigrationTuning, BrokenLinks},
		run: func(s *suite) {
			for tries := 5; !s.breaksOff(); tries-- {
				if tries == 1 {
					s.Fatal("never came: want of memory at the destination")
				}
				s.Mend(s)
				s.cleanUp()
			}
			s.Mend(s)
			s.until("the guest to be whole", s.resumes)
			s.until("its end here", func() bool { return s.get().Reason == domain.ReasonMigrated })
			s.movedAway()
		},
	},
}

// answerLimit is how long a guest may hide that it waits for memory before it is given up.
const answerLimit = 10 * time.Second

func withPostCopy(r *domain.MigrationRequest) { r.PostCopy = true }

func resumed(r *domain.MigrationRequest) { r.PostCopy, r.Resume = true, true }

func (s migrationCase) tuner() domain.MigrationTuner {
	return ability[domain.MigrationTuner](s.subject)
}

func (s migrationCase) postCopier() domain.PostCopier { return ability[domain.PostCopier](s.subject) }

// toPostCopy makes the guest run at the destination, as soon as its memory is being sent.
func (s migrationCase) toPostCopy() {
	s.Helper()
	s.until("memory to be sent", func() bool {
		p, err := s.migrator().MigrationProgress(s.ctx, s.name)
		s.ok("progress", err)
		return p.Processed > 0
	})
	s.ok("switch to post-copy", s.postCopier().SwitchToPostCopy(s.ctx, s.name))
	s.becomesReason(domain.StatusPaused, domain.ReasonPostcopy)
	s.until("the guest to run at the destination", func() bool {
		there, err := s.Peer.Get(s.ctx, s.name)
		return err == nil && there.Status == domain.StatusRunning
	})
}

// resumes continues post-copy, and reports whether that has completed it. A migration that a
// hypervisor resumes just when it breaks may break once more, or be finished by the hypervisor
// alone.
func (s migrationCase) resumes() bool {
	s.Helper()
	again := make(chan error, 1)
	go func() { again <- s.migrator().Migrate(s.ctx, s.request(resumed)) }()
	s.until("end of the resumed migration", func() bool {
		_ = s.tuner().SetMigrationBandwidth(s.ctx, s.name, 0) // there may be no migration yet, or any more
		return len(again) > 0
	})
	err := <-again
	st := s.get()
	if err != nil && st.Reason != domain.ReasonMigrated && st.Reason != domain.ReasonPostcopy && st.Reason != domain.ReasonPostcopyFailed {
		s.Fatalf("resumed: %v, and the guest is %s/%s", err, st.Status, st.Reason)
	}
	return err == nil || st.Reason == domain.ReasonMigrated
}

// breaksOff cuts the link of a guest that runs at the destination by post-copy, and reports whether both sides see it. An emulated
// guest that waits for a page may hold the lock that its hypervisor takes to answer any request: such a guest cannot be resumed.
func (s migrationCase) breaksOff() bool {
	s.Helper()
	done := s.migrateSlowly(s.ctx, withPostCopy)
	s.toPostCopy()
	s.Cut(s)
	if err := s.result(done); err == nil || errors.Is(err, domain.ErrMigrationAborted) {
		s.Errorf("migrate: %v, want that the connection broke", err)
	}
	s.becomesReason(domain.StatusPaused, domain.ReasonPostcopyFailed)
	ctx, cancel := context.WithTimeout(s.ctx, answerLimit)
	defer cancel()
	return comes(ctx, func() bool {
		there, err := s.Peer.Get(ctx, s.name)
		return err == nil && there.Alive() && there.Reason == domain.ReasonPostcopyFailed
	})
}

// becomesReason waits for a status with a reason.
func (s migrationCase) becomesReason(status domain.Status, reason domain.Reason) {
	s.Helper()
	s.until(string(status)+"/"+string(reason), func() bool {
		st := s.get()
		return st.Status == status && st.Reason == reason
	})
}

// result waits for the end of a migration.
func (s migrationCase) result(done <-chan error) error {
	s.Helper()
	select {
	case err := <-done:
		return err
	case <-s.ctx.Done():
		s.Fatal("the migration never ended")
		return nil
	}
}

// ended checks the outcome of a migration.
func (s migrationCase) ended(done <-chan error, want error) {
	s.Helper()
	s.is("migrate", s.result(done), want)
}

// movedAway checks that the domain runs at the destination only.
func (s migrationCase) movedAway() {
	s.Helper()
	s.want(domain.StatusShutoff, domain.ReasonMigrated)
	there, err := s.Peer.Get(s.ctx, s.name)
	if err != nil || there.Status != domain.StatusRunning || there.Reason != domain.ReasonUnknown {
		s.Errorf("at the destination: %s/%s, %v", there.Status, there.Reason, err)
	}
}
