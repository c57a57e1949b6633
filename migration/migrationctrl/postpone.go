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

// brief is for how long a status is not stored that only tells of a step whose successor is on its way. Quick
// steps are then told in one write. While more migrations wait than there are workers it may take longer. Nothing depends on them: what they are concluded from is stored, in the guest
// and its Pods, and a process that dies before it stores a status comes to the same conclusions again.
const brief = time.Second

// untold is a status that was not stored.
type untold struct {
	since time.Time
	// entered is when phases were entered.
	entered map[v1.VirtualMachineInstanceMigrationPhase]metav1.Time
}

// postpone returns for how long the status of the plan need not be stored, zero if it is to be stored now.
func (r *Reconciler) postpone(g *gathered, plan migration.Plan, actErr error) time.Duration {
	if equality.Semantic.DeepEqual(g.Migration.Status, plan.Status) {
		if g.Unsettled == "" {
			r.keepNothing(g.key) // what was not stored is not so any more
		}
		return 0
	}
	now := r.Clock.Now()
	u := untold{since: now, entered: map[v1.VirtualMachineInstanceMigrationPhase]metav1.Time{}}
	if before, known := r.untold.Load(g.key); known {
		u = before.(untold)
	}
	left := u.since.Add(brief).Sub(now)
	if _, yes := r.backlog.Outdone(g.key, r.Workers, now); yes {
		left = max(left, backlog.Again)
	}
	if actErr != nil || left <= 0 || !passing(g, plan) {
		return 0
	}
	entered := maps.Clone(u.entered)
	for _, s := range plan.Status.PhaseTransitionTimestamps {
		entered[s.Phase] = s.PhaseTransitionTimestamp
	}
	r.untold.Store(g.key, untold{since: u.since, entered: entered})
	r.backlog.Put(g.key, u.since)
	return left
}

// keepNothing drops what was not stored of a migration.
func (r *Reconciler) keepNothing(key types.NamespacedName) {
	r.untold.Delete(key)
	r.backlog.Done(key)
}

// entered is when the migration entered phases of which nothing is stored.
func (r *Reconciler) entered(key types.NamespacedName) map[v1.VirtualMachineInstanceMigrationPhase]metav1.Time {
	u, known := r.untold.Load(key)
	if !known {
		return nil
	}
	return u.(untold).entered
}

// passing reports whether the plan enters a phase that is likely to be left soon, and that only tells: before a
// target Pod is made for a slot that is held, and between the hand-over and the move. The scheduling of the target
// Pod is stored, as the hand-over needs it to be, and so is all that ends.
func passing(g *gathered, plan migration.Plan) bool {
	m, next := g.Migration, plan.Status.Phase
	if source, _ := g.StateClaims(); source != "" {
		return false // what becomes of its claims is concluded from what is stored
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
