// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// Backoff delays the automatic migrations (evacuations and workload updates) of a VMI
// whose last ones have failed: First after one failure, doubled with each further one, at
// most Max. Failures are counted over the finished migrations that are kept
// ([Config.KeepFinished]), from the latest back to the last success.
type Backoff struct {
	// First is the delay after the first failure. Zero means 20 s, negative none.
	First time.Duration
	// Max is the longest delay. Zero means 320 s.
	Max time.Duration
}

func (b Backoff) withDefaults() Backoff {
	b.First, b.Max = cmp.Or(b.First, 20*time.Second), cmp.Or(b.Max, 320*time.Second)
	return b
}

// Until returns the time before which no automatic migration of the VMI that has these
// migrations may start, and the number of consecutive failures; without any the time is zero.
// A migration that is being deleted or has not finished counts neither as failure nor as
// success; nor does a failed migration of a user's.
func (b Backoff) Until(migrations []*v1.VirtualMachineInstanceMigration) (time.Time, int) {
	b = b.withDefaults()
	ended := make([]*v1.VirtualMachineInstanceMigration, 0, len(migrations))
	for _, m := range migrations {
		if m.DeletionTimestamp == nil && (m.Status.Phase == v1.MigrationSucceeded || m.Status.Phase == v1.MigrationFailed && Automatic(m)) {
			ended = append(ended, m)
		}
	}
	// By end time: a migration overtaken by a user's is older, and may fail after it.
	slices.SortFunc(ended, func(x, y *v1.VirtualMachineInstanceMigration) int {
		return cmp.Or(EnteredAt(y).Compare(EnteredAt(x)), CompareCreated(y, x))
	})
	if i := slices.IndexFunc(ended, func(m *v1.VirtualMachineInstanceMigration) bool { return m.Status.Phase == v1.MigrationSucceeded }); i >= 0 {
		ended = ended[:i]
	}
	if len(ended) == 0 || b.First < 0 {
		return time.Time{}, 0
	}
	delay := min(b.First, b.Max)
	for range ended[1:] {
		if delay > b.Max/2 {
			delay = b.Max
			break
		}
		delay *= 2
	}
	return EnteredAt(ended[0]).Add(delay), len(ended)
}

// EnteredAt returns when the migration entered its stored phase; its creation where that was not recorded.
func EnteredAt(m *v1.VirtualMachineInstanceMigration) time.Time { return phaseSince(m, &m.Status) }

// checkBackoff delays an automatic migration while the back-off of the VMI's failed
// migrations lasts.
func checkBackoff(s Snapshot, now time.Time) Finding {
	if s.acting() || !backsOff(s.Migration) {
		return Finding{}
	}
	until, failures := s.Config.Backoff.Until(s.Others)
	if !now.Before(until) {
		return Finding{}
	}
	f := later(ReasonBackoff,
		fmt.Sprintf("the last automatic migrations of the VMI have failed (%d in a row)", failures),
		"the next one may start at "+clock(until)+"; a migration that a user asks for does not wait")
	f.Until = until
	return f
}

// backsOff reports whether failures of earlier migrations delay this one.
func backsOff(m *v1.VirtualMachineInstanceMigration) bool {
	_, ignored := m.Annotations[v1.FuncTestForceIgnoreMigrationBackoffAnnotation]
	return Automatic(m) && !ignored
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }
