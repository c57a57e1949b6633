// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

func TestRejection_BeforeStart(t *testing.T) {
	yes := true
	for name, tc := range map[string]struct {
		setup func(*world)
		want  Reason
	}{
		"no guest":        {func(w *world) { w.vmi = nil }, ReasonGuestNotFound},
		"guest succeeded": {func(w *world) { w.vmi.Status.Phase = v1.Succeeded }, ReasonGuestFinal},
		"guest deleted":   {func(w *world) { w.vmi.DeletionTimestamp = &metav1.Time{Time: start} }, ReasonGuestDeleted},
		"no name":         {func(w *world) { w.migration.Spec.VMIName = ""; w.vmi = nil }, ReasonGuestNotFound},
		"not migratable": {func(w *world) {
			w.vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{
				Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionFalse, Reason: "DisksNotLiveMigratable", Message: "disk a is local",
			}}
		}, ReasonNotMigratable},
		"between clusters, source":       {func(w *world) { w.migration.Spec.SendTo = &v1.VirtualMachineInstanceMigrationSource{} }, ReasonGate},
		"between clusters, target":       {func(w *world) { w.migration.Spec.Receive = &v1.VirtualMachineInstanceMigrationTarget{} }, ReasonGate},
		"persistent TPM without a claim": {func(w *world) { w.vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: &yes} }, ReasonNotMigratable},
		"another one running": {func(w *world) {
			o := newMigration("other", "other-uid")
			o.Status.Phase = v1.MigrationRunning
			w.others = append(w.others, o)
			w.vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "other-uid"}
		}, ReasonConflict},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.setup(w)
			w.passes()
			if w.migration.Status.Phase != v1.MigrationFailed || w.reason() != tc.want {
				t.Errorf("phase %q, reason %q; want Failed, %q", w.migration.Status.Phase, w.reason(), tc.want)
			}
			if w.pods["dst"] != nil || !w.released {
				t.Errorf("target Pod %v, released %v", w.pods["dst"], w.released)
			}
			warned := false
			for _, e := range w.events {
				warned = warned || e.Warning && e.Reason == EventFailed
			}
			if !warned {
				t.Errorf("no warning among the events %+v", w.events)
			}
		})
	}
}

func TestCondition_ExplainsWait(t *testing.T) {
	for name, tc := range map[string]struct {
		setup func(*world)
		want  Reason
	}{
		"guest not running": {func(w *world) { w.vmi.Status.Phase = v1.Scheduled }, ReasonWaitingForGuest},
		"guest is ending":   {func(w *world) { w.put(handoff.Lease{State: handoff.Releasing, Epoch: 1, Holder: sourceNode}) }, ReasonWaitingForGuest},
		"no source Pod":     {func(w *world) { delete(w.pods, "src") }, ReasonWaitingForSourcePod},
		"utility volumes":   {func(w *world) { w.vmi.Spec.UtilityVolumes = []v1.UtilityVolume{{}} }, ReasonUtilityVolumes},
		"damaged lease":     {func(w *world) { w.vmi.Annotations[handoff.Annotation] = "{" }, ReasonLeaseUnreadable},
		"older migration": {func(w *world) {
			o := newMigration("a", "older-uid")
			o.Status.Phase = v1.MigrationPending
			w.others = append(w.others, o)
		}, ReasonWaitingForMigration},
		"no slot": {func(w *world) { w.config.Limits.Cluster = 0; w.restart() }, ReasonWaitingForSlot},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.pass()
			tc.setup(w)
			w.passes()
			if w.migration.Status.Phase != v1.MigrationPending || w.reason() != tc.want {
				t.Errorf("phase %q, reason %q; want Pending, %q", w.migration.Status.Phase, w.reason(), tc.want)
			}
			if len(w.pods) > 1 {
				t.Error("a target Pod was made for a migration that waits")
			}
			before := w.migration.Status.DeepCopy()
			w.now = w.now.Add(time.Minute)
			if plan := w.pass(); !cmp.Equal(*before, plan.Status) {
				t.Errorf("the status changes while nothing does:\n%s", cmp.Diff(*before, plan.Status))
			}
		})
	}
}

func TestS14_122TargetOnTheSourceNodeFailsBeforeHandOff(t *testing.T) {
	w := newWorld(t)
	w.until(v1.MigrationScheduling)
	w.podBecomesReady(sourceNode)
	w.passes()
	if ms := w.vmi.Status.MigrationState; w.reason() != ReasonSameNode || ms.TargetNode != "" || !ms.Failed {
		t.Errorf("reason %q, migration state %+v; want %q and one that was never handed off", w.reason(), ms, ReasonSameNode)
	}
	w.mustBeAt(sourceNode)
}

func TestTargetPodLoss(t *testing.T) {
	lose := map[string]func(*world){
		"vanished": func(w *world) { delete(w.pods, "dst") },
		"failed":   func(w *world) { w.pods["dst"].Status.Phase = corev1.PodFailed },
		"deleted":  func(w *world) { w.pods["dst"].DeletionTimestamp = &metav1.Time{Time: w.now} },
	}
	for _, ph := range unfinished[2:6] {
		for name, f := range lose {
			t.Run(name+" in "+string(ph), func(t *testing.T) {
				w := newWorld(t)
				w.until(ph)
				f(w)
				w.passes()
				if w.migration.Status.Phase != v1.MigrationFailed || w.reason() != ReasonTargetPodLost {
					t.Errorf("phase %q, reason %q", w.migration.Status.Phase, w.reason())
				}
				// A Pod on its way out is left to its kubelet.
				delete(w.pods, "dst")
				w.mustBeAt(sourceNode)
			})
		}
	}
	t.Run("while moving only the nodes may end it", func(t *testing.T) {
		w := newWorld(t)
		w.until(v1.MigrationRunning)
		lose["failed"](w)
		w.passes()
		if w.migration.Status.Phase != v1.MigrationRunning || w.pods["dst"] == nil {
			t.Fatalf("phase %q: the controller decided where the VMI is", w.migration.Status.Phase)
		}
		w.sourceReverts("connection lost")
		w.passes()
		w.mustBeAt(sourceNode)
	})
}
