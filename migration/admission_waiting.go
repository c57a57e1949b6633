// SPDX-License-Identifier: Apache-2.0

package migration

import "time"

// Line is how many migrations of a priority wait in the queue.
type Line struct {
	// Count is their number.
	Count int
	// Oldest is when the first of them began to wait.
	Oldest time.Time
}

// Waiting counts the waiting migrations by their own priority, whatever ageing has made of
// it. It costs one look at each claim, and changes nothing.
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
