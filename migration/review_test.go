// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// restarted puts another VMI of the same name into the place of the first.
func (w *world) restarted() {
	w.vmi = w.vmi.DeepCopy()
	w.vmi.UID, w.vmi.Annotations = "new", nil
	w.vmi.CreationTimestamp = metav1.NewTime(start.Add(time.Minute))
	w.vmi.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "elsewhere"}
	w.vmi.Labels = map[string]string{v1.NodeNameLabel: "elsewhere"}
	w.put(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "elsewhere"})
	w.pods = map[string]*corev1.Pod{}
}

func TestRecreatedVMI_KeepsState(t *testing.T) {
	for name, unnoted := range map[string]bool{"adopted here": false, "adopted by another controller": true} {
		for _, labelled := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				w.keepState(corev1.ReadWriteOnce)
				w.until(v1.MigrationRunning)
				if unnoted {
					delete(w.migration.Annotations, GuestUID)
				}
				w.targetTakesOver()
				if labelled {
					for _, a := range Decide(w.snapshot(), w.now).Actions {
						w.apply(a) // and then the controller dies
					}
				}
				before, claims := len(w.claims), w.claimNames()
				w.restarted()
				guest := w.vmi.DeepCopy()
				w.passes()
				if len(w.claims) != before {
					t.Errorf("claims were %v and are %v", claims, w.claimNames())
				}
				if w.vmi.Status.MigrationState != nil || w.vmi.Annotations[handoff.Annotation] != guest.Annotations[handoff.Annotation] {
					t.Errorf("the new VMI was written: %+v", w.vmi.Status.MigrationState)
				}
				if w.migration.Status.Phase != v1.MigrationFailed || w.reason() != ReasonGuestNotFound || !w.released {
					t.Errorf("phase %q, reason %q, released %v", w.migration.Status.Phase, w.reason(), w.released)
				}
			})
		}
	}
}

func TestStateClaim_LabeledAfterEnd(t *testing.T) {
	w := newWorld(t)
	w.keepState(corev1.ReadWriteOnce)
	w.until(v1.MigrationRunning)
	w.targetTakesOver()
	w.now = w.now.Add(24 * time.Hour)
	s := w.snapshot()
	s.Failures = map[ActionKind]error{ChangeClaim: errors.New("conflict")}
	w.migration.Status = Decide(s, w.now).Status
	if w.migration.Status.Phase != v1.MigrationSucceeded {
		t.Fatalf("phase is %q", w.migration.Status.Phase)
	}
	w.passes()
	target := TargetStateName(w.vmi, ourUID)
	if c := w.claims[target]; c == nil || c.Labels[stateLabel] != "guest" || len(w.claims) != 1 || !w.released {
		t.Errorf("claims %v, released %v: %+v", w.claimNames(), w.released, c)
	}
}

func TestTidyUp_CurrentPodIsKept(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"the state is cleared, no lease": func(w *world) { unleased(w); w.vmi.Status.MigrationState = nil },
		"the state is another's, no lease": func(w *world) {
			unleased(w)
			w.vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "other"}
		},
		"the lease has orphaned the move": func(w *world) {
			w.put(handoff.Lease{State: handoff.Owned, Epoch: 9, Holder: targetNode})
			w.vmi.Status.MigrationState = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.until(v1.MigrationRunning)
			w.targetTakesOver()
			lose(w)
			w.passes()
			if w.pods["dst"] == nil || !w.migration.IsFinal() || !w.released {
				t.Errorf("its Pod is there: %v; phase %q, released %v", w.pods["dst"] != nil, w.migration.Status.Phase, w.released)
			}
			// A controller that restarts observes the object again.
			w.restart()
			if w.passes(); w.pods["dst"] == nil {
				t.Error("its Pod is gone after a restart")
			}
		})
	}
}

func TestFastMigration_SkipsPhases(t *testing.T) {
	for _, ph := range []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationScheduling, v1.MigrationScheduled} {
		t.Run(string(ph), func(t *testing.T) {
			w := newWorld(t)
			w.until(v1.MigrationPreparingTarget)
			w.targetPrepares()
			w.sourceBegins()
			w.targetTakesOver()
			w.migration.Status.Phase = ph
			delete(w.pods, "dst") // it has ended by now
			w.passes()
			if w.migration.Status.Phase != v1.MigrationSucceeded || !w.released {
				t.Errorf("phase %q, reason %q, released %v", w.migration.Status.Phase, w.reason(), w.released)
			}
		})
	}
}

func TestLostMigrationState_LeaseDecides(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"cleared": func(w *world) { w.vmi.Status.MigrationState = nil },
		"taken": func(w *world) {
			w.vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "other"}
		},
		"failed": func(w *world) { w.vmi.Status.MigrationState.Failed = true },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.keepState(corev1.ReadWriteOnce)
			w.until(v1.MigrationRunning)
			w.targetTakesOver()
			lose(w)
			w.passes()
			if w.migration.Status.Phase != v1.MigrationSucceeded || !w.released || w.pods["dst"] == nil {
				t.Errorf("phase %q, reason %q, released %v", w.migration.Status.Phase, w.reason(), w.released)
			}
		})
	}
}

