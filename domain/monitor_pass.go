// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"math"
	"time"
)

// pass is one pass over what has to travel. Within it what remains falls; the next one
// begins with what the guest has written meanwhile, so that what remains rises again. A
// migration makes progress while a pass goes on that began with less than any before it.
// The copy of disks that goes before has no number, and what remains rises when memory
// is added.
type pass struct {
	number    uint64 // [Progress.Iteration]
	known     bool   // something was told at all
	remaining uint64 // as told last
	begin     uint64 // the least a pass began with
	counts    bool   // this one began with less than those before
	least     uint64 // that remained in this pass
	leastAt   time.Time
}

// note takes note of a sample and says whether a further pass has begun with it.
func (s *pass) note(p Progress, now time.Time) (began bool) {
	if s.leastAt.IsZero() {
		s.leastAt = now
	}
	if p.Total == 0 && p.Remaining == 0 && !s.known {
		return false // the hypervisor has not counted yet
	}
	switch {
	case !s.known, p.Iteration != s.number && s.number == 0:
		s.again(now) // a pass under way, or the first over memory after the disks
	case p.Iteration != s.number:
		began = true
		s.counts = p.Remaining < s.begin
		s.begin = min(s.begin, p.Remaining)
		s.least = math.MaxUint64
	}
	s.known, s.number, s.remaining = true, p.Iteration, p.Remaining
	if p.Remaining < s.least {
		s.least = p.Remaining
		if s.counts {
			s.leastAt = now
		}
	}
	return began
}

// again forgets what passes before were like: from now on they are of another kind.
func (s *pass) again(now time.Time) {
	s.begin, s.least, s.counts, s.leastAt = math.MaxUint64, math.MaxUint64, true, now
}

func (m *Monitor) note(p Progress, guestPaused bool, now time.Time) {
	if m.first.IsZero() {
		m.first, m.sentAt, m.sent = now, now, p.Processed
	}
	began := m.pass.note(p, now)
	if p.Processed != m.sent {
		m.sent, m.sentAt = p.Processed, now
	}
	if p.Throttle > m.throttle {
		m.throttle, m.pass.leastAt = p.Throttle, now // the hypervisor is working on it
	}
	if guestPaused && !m.stood {
		m.pass.again(now) // what comes is the last pass
	}
	m.stood = guestPaused
	if m.Settings.Stall != nil && !p.PostCopy {
		m.stall.note(p, *m.Settings.Stall, began, now)
	}
}
