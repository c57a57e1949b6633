// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// Backoff delays the automatic migrations (evacuations and workload updates) of a guest
// whose last ones have failed: First after one failure, doubled with each further one, no
// longer than Max. Failures are counted in the finished migrations that are kept
// ([Config.KeepFinished]), from the one that ended last back to one that succeeded.
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

// Until returns before when no automatic migration of a guest may start that has these
// migrations, and how many failures in a row that is for. Without any the time is zero.
// A migration that is being deleted, or has not finished, counts neither as failure nor as
// success, and nor does a user's that has failed.
func (b Backoff) Until(migrations []*v1.VirtualMachineInstanceMigration) (time.Time, int) {
	b = b.withDefaults()
	ended := make([]*v1.VirtualMachineInstanceMigration, 0, len(migrations))
	for _, m := range migrations {
		if m.DeletionTimestamp == nil && (m.Status.Phase == v1.MigrationSucceeded || m.Status.Phase == v1.MigrationFailed && automatic(m)) {
			ended = append(ended, m)
		}
	}
	// By their ends: one that waited while a user's passed it is older, and may fail after that.
	slices.SortFunc(ended, func(x, y *v1.VirtualMachineInstanceMigration) int {
		return cmp.Or(endedAt(y).Compare(endedAt(x)), created(y, x))
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
	return endedAt(ended[0]).Add(delay), len(ended)
}

// endedAt is when the migration ended, or its creation where that was not recorded.
func endedAt(m *v1.VirtualMachineInstanceMigration) time.Time { return phaseSince(m, &m.Status) }

// CheckBackoff holds an automatic migration back for a while when the last ones of the
// guest have failed.
func CheckBackoff(s Snapshot) Finding {
	if s.acting() || !backsOff(s.Migration) {
		return Finding{}
	}
	until, failures := s.Config.Backoff.Until(s.Others)
	if !s.Now.Before(until) {
		return Finding{}
	}
	f := later(ReasonBackoff,
		fmt.Sprintf("the last automatic migrations of the guest have failed (%d in a row)", failures),
		"the next one may start at "+clock(until)+"; a migration that a user asks for does not wait")
	f.Until = until
	return f
}

// backsOff reports whether failures of earlier migrations delay this one.
func backsOff(m *v1.VirtualMachineInstanceMigration) bool {
	_, ignored := m.Annotations[v1.FuncTestForceIgnoreMigrationBackoffAnnotation]
	return automatic(m) && !ignored
}
