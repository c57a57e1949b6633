// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// TestOlder_OneTurn asks, for many sets of migrations of a VMI, each of them.
func TestOlder_OneTurn(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	made := func(name string, at time.Duration, phase v1.VirtualMachineInstanceMigrationPhase) *v1.VirtualMachineInstanceMigration {
		return &v1.VirtualMachineInstanceMigration{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(start.Add(at))},
			Status:     v1.VirtualMachineInstanceMigrationStatus{Phase: phase},
		}
	}
	evacuates := func(m *v1.VirtualMachineInstanceMigration) {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1.EvacuationMigrationAnnotation, sourceNode)
	}
	phases := []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationPending, v1.MigrationPending, v1.MigrationScheduling}
	for range 5000 {
		var finished, waiting []*v1.VirtualMachineInstanceMigration
		for i := range rng.IntN(3) {
			m := made(fmt.Sprint("failed-", i), time.Duration(i)*time.Second, v1.MigrationFailed)
			evacuates(m)
			finished = append(finished, m)
		}
		for i := range 1 + rng.IntN(5) {
			m := made(fmt.Sprint("m-", i), time.Duration(rng.IntN(60))*time.Second, phases[rng.IntN(len(phases))])
			if rng.IntN(3) > 0 {
				evacuates(m)
			}
			if rng.IntN(3) == 0 {
				metav1.SetMetaDataAnnotation(&m.ObjectMeta, v1.FuncTestForceIgnoreMigrationBackoffAnnotation, "")
			}
			waiting = append(waiting, m)
		}
		var turns []string
		for i, m := range waiting {
			others := append(slices.Clone(finished), slices.Delete(slices.Clone(waiting), i, i+1)...)
			rng.Shuffle(len(others), func(x, y int) { others[x], others[y] = others[y], others[x] })
			if s := (migration.Snapshot{Migration: m, Others: others, Config: migration.Config{}.WithDefaults()}); s.Older() == nil {
				turns = append(turns, m.Name)
			}
		}
		if len(turns) != 1 {
			for _, m := range append(finished, waiting...) {
				t.Logf("%s %q at %s, %v", m.Name, m.Status.Phase, m.CreationTimestamp.Sub(start), m.Annotations)
			}
			t.Fatalf("it is the turn of %v, want one", turns)
		}
	}
}

// TestWake_SoonestWait has a wait that time does not end, and behind it others that it does.
func TestWake_SoonestWait(t *testing.T) {
	until := func(r migration.Reason, at time.Time) migration.Check {
		return migration.Check{string(r), func(migration.Snapshot, time.Time) migration.Finding {
			return migration.Finding{Blocked: true, Temporary: true, Reason: r, Until: at}
		}}
	}
	never, past := time.Time{}, start.Add(-time.Minute)
	soon, later := start.Add(time.Minute), start.Add(time.Hour)
	for name, tc := range map[string]struct {
		first, second, third, want time.Time
	}{
		"none":             {never, never, never, never},
		"the first":        {soon, later, never, soon},
		"the second":       {later, soon, never, soon},
		"the last alone":   {never, never, later, later},
		"one that is over": {past, later, past, later},
	} {
		for _, waits := range []bool{false, true} { // for another migration too
			t.Run(fmt.Sprint(name, " ", waits), func(t *testing.T) {
				w := newWorld(t)
				w.Pass()
				w.Config.Evaluator = migration.Evaluator{until("A", tc.first), until("B", tc.second), until("C", tc.third)}
				reason := migration.Reason("A")
				if waits {
					older := w.Migration.DeepCopy()
					older.Name, older.UID, older.CreationTimestamp = "older", "older", metav1.NewTime(start.Add(-time.Hour))
					w.Others, reason = append(w.Others, older), migration.ReasonWaitingForMigration
				}
				w.Now = start
				if plan := migration.Decide(w.Snapshot(), w.Now); plan.Reason != reason || !plan.RequeueAt.Equal(tc.want) {
					t.Errorf("reason %q, wake %s; want %q, %s", plan.Reason, plan.RequeueAt, reason, tc.want)
				}
			})
		}
	}
}

func TestInvalidVMIName_NotFound(t *testing.T) {
	for _, name := range []string{"a_/b", "-a", "a b", "Ä"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Migration.Spec.VMIName, w.VMI = name, nil
			s := w.Snapshot()
			s.Migration.Labels, s.Migration.Finalizers = nil, []string{v1.VirtualMachineInstanceMigrationFinalizer}
			if plan := migration.Decide(s, w.Now); plan.Status.Phase != v1.MigrationFailed || migration.Condition(plan.Status, migration.ConditionFailed).Reason != string(migration.ReasonGuestNotFound) {
				t.Errorf("phase %q, actions %+v", plan.Status.Phase, plan.Actions)
			}
		})
	}
}
