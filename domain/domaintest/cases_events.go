// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"context"
	"errors"

	"github.com/virtloom/virtloom/domain"
)

// eventCases are about hints and their watchers.
var eventCases = map[string]conformanceCase{
	"a watcher is notified of every kind of change": {core: true, run: func(s *suite) {
		ch := s.watch(s.ctx)
		for _, verb := range []domain.Verb{domain.Start, domain.Suspend, domain.Resume, domain.SetMetadata, domain.Destroy, domain.Undefine} {
			s.must(verb, withMetadata(domain.Metadata{Name: "n", UID: "u"}))
			s.hinted(ch)
		}
	}},
	"a slow watcher loses nothing and stops no other": {core: true, run: func(s *suite) {
		ch := s.watch(s.ctx)
		s.must(domain.Start)
		for range 20 {
			s.must(domain.Suspend)
			s.must(domain.Resume)
		}
		other := s.other()
		s.must(domain.Start, s.ofOther)
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
	"every watcher has a stream of its own that ends with its context": {core: true, run: func(s *suite) {
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
	"a crashed guest is seen": {needs: []Ability{Crashes}, run: func(s *suite) {
		s.must(domain.Start)
		ch := s.watch(s.ctx)
		s.Crash(s, s.name)
		s.hinted(ch)
		s.becomes(domain.StatusShutoff, domain.ReasonCrashed)
	}},
	"a lost connection is reported, survived and followed by a resync": {needs: []Ability{Reconnects}, run: func(s *suite) {
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
		for e := s.next(ch); e.Kind != domain.Resync; e = s.next(ch) {
			if e.Kind != domain.Changed { // a hint may come before
				s.Fatalf("event is %+v, want Resync", e)
			}
		}
		s.want(domain.StatusRunning, domain.ReasonUnknown)
		s.must(domain.Suspend)
		s.hinted(ch)
	}},
}
