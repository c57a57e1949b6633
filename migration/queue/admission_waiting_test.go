// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWaiting_CountsClaimsWithoutSlots(t *testing.T) {
	a := newAdmission(1, 1, 1)
	if got := a.Waiting(); len(got) > 0 {
		t.Errorf("an empty admission has %v waiting", got)
	}
	ask := func(name string, priority int, after time.Duration) {
		c := claim(name, "n1")
		c.Priority, c.Since = priority, start.Add(after)
		a.Ask(c, start.Add(time.Hour))
	}
	ask("holds", PriorityUnset, 0)
	ask("2", PriorityUnset, 2*time.Second)
	ask("1", PriorityUnset, time.Second)
	ask("3", PriorityCritical, 3*time.Second)
	want := map[int]Line{
		PriorityUnset:    {Count: 2, Oldest: start.Add(time.Second)},
		PriorityCritical: {Count: 1, Oldest: start.Add(3 * time.Second)},
	}
	if d := cmp.Diff(want, a.Waiting()); d != "" {
		t.Errorf("waiting (-want +got):\n%s", d)
	}
	a.Release(key("a", "3"), start.Add(time.Hour))
	delete(want, PriorityCritical)
	if d := cmp.Diff(want, a.Waiting()); d != "" {
		t.Errorf("waiting once one is canceled (-want +got):\n%s", d)
	}
}
