// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
)

func TestRejection_BeforeStart(t *testing.T) {
	yes := true
	for name, tc := range map[string]struct {
		setup func(*world)
		want  migration.Reason
	}{
		"no guest":        {func(w *world) { w.VMI = nil }, migration.ReasonGuestNotFound},
		"guest succeeded": {func(w *world) { w.VMI.Status.Phase = v1.Succeeded }, migration.ReasonGuestFinal},
		"guest deleted":   {func(w *world) { w.VMI.DeletionTimestamp = &metav1.Time{Time: start} }, migration.ReasonGuestDeleted},
		"no name":         {func(w *world) { w.Migration.Spec.VMIName = ""; w.VMI = nil }, migration.ReasonGuestNotFound},
		"not migratable": {func(w *world) {
			w.VMI.Status.Conditions = []v1.VirtualMachineInstanceCondition{{
				Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionFalse, Reason: "DisksNotLiveMigratable", Message: "disk a is local",
			}}
		}, migration.ReasonNotMigratable},
		"between clusters, source":       {func(w *world) { w.Migration.Spec.SendTo = &v1.VirtualMachineInstanceMigrationSource{} }, migration.ReasonGate},
		"between clusters, target":       {func(w *world) { w.Migration.Spec.Receive = &v1.VirtualMachineInstanceMigrationTarget{} }, migration.ReasonGate},
		"persistent TPM without a claim": {func(w *world) { w.VMI.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: &yes} }, migration.ReasonNotMigratable},
		"another one running": {func(w *world) {
			o := newMigration("other", "other-uid")
			o.Status.Phase = v1.MigrationRunning
			w.Others = append(w.Others, o)
			w.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "other-uid"}
		}, migration.ReasonConflict},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.setup(w)
			w.Passes()
			if w.Migration.Status.Phase != v1.MigrationFailed || w.Reason() != tc.want {
				t.Errorf("phase %q, reason %q; want Failed, %q", w.Migration.Status.Phase, w.Reason(), tc.want)
			}
			if w.Pods["dst"] != nil || !w.Released {
				t.Errorf("target Pod %v, released %v", w.Pods["dst"], w.Released)
			}
			warned := false
			for _, e := range w.Events {
				warned = warned || e.Warning && e.Reason == "FailedMigration"
			}
			if !warned {
				t.Errorf("no warning among the events %+v", w.Events)
			}
		})
	}
}

func TestCondition_ExplainsWait(t *testing.T) {
	for name, tc := range map[string]struct {
		setup func(*world)
		want  migration.Reason
	}{
		"guest not running": {func(w *world) { w.VMI.Status.Phase = v1.Scheduled }, migration.ReasonWaitingForGuest},
		"guest is ending":   {func(w *world) { w.Put(handoff.Lease{State: handoff.Releasing, Epoch: 1, Holder: sourceNode}) }, migration.ReasonWaitingForGuest},
		"no source Pod":     {func(w *world) { delete(w.Pods, "src") }, migration.ReasonWaitingForSourcePod},
		"utility volumes":   {func(w *world) { w.VMI.Spec.UtilityVolumes = []v1.UtilityVolume{{}} }, "UtilityVolumesPresent"},
		"damaged lease":     {func(w *world) { w.VMI.Annotations[handoff.Annotation] = "{" }, migration.ReasonLeaseUnreadable},
		"older migration": {func(w *world) {
			o := newMigration("a", "older-uid")
			o.Status.Phase = v1.MigrationPending
			w.Others = append(w.Others, o)
		}, migration.ReasonWaitingForMigration},
		"no slot": {func(w *world) { w.Config.Limits.Cluster = 0; w.Restart() }, migration.ReasonWaitingForSlot},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Pass()
			tc.setup(w)
			w.Passes()
			if w.Migration.Status.Phase != v1.MigrationPending || w.Reason() != tc.want {
				t.Errorf("phase %q, reason %q; want Pending, %q", w.Migration.Status.Phase, w.Reason(), tc.want)
			}
			if len(w.Pods) > 1 {
				t.Error("a target Pod was made for a migration that waits")
			}
			before := w.Migration.Status.DeepCopy()
			w.Now = w.Now.Add(time.Minute)
			if plan := w.Pass(); !cmp.Equal(*before, plan.Status) {
				t.Errorf("the status changes while nothing does:\n%s", cmp.Diff(*before, plan.Status))
			}
		})
	}
}

func TestS14_122TargetOnTheSourceNodeFailsBeforeHandOff(t *testing.T) {
	w := newWorld(t)
	w.Until(v1.MigrationScheduling)
	w.PodBecomesReady(sourceNode)
	w.Passes()
	if ms := w.VMI.Status.MigrationState; w.Reason() != "TargetIsSource" || ms.TargetNode != "" || !ms.Failed {
		t.Errorf("reason %q, migration state %+v; want %q and one that was never handed off", w.Reason(), ms, "TargetIsSource")
	}
	w.mustBeAt(sourceNode)
}

func TestTargetPodLoss(t *testing.T) {
	lose := map[string]func(*world){
		"vanished": func(w *world) { delete(w.Pods, "dst") },
		"failed":   func(w *world) { w.Pods["dst"].Status.Phase = corev1.PodFailed },
		"deleted":  func(w *world) { w.Pods["dst"].DeletionTimestamp = &metav1.Time{Time: w.Now} },
	}
	for _, ph := range unfinished[2:6] {
		for name, f := range lose {
			t.Run(name+" in "+string(ph), func(t *testing.T) {
				w := newWorld(t)
				w.Until(ph)
				f(w)
				w.Passes()
				if w.Migration.Status.Phase != v1.MigrationFailed || w.Reason() != "TargetPodLost" {
					t.Errorf("phase %q, reason %q", w.Migration.Status.Phase, w.Reason())
				}
				// A Pod on its way out is left to its kubelet.
				delete(w.Pods, "dst")
				w.mustBeAt(sourceNode)
			})
		}
	}
	t.Run("while moving only the nodes may end it", func(t *testing.T) {
		w := newWorld(t)
		w.Until(v1.MigrationRunning)
		lose["failed"](w)
		w.Passes()
		if w.Migration.Status.Phase != v1.MigrationRunning || w.Pods["dst"] == nil {
			t.Fatalf("phase %q: the controller decided where the VMI is", w.Migration.Status.Phase)
		}
		w.SourceReverts("connection lost")
		w.Passes()
		w.mustBeAt(sourceNode)
	})
}
