// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/backlog"
	"github.com/virtloom/virtloom/migration"
)

// brief is how long the write of a status is postponed that only reports a step whose successor is imminent, so that
// quick steps share one write; with more waiting migrations than workers it may take longer. Nothing depends on these
// statuses: their evidence is stored in the VMI and its Pods, and a process that dies before it stores a status comes
// to the same conclusions again.
const brief = time.Second

// unstored is a status that was not stored.
type unstored struct {
	since time.Time
	// entered is when phases were entered.
	entered map[v1.VirtualMachineInstanceMigrationPhase]metav1.Time
}

// postpone returns for how long the status of the plan need not be stored; zero to store it now.
func (r storer) postpone(g *gathered, plan migration.Plan, actErr error) time.Duration {
	if equality.Semantic.DeepEqual(g.Migration.Status, plan.Status) {
		if g.Pending == "" {
			r.keepNothing(g.key) // what was not stored is outdated
		}
		return 0
	}
	now := r.Clock.Now()
	u := unstored{since: now, entered: map[v1.VirtualMachineInstanceMigrationPhase]metav1.Time{}}
	if before, known := r.unstored.Load(g.key); known {
		u = before.(unstored)
	}
	left := u.since.Add(brief).Sub(now)
	if _, yes := r.backlog.Saturated(g.key, r.Workers, now); yes {
		left = max(left, backlog.Again)
	}
	if actErr != nil || left <= 0 || !passing(g, plan) {
		return 0
	}
	entered := maps.Clone(u.entered)
	for _, s := range plan.Status.PhaseTransitionTimestamps {
		entered[s.Phase] = s.PhaseTransitionTimestamp
	}
	r.unstored.Store(g.key, unstored{since: u.since, entered: entered})
	r.backlog.Put(g.key, u.since)
	return left
}

// keepNothing drops the unstored status of a migration.
func (r storer) keepNothing(key types.NamespacedName) {
	r.unstored.Delete(key)
	r.backlog.Done(key)
}

// entered returns when the migration entered phases that are not stored yet.
func (r storer) entered(key types.NamespacedName) map[v1.VirtualMachineInstanceMigrationPhase]metav1.Time {
	u, known := r.unstored.Load(key)
	if !known {
		return nil
	}
	return u.(unstored).entered
}

// passing reports whether the plan enters a phase that is likely to be left soon and only informs: before a target
// Pod is created for a held slot, and between the handoff and the begin of the migration. The scheduling of the target
// Pod is stored, as the handoff requires, and so are all ends.
func passing(g *gathered, plan migration.Plan) bool {
	m, next := g.Migration, plan.Status.Phase
	if source, _ := g.StateClaims(); source != "" {
		return false // the decision about its claims depends on what is stored
	}
	if m.Status.Phase == next || m.DeletionTimestamp != nil || len(plan.Events) > 0 || plan.Release || m.IsDecentralized() {
		return false
	}
	switch next {
	case v1.MigrationPending:
		return g.Slot.Held && len(plan.Actions) > 0
	case v1.MigrationPreparingTarget, v1.MigrationTargetReady, v1.MigrationRunning:
		return true
	}
	return false
}
