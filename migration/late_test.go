// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
)

// endings end a migration before it was handed off, for that reason.
var endings = map[string]struct {
	end  func(*world)
	want migration.Reason
}{
	"cancelled":      {func(w *world) { w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now} }, migration.ReasonAborted},
	"guest deleted":  {func(w *world) { w.VMI.DeletionTimestamp = &metav1.Time{Time: w.Now} }, migration.ReasonGuestDeleted},
	"Pod lost":       {func(w *world) { delete(w.Pods, "dst") }, "TargetPodLost"},
	"Pod on its way": {func(w *world) { w.Pods["dst"].DeletionTimestamp = &metav1.Time{Time: w.Now} }, "TargetPodLost"},
	"on the source":  {func(w *world) { w.PodBecomesReady(sourceNode) }, "TargetIsSource"},
	"takes too long": {func(w *world) { w.Now = w.Now.Add(time.Hour) }, ""},
	"not to be moved": {func(w *world) {
		w.PodBecomesReady(targetNode)
		w.Config.Evaluator = migration.Evaluator{{"house rule", houseRule}}
	}, "HouseRule"},
}

// houseRule is a check with a reason of its own.
func houseRule(migration.Snapshot, time.Time) migration.Finding {
	return migration.Finding{Blocked: true, Reason: "HouseRule", Message: "not on Sundays: ask again"}
}

func TestEndedMigration_RejectsLateHandoff(t *testing.T) {
	for _, ph := range []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationScheduling, v1.MigrationScheduled} {
		for name, tc := range endings {
			t.Run(name+" in "+string(ph), func(t *testing.T) {
				w := newWorld(t)
				w.Until(ph)
				before := w.VMI.DeepCopy() // what a handoff on its way is based on
				tc.end(w)
				for range 10 {
					w.Pass()
					if w.Migration.IsFinal() && cmp.Equal(before.Status, w.VMI.Status) {
						t.Fatal("the migration ended and the VMI is the same version still")
					}
				}
				if w.Migration.Status.Phase != v1.MigrationFailed || !w.Released {
					t.Fatalf("phase is %q, released %v", w.Migration.Status.Phase, w.Released)
				}
				if tc.want != "" && w.Reason() != tc.want {
					t.Errorf("reason is %q, want %q", w.Reason(), tc.want)
				}
				ms := w.VMI.Status.MigrationState
				if ms == nil || ms.MigrationUID != ourUID || !ms.Failed || !ms.Completed || ms.EndTimestamp == nil || ms.TargetNode != "" {
					t.Errorf("the migration state is %+v", ms)
				}
				if name == "cancelled" && (!ms.AbortRequested || ms.AbortStatus != v1.MigrationAbortSucceeded) {
					t.Errorf("the VMI has no record of the abort: %+v", ms)
				}
				if l := w.Lease(); l.State != handoff.Owned || l.Epoch != 1 || l.Holder != sourceNode {
					t.Errorf("the lease is %+v, want it untouched", l)
				}
				if name != "Pod on its way" && w.Pods["dst"] != nil {
					t.Error("the target Pod is left behind")
				}
			})
		}
	}
}

func TestForestall_OneWriteFirst(t *testing.T) {
	w := newWorld(t)
	w.Until(v1.MigrationScheduling)
	w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
	plan := migration.Decide(w.Snapshot(), w.Now)
	if plan.Status.Phase != v1.MigrationScheduling || plan.Reason != "Cancelling" || plan.Responsible != handoff.ByController {
		t.Errorf("phase %q, reason %q, owner %q; want to stay", plan.Status.Phase, plan.Reason, plan.Responsible)
	}
	if len(plan.Actions) != 1 || plan.Actions[0].Verb != migration.ChangeVMI || len(plan.Events) > 0 || plan.Release {
		t.Fatalf("plan is %+v, want one change of the VMI", plan)
	}
	if c := plan.Actions[0].Change; c.Lease != nil || c.TargetNode != "" {
		t.Errorf("the change goes beyond the migration state: %+v", c)
	}
	w.Apply(plan.Actions[0])
	plan = migration.Decide(w.Snapshot(), w.Now)
	if plan.Status.Phase != v1.MigrationFailed || len(plan.Actions) > 0 {
		t.Errorf("phase %q, actions %+v; want Failed and none", plan.Status.Phase, plan.Actions)
	}
}

func TestForestall_OnlyWithPossibleHandoff(t *testing.T) {
	for name, tc := range map[string]struct {
		phase v1.VirtualMachineInstanceMigrationPhase
		setup func(*world)
	}{
		"nothing has begun":    {v1.MigrationPending, func(w *world) { delete(w.Pods, "dst"); w.Migration.Status.Phase = v1.MigrationPending }},
		"no lease to be taken": {v1.MigrationScheduling, func(w *world) { delete(w.VMI.Annotations, handoff.Annotation) }},
		"the guest has ended":  {v1.MigrationScheduling, func(w *world) { w.VMI.Status.Phase = v1.Succeeded }},
		"the guest moves already": {v1.MigrationScheduling, func(w *world) {
			w.Put(handoff.Lease{State: handoff.Moving, Epoch: 2, Holder: sourceNode, Target: "elsewhere", Tag: "other-uid"})
		}},
		"another has the state": {v1.MigrationScheduled, func(w *world) {
			o := newMigration("other", "other-uid")
			o.Status.Phase = v1.MigrationRunning
			w.Others, w.VMI.Status.MigrationState = append(w.Others, o), &v1.VirtualMachineInstanceMigrationState{MigrationUID: "other-uid"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Until(tc.phase)
			tc.setup(w)
			before := w.VMI.DeepCopy()
			w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
			w.Passes()
			if diff := cmp.Diff(before, w.VMI); diff != "" {
				t.Errorf("the VMI was written (-before +after):\n%s", diff)
			}
			if w.Migration.Status.Phase != v1.MigrationFailed || !w.Released {
				t.Errorf("phase is %q, released %v", w.Migration.Status.Phase, w.Released)
			}
		})
	}
}

func TestEndedMigrationState_IsReplaced(t *testing.T) {
	w := newWorld(t)
	w.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "earlier", TargetNode: sourceNode, Completed: true}
	w.Until(v1.MigrationScheduling)
	w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
	w.Passes()
	if uid := w.VMI.Status.MigrationState.MigrationUID; uid != ourUID || w.Reason() != migration.ReasonAborted {
		t.Errorf("state of %q, reason %q", uid, w.Reason())
	}
}

func TestHandOff_AfterPhaseIsStored(t *testing.T) {
	for _, ph := range []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationPhaseUnset, v1.MigrationPending} {
		t.Run("from "+string(ph), func(t *testing.T) {
			w := newWorld(t)
			w.Until(v1.MigrationScheduling)
			// The process crashed before it could store what became of the Pod.
			w.Migration.Status = v1.VirtualMachineInstanceMigrationStatus{Phase: ph}
			w.PodBecomesReady(targetNode)
			w.Pass()
			if w.Migration.Status.Phase != v1.MigrationScheduled || w.VMI.Status.MigrationState != nil {
				t.Fatalf("phase %q, migration state %+v; want Scheduled and none", w.Migration.Status.Phase, w.VMI.Status.MigrationState)
			}
			w.Pass()
			if w.Migration.Status.Phase != v1.MigrationPreparingTarget || w.Lease().Tag != ourUID {
				t.Errorf("phase %q, lease %+v; want the handoff", w.Migration.Status.Phase, w.Lease())
			}
		})
	}
}
