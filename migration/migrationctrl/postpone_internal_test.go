// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// passOf is a pass over a migration stored in one phase that leads to another.
func passOf(from, to phase) (*gathered, migration.Plan) {
	g := &gathered{key: types.NamespacedName{Namespace: "ns", Name: "move"}}
	g.Migration = &v1.VirtualMachineInstanceMigration{}
	g.Migration.Status.Phase = from
	return g, migration.Plan{Status: v1.VirtualMachineInstanceMigrationStatus{Phase: to}}
}

func TestPostpone_TransientPhases(t *testing.T) {
	claims := func(g *gathered, _ *migration.Plan) {
		g.Migration.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{SourcePersistentStatePVCName: "state", TargetPersistentStatePVCName: "next"}
	}
	held := func(g *gathered, p *migration.Plan) {
		g.Slot.Held, p.Actions = true, []migration.Action{{Verb: migration.CreateTarget}}
	}
	for name, test := range map[string]struct {
		from, to phase
		edit     func(*gathered, *migration.Plan)
		failed   error
		want     time.Duration
	}{
		"a slot is held":                          {"", v1.MigrationPending, held, nil, brief},
		"it waits for a slot":                     {"", v1.MigrationPending, nil, nil, 0},
		"a slot is held, and nothing can be done": {"", v1.MigrationPending, func(g *gathered, _ *migration.Plan) { g.Slot.Held = true }, nil, 0},
		"the hand-over needs this to be stored":   {v1.MigrationPending, v1.MigrationScheduling, held, nil, 0},
		"ready to be handed over":                 {v1.MigrationScheduling, v1.MigrationScheduled, nil, nil, 0},
		"handed over":                             {v1.MigrationScheduling, v1.MigrationPreparingTarget, nil, nil, brief},
		"the target is ready":                     {v1.MigrationPreparingTarget, v1.MigrationTargetReady, nil, nil, brief},
		"it moves":                                {v1.MigrationScheduling, v1.MigrationRunning, nil, nil, brief},
		"something was reported of a migration": {v1.MigrationRunning, v1.MigrationRunning, func(_ *gathered, p *migration.Plan) {
			p.Status.Conditions = []v1.VirtualMachineInstanceMigrationCondition{{Type: migration.ConditionProgress}}
		}, nil, 0},
		"a claim depends on the phase": {v1.MigrationScheduling, v1.MigrationPreparingTarget, claims, nil, 0},
		"an action failed":             {v1.MigrationScheduling, v1.MigrationPreparingTarget, nil, errors.New("no"), 0},
		"it has an event to emit": {v1.MigrationScheduling, v1.MigrationPreparingTarget, func(_ *gathered, p *migration.Plan) {
			p.Events = []migration.Event{{Reason: "Something"}}
		}, nil, 0},
		"it is being deleted": {v1.MigrationScheduling, v1.MigrationPreparingTarget, func(g *gathered, _ *migration.Plan) {
			g.Migration.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		}, nil, 0},
		"the other cluster reads it": {v1.MigrationScheduling, v1.MigrationPreparingTarget, func(g *gathered, _ *migration.Plan) {
			g.Migration.Spec.SendTo = &v1.VirtualMachineInstanceMigrationSource{}
		}, nil, 0},
		"the end is stored before anything is tidied up": {v1.MigrationRunning, v1.MigrationSucceeded, nil, nil, 0},
		"a failure":           {v1.MigrationTargetReady, v1.MigrationFailed, nil, nil, 0},
		"nothing has changed": {v1.MigrationRunning, v1.MigrationRunning, nil, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Reconciler{Clock: clocktesting.NewFakePassiveClock(time.Now())}
			g, plan := passOf(test.from, test.to)
			if test.edit != nil {
				test.edit(g, &plan)
			}
			if got := (storer{r}).postpone(g, plan, test.failed); got != test.want {
				t.Errorf("postponed for %s, want %s", got, test.want)
			}
		})
	}
}

// TestPostpone_Bounded makes passes that lead from phase to phase: what they enter is stored together, no
// later than a moment after the first, and the times are known until then.
func TestPostpone_Bounded(t *testing.T) {
	const since = v1.MigrationScheduling
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	type pass struct {
		after     time.Duration
		to        phase
		unsettled string
		left      time.Duration
		entered   map[phase]time.Duration // not stored
	}
	for name, passes := range map[string][]pass{
		"quick steps": {
			{to: v1.MigrationPreparingTarget, left: brief, entered: map[phase]time.Duration{v1.MigrationPreparingTarget: 0}},
			{after: 400 * time.Millisecond, to: v1.MigrationTargetReady, left: brief - 400*time.Millisecond,
				entered: map[phase]time.Duration{v1.MigrationPreparingTarget: 0, v1.MigrationTargetReady: 400 * time.Millisecond}},
			{after: brief, to: v1.MigrationRunning},
			// That was stored; the next postponement starts over.
			{after: 3 * time.Second, to: v1.MigrationPreparingTarget, left: brief, entered: map[phase]time.Duration{v1.MigrationPreparingTarget: 3 * time.Second}},
		},
		"what is not so any more": {
			{to: v1.MigrationPreparingTarget, left: brief, entered: map[phase]time.Duration{v1.MigrationPreparingTarget: 0}},
			{after: time.Millisecond, to: since},
			{after: time.Minute, to: v1.MigrationPreparingTarget, left: brief, entered: map[phase]time.Duration{v1.MigrationPreparingTarget: time.Minute}},
		},
		"a pass that sees less than what was written": {
			{to: v1.MigrationPreparingTarget, left: brief, entered: map[phase]time.Duration{v1.MigrationPreparingTarget: 0}},
			{after: time.Millisecond, to: since, unsettled: "a Pod", entered: map[phase]time.Duration{v1.MigrationPreparingTarget: 0}},
			{after: time.Minute, to: v1.MigrationPreparingTarget},
		},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(start)
			r := &Reconciler{Clock: clock}
			for i, p := range passes {
				clock.SetTime(start.Add(p.after))
				g, plan := passOf(since, p.to)
				g.Pending = p.unsettled
				if p.to != since {
					plan.Status.PhaseTransitionTimestamps = []v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{
						{Phase: p.to, PhaseTransitionTimestamp: metav1.NewTime(clock.Now())}}
				}
				left := storer{r}.postpone(g, plan, nil)
				if left == 0 && p.to != since {
					if got := (storer{r}).entered(g.key); i > 0 && len(got) == 0 {
						t.Errorf("pass %d: what is about to be stored is forgotten, and it may fail", i)
					}
					storer{r}.keepNothing(g.key) // as it is stored
				}
				var entered map[phase]time.Duration
				for of, at := range (storer{r}).entered(g.key) {
					if entered == nil {
						entered = map[phase]time.Duration{}
					}
					entered[of] = at.Sub(start)
				}
				if diff := cmp.Diff(p.entered, entered); diff != "" || left != p.left {
					t.Errorf("pass %d: postponed for %s, want %s; entered (-want +got):\n%s", i, left, p.left, diff)
				}
			}
		})
	}
}
