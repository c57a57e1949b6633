// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// endings end a migration before it was handed off, for that reason.
var endings = map[string]struct {
	end  func(*world)
	want Reason
}{
	"cancelled":      {func(w *world) { w.migration.DeletionTimestamp = &metav1.Time{Time: w.now} }, ReasonAborted},
	"guest deleted":  {func(w *world) { w.vmi.DeletionTimestamp = &metav1.Time{Time: w.now} }, ReasonGuestDeleted},
	"Pod lost":       {func(w *world) { delete(w.pods, "dst") }, ReasonTargetPodLost},
	"Pod on its way": {func(w *world) { w.pods["dst"].DeletionTimestamp = &metav1.Time{Time: w.now} }, ReasonTargetPodLost},
	"on the source":  {func(w *world) { w.podBecomesReady(sourceNode) }, ReasonSameNode},
	"takes too long": {func(w *world) { w.now = w.now.Add(time.Hour) }, ""},
	"not to be moved": {func(w *world) {
		w.podBecomesReady(targetNode)
		w.config.Evaluator = Evaluator{{"house rule", houseRule}}
	}, "HouseRule"},
}

// houseRule is a check with a reason of its own.
func houseRule(Snapshot) Finding {
	return Finding{Blocked: true, Reason: "HouseRule", Message: "not on Sundays: ask again"}
}

func TestEndedMigration_RejectsLateHandoff(t *testing.T) {
	for _, ph := range []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationScheduling, v1.MigrationScheduled} {
		for name, tc := range endings {
			t.Run(name+" in "+string(ph), func(t *testing.T) {
				w := newWorld(t)
				w.until(ph)
				before := w.vmi.DeepCopy() // what a handoff on its way is based on
				tc.end(w)
				for range 10 {
					w.pass()
					if w.migration.IsFinal() && cmp.Equal(before.Status, w.vmi.Status) {
						t.Fatal("the migration ended and the VMI is the same version still")
					}
				}
				if w.migration.Status.Phase != v1.MigrationFailed || !w.released {
					t.Fatalf("phase is %q, released %v", w.migration.Status.Phase, w.released)
				}
				if tc.want != "" && w.reason() != tc.want {
					t.Errorf("reason is %q, want %q", w.reason(), tc.want)
				}
				ms := w.vmi.Status.MigrationState
				if ms == nil || ms.MigrationUID != ourUID || !ms.Failed || !ms.Completed || ms.EndTimestamp == nil || ms.TargetNode != "" {
					t.Errorf("the migration state is %+v", ms)
				}
				if name == "cancelled" && (!ms.AbortRequested || ms.AbortStatus != v1.MigrationAbortSucceeded) {
					t.Errorf("the VMI has no record of the abort: %+v", ms)
				}
				if l := w.lease(); l.State != handoff.Owned || l.Epoch != 1 || l.Holder != sourceNode {
					t.Errorf("the lease is %+v, want it untouched", l)
				}
				if name != "Pod on its way" && w.pods["dst"] != nil {
					t.Error("the target Pod is left behind")
				}
			})
		}
	}
}

func TestForestall_OneWriteFirst(t *testing.T) {
	w := newWorld(t)
	w.until(v1.MigrationScheduling)
	w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
	plan := Decide(w.snapshot(), w.now)
	if plan.Status.Phase != v1.MigrationScheduling || plan.Reason != ReasonCancelling || plan.Owner != OwnerController {
		t.Errorf("phase %q, reason %q, owner %q; want to stay", plan.Status.Phase, plan.Reason, plan.Owner)
	}
	if len(plan.Actions) != 1 || plan.Actions[0].Kind != ChangeVMI || len(plan.Events) > 0 || plan.Release {
		t.Fatalf("plan is %+v, want one change of the VMI", plan)
	}
	if c := plan.Actions[0].Change; c.Lease != nil || c.TargetNode != "" {
		t.Errorf("the change goes beyond the migration state: %+v", c)
	}
	w.apply(plan.Actions[0])
	plan = Decide(w.snapshot(), w.now)
	if plan.Status.Phase != v1.MigrationFailed || len(plan.Actions) > 0 {
		t.Errorf("phase %q, actions %+v; want Failed and none", plan.Status.Phase, plan.Actions)
	}
}

func TestForestall_OnlyWithPossibleHandoff(t *testing.T) {
	for name, tc := range map[string]struct {
		phase v1.VirtualMachineInstanceMigrationPhase
		setup func(*world)
	}{
		"nothing has begun":    {v1.MigrationPending, func(w *world) { delete(w.pods, "dst"); w.migration.Status.Phase = v1.MigrationPending }},
		"no lease to be taken": {v1.MigrationScheduling, func(w *world) { delete(w.vmi.Annotations, handoff.Annotation) }},
		"the guest has ended":  {v1.MigrationScheduling, func(w *world) { w.vmi.Status.Phase = v1.Succeeded }},
		"the guest moves already": {v1.MigrationScheduling, func(w *world) {
			w.put(handoff.Lease{State: handoff.Moving, Epoch: 2, Holder: sourceNode, Target: "elsewhere", Tag: "other-uid"})
		}},
		"another has the state": {v1.MigrationScheduled, func(w *world) {
			o := newMigration("other", "other-uid")
			o.Status.Phase = v1.MigrationRunning
			w.others, w.vmi.Status.MigrationState = append(w.others, o), &v1.VirtualMachineInstanceMigrationState{MigrationUID: "other-uid"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.until(tc.phase)
			tc.setup(w)
			before := w.vmi.DeepCopy()
			w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
			w.passes()
			if diff := cmp.Diff(before, w.vmi); diff != "" {
				t.Errorf("the VMI was written (-before +after):\n%s", diff)
			}
			if w.migration.Status.Phase != v1.MigrationFailed || !w.released {
				t.Errorf("phase is %q, released %v", w.migration.Status.Phase, w.released)
			}
		})
	}
}

func TestEndedMigrationState_IsReplaced(t *testing.T) {
	w := newWorld(t)
	w.vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "earlier", TargetNode: sourceNode, Completed: true}
	w.until(v1.MigrationScheduling)
	w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
	w.passes()
	if uid := w.vmi.Status.MigrationState.MigrationUID; uid != ourUID || w.reason() != ReasonAborted {
		t.Errorf("state of %q, reason %q", uid, w.reason())
	}
}

func TestHandOff_AfterPhaseIsStored(t *testing.T) {
	for _, ph := range []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationPhaseUnset, v1.MigrationPending} {
		t.Run("from "+string(ph), func(t *testing.T) {
			w := newWorld(t)
			w.until(v1.MigrationScheduling)
			// The process crashed before it could store what became of the Pod.
			w.migration.Status = v1.VirtualMachineInstanceMigrationStatus{Phase: ph}
			w.podBecomesReady(targetNode)
			w.pass()
			if w.migration.Status.Phase != v1.MigrationScheduled || w.vmi.Status.MigrationState != nil {
				t.Fatalf("phase %q, migration state %+v; want Scheduled and none", w.migration.Status.Phase, w.vmi.Status.MigrationState)
			}
			w.pass()
			if w.migration.Status.Phase != v1.MigrationPreparingTarget || w.lease().Tag != ourUID {
				t.Errorf("phase %q, lease %+v; want the handoff", w.migration.Status.Phase, w.lease())
			}
		})
	}
}
