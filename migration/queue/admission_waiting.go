// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"time"
)

// Line counts the migrations of one priority that wait in the queue.
type Line struct {
	// Count is their number.
	Count int
	// Oldest is when the first of them began to wait.
	Oldest time.Time
}

// Waiting counts the waiting migrations by their own priority, without ageing. It takes time
// linear in the number of claims, and changes nothing.
func (a *Admission) Waiting() map[int]Line {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[int]Line{}
	for _, s := range a.claims {
		if s.state != waits {
			continue
		}
		l := out[s.claim.Priority]
		if l.Count == 0 || s.claim.Since.Before(l.Oldest) {
			l.Oldest = s.claim.Since
		}
		l.Count++
		out[s.claim.Priority] = l
	}
	return out
}
