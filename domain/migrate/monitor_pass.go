// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"math"
	"time"

	"github.com/virtloom/virtloom/domain"
)

// pass is one pass over the data to copy. Within a pass the remaining bytes fall; the next
// one starts with the bytes that the guest has written meanwhile, so that they rise again. A
// migration makes progress during a pass that started with less than any before it. The
// copy of disks before that has no number, and the remaining bytes rise when memory is added.
type pass struct {
	number    uint64 // [domain.Progress.Iteration]
	known     bool   // a sample was counted
	remaining uint64 // of the last sample
	begin     uint64 // the least with which a pass started
	counts    bool   // this one started with less than those before
	least     uint64 // that remained in this pass
	leastAt   time.Time
}

// note records a sample and reports whether a further pass has started with it.
func (s *pass) note(p domain.Progress, now time.Time) (began bool) {
	if s.leastAt.IsZero() {
		s.leastAt = now
	}
	if p.Total == 0 && p.Remaining == 0 && !s.known {
		return false // the hypervisor has not counted yet
	}
	switch {
	case !s.known, p.Iteration != s.number && s.number == 0:
		s.again(now) // a pass in progress, or the first over memory after the disks
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

// again forgets the passes before, with which the next ones cannot be compared.
func (s *pass) again(now time.Time) {
	s.begin, s.least, s.counts, s.leastAt = math.MaxUint64, math.MaxUint64, true, now
}

func (m *Monitor) note(p domain.Progress, guestPaused bool, now time.Time) {
	if m.first.IsZero() {
		m.first, m.sentAt, m.sent = now, now, p.Processed
	}
	began := m.pass.note(p, now)
	if p.Processed != m.sent {
		m.sent, m.sentAt = p.Processed, now
	}
	if p.Throttle > m.throttle {
		m.throttle, m.pass.leastAt = p.Throttle, now // more throttling counts as progress
	}
	if guestPaused && !m.stood {
		m.pass.again(now) // the last pass begins
	}
	m.stood = guestPaused
	if m.Settings.Stall != nil && !p.PostCopy {
		m.stall.note(p, *m.Settings.Stall, began, now)
	}
}