// An update requested while the VMI migrated is left to the next migration; what this one applies
// has its time.
func TestLiveUpdate_WaitIsBounded(t *testing.T) {
	asked := func(at time.Duration) func(*world) {
		return func(w *world) {
			w.vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{{
				Type: v1.VirtualMachineInstanceMigrationRequired, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(start.Add(at)),
			}}
		}
	}
	for name, tc := range map[string]struct {
		given func(*world)
		want  v1.VirtualMachineInstanceMigrationPhase
	}{
		"asked before":              {asked(-time.Hour), v1.MigrationRunning},
		"asked meanwhile":           {asked(time.Second), v1.MigrationSucceeded},
		"asked before, too long":    {func(w *world) { asked(-time.Hour)(w); w.now = w.now.Add(16 * time.Minute) }, v1.MigrationSucceeded},
		"asked before, deleted":     {func(w *world) { asked(-time.Hour)(w); w.migration.DeletionTimestamp = &metav1.Time{Time: start} }, v1.MigrationSucceeded},
		"asked before, guest ended": {func(w *world) { asked(-time.Hour)(w); w.vmi.Status.Phase = v1.Succeeded }, v1.MigrationSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.until(v1.MigrationRunning)
			w.targetTakesOver()
			tc.given(w)
			plan := w.passes()
			if w.migration.Status.Phase != tc.want {
				t.Fatalf("phase %q, reason %q, want %q", w.migration.Status.Phase, w.reason(), tc.want)
			}
			if tc.want == v1.MigrationRunning && !plan.Deadline.Equal(start.Add(15*time.Minute)) {
				t.Errorf("the deadline is %s", plan.Deadline)
			}
		})
	}
}

func TestAutomaticMigration_RejectionBacksOff(t *testing.T) {
	w := newWorld(t)
	w.config.Evaluator = Evaluator{{"house rule", houseRule}}
	w.migration.Annotations = map[string]string{v1.EvacuationMigrationAnnotation: sourceNode}
	w.others = past(v1.EvacuationMigrationAnnotation, "f")
	plan := w.passes()
	if w.migration.Status.Phase != v1.MigrationPending || w.reason() != ReasonBackoff || plan.Wake.IsZero() {
		t.Fatalf("phase %q, reason %q, again at %s", w.migration.Status.Phase, w.reason(), plan.Wake)
	}
	w.now = plan.Wake
	if w.passes(); w.migration.Status.Phase != v1.MigrationFailed || w.reason() != "HouseRule" {
		t.Errorf("afterwards: phase %q, reason %q", w.migration.Status.Phase, w.reason())
	}
}

func TestEvacuation_ObsoleteAfterDeparture(t *testing.T) {
	for _, ph := range []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationScheduling} {
		t.Run(name(ph), func(t *testing.T) {
			w := newWorld(t)
			w.migration.Annotations = map[string]string{v1.EvacuationMigrationAnnotation: sourceNode}
			w.until(ph)
			w.put(handoff.Lease{State: handoff.Owned, Epoch: 3, Holder: "third"})
			w.vmi.Status.NodeName, w.vmi.Labels[v1.NodeNameLabel] = "third", "third"
			w.podBecomesReady(targetNode)
			w.passes()
			if w.migration.Status.Phase != v1.MigrationFailed || w.reason() != ReasonGuestAway || w.pods["dst"] != nil {
				t.Errorf("phase %q, reason %q, target Pod %v", w.migration.Status.Phase, w.reason(), w.pods["dst"] != nil)
			}
		})
	}
}

func TestAttachmentPod_RenderErrorEndsMigration(t *testing.T) {
	w := newWorld(t)
	w.plug("a", v1.VolumeReady)
	w.until(v1.MigrationScheduling)
	w.pods["dst"].Spec.NodeName, w.pods["dst"].Status.Phase = targetNode, corev1.PodRunning
	s := w.snapshot()
	s.Failures = map[ActionKind]error{CreateAttachment: ErrRender}
	if plan := Decide(s, w.now); plan.Reason != ReasonCancelling && plan.Status.Phase != v1.MigrationFailed {
		t.Errorf("phase %q, reason %q", plan.Status.Phase, plan.Reason)
	}
}

func TestSender_KeepsMigrationUnderWay(t *testing.T) {
	w := newWorld(t)
	w.config.Decentralized = true
	w.migration.Spec.SendTo = &v1.VirtualMachineInstanceMigrationSource{MigrationID: "id", ConnectURL: "192.0.2.9:9185"}
	w.put(handoff.Lease{State: handoff.Moving, Epoch: 7, Holder: sourceNode, Target: targetNode, Tag: "gone"})
	begun := metav1.NewTime(start)
	w.vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "gone", TargetNode: targetNode, TargetPod: "x", StartTimestamp: &begun}
	before := w.vmi.DeepCopy()
	w.passes()
	if ms := w.vmi.Status.MigrationState; ms.MigrationUID != before.Status.MigrationState.MigrationUID || ms.TargetPod != "x" {
		t.Errorf("the state is %+v", ms)
	}
}

func TestBackup_LateStartIsReported(t *testing.T) {
	w := newWorld(t)
	w.until(v1.MigrationScheduling)
	w.podBecomesReady(targetNode)
	w.vmi.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{BackupStatus: &v1.VirtualMachineInstanceBackupStatus{BackupName: "b"}}
	w.passes()
	if Condition(w.migration.Status, v1.VirtualMachineInstanceMigrationBlockedByBackup) == nil || w.reason() != ReasonBackup {
		t.Errorf("reason %q, conditions %+v", w.reason(), w.migration.Status.Conditions)
	}
}
