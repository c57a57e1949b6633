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

func TestOnlyWhatIsSoonOutdatedIsPostponed(t *testing.T) {
	claims := func(g *gathered, _ *migration.Plan) {
		g.Migration.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{SourcePersistentStatePVCName: "state", TargetPersistentStatePVCName: "next"}
	}
	held := func(g *gathered, p *migration.Plan) {
		g.Slot.Held, p.Actions = true, []migration.Action{{Kind: migration.CreateTarget}}
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
		"something was told of a move": {v1.MigrationRunning, v1.MigrationRunning, func(_ *gathered, p *migration.Plan) {
			p.Status.Conditions = []v1.VirtualMachineInstanceMigrationCondition{{Type: migration.ConditionProgress}}
		}, nil, 0},
		"a claim depends on the phase": {v1.MigrationScheduling, v1.MigrationPreparingTarget, claims, nil, 0},
		"an action failed":             {v1.MigrationScheduling, v1.MigrationPreparingTarget, nil, errors.New("no"), 0},
		"it has an event to tell": {v1.MigrationScheduling, v1.MigrationPreparingTarget, func(_ *gathered, p *migration.Plan) {
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
			if got := r.postpone(g, &plan, test.failed); got != test.want {
				t.Errorf("postponed for %s, want %s", got, test.want)
			}
		})
	}
}

// TestNothingIsPostponedForLong makes passes that lead from phase to phase: what they enter is stored together, no
// later than a moment after the first, with the time of each.
func TestNothingIsPostponedForLong(t *testing.T) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	clock := clocktesting.NewFakePassiveClock(start)
	r := &Reconciler{Clock: clock}
	pass := func(phases ...phase) (time.Duration, []string) {
		g, plan := passOf(v1.MigrationScheduling, phases[len(phases)-1])
		for _, p := range phases {
			plan.Status.PhaseTransitionTimestamps = append(plan.Status.PhaseTransitionTimestamps,
				v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{Phase: p, PhaseTransitionTimestamp: metav1.NewTime(clock.Now())})
		}
		left := r.postpone(g, &plan, nil)
		var at []string
		for _, s := range plan.Status.PhaseTransitionTimestamps {
			at = append(at, string(s.Phase)+" "+s.PhaseTransitionTimestamp.Sub(start).String())
		}
		return left, at
	}
	for _, step := range []struct {
		after  time.Duration
		phases []phase
		left   time.Duration
		at     []string
	}{
		{0, []phase{v1.MigrationPreparingTarget}, time.Second, []string{"PreparingTarget 0s"}},
		{400 * time.Millisecond, []phase{v1.MigrationPreparingTarget, v1.MigrationTargetReady}, 600 * time.Millisecond, []string{"PreparingTarget 0s", "TargetReady 400ms"}},
		{time.Second, []phase{v1.MigrationPreparingTarget, v1.MigrationTargetReady, v1.MigrationRunning}, 0, []string{"PreparingTarget 0s", "TargetReady 400ms", "Running 1s"}},
		// That was stored. What comes then begins anew.
		{3 * time.Second, []phase{v1.MigrationPreparingTarget}, time.Second, []string{"PreparingTarget 3s"}},
	} {
		clock.SetTime(start.Add(step.after))
		left, at := pass(step.phases...)
		if diff := cmp.Diff(step.at, at); diff != "" || left != step.left {
			t.Errorf("after %s: postponed for %s, want %s; entered (-want +got):\n%s", step.after, left, step.left, diff)
		}
	}
}

// TestWhatIsNotSoAnyMoreIsNotToldLater comes back from a phase that was not stored, and enters it again long after.
func TestWhatIsNotSoAnyMoreIsNotToldLater(t *testing.T) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		unsettled string
		want      time.Duration
		entered   time.Duration
	}{
		"the pass saw all":                        {"", brief, time.Minute},
		"the pass saw less than what was written": {"a Pod", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(start)
			r := &Reconciler{Clock: clock}
			pass := func(to phase, unsettled string) (time.Duration, migration.Plan) {
				g, plan := passOf(v1.MigrationScheduling, to)
				g.Unsettled = unsettled
				if to != v1.MigrationScheduling {
					plan.Status.PhaseTransitionTimestamps = []v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{
						{Phase: to, PhaseTransitionTimestamp: metav1.NewTime(clock.Now())}}
				}
				return r.postpone(g, &plan, nil), plan
			}
			pass(v1.MigrationPreparingTarget, "")
			pass(v1.MigrationScheduling, test.unsettled)
			clock.SetTime(start.Add(time.Minute))
			left, plan := pass(v1.MigrationPreparingTarget, "")
			if at := plan.Status.PhaseTransitionTimestamps[0].PhaseTransitionTimestamp.Sub(start); left != test.want || at != test.entered {
				t.Errorf("postponed for %s, entered after %s; want %s and %s", left, at, test.want, test.entered)
			}
		})
	}
}
