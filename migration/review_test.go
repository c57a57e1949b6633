// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
)

// restarted puts another VMI of the same name into the place of the first.
func (w *world) restarted() {
	w.VMI = w.VMI.DeepCopy()
	w.VMI.UID, w.VMI.Annotations = "new", nil
	w.VMI.CreationTimestamp = metav1.NewTime(start.Add(time.Minute))
	w.VMI.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "elsewhere"}
	w.VMI.Labels = map[string]string{v1.NodeNameLabel: "elsewhere"}
	w.Put(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "elsewhere"})
	w.Pods = map[string]*corev1.Pod{}
}

func TestRecreatedVMI_KeepsState(t *testing.T) {
	for name, unnoted := range map[string]bool{"adopted here": false, "adopted by another controller": true} {
		for _, labelled := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				w.keepState(corev1.ReadWriteOnce)
				w.Until(v1.MigrationRunning)
				if unnoted {
					delete(w.Migration.Annotations, migration.VMIUID)
				}
				w.TargetTakesOver()
				if labelled {
					for _, a := range migration.Decide(w.Snapshot(), w.Now).Actions {
						w.Apply(a) // and then the controller dies
					}
				}
				before, claims := len(w.Claims), w.claimNames()
				w.restarted()
				guest := w.VMI.DeepCopy()
				w.Passes()
				if len(w.Claims) != before {
					t.Errorf("claims were %v and are %v", claims, w.claimNames())
				}
				if w.VMI.Status.MigrationState != nil || w.VMI.Annotations[handoff.Annotation] != guest.Annotations[handoff.Annotation] {
					t.Errorf("the new VMI was written: %+v", w.VMI.Status.MigrationState)
				}
				if w.Migration.Status.Phase != v1.MigrationFailed || w.Reason() != migration.ReasonGuestNotFound || !w.Released {
					t.Errorf("phase %q, reason %q, released %v", w.Migration.Status.Phase, w.Reason(), w.Released)
				}
			})
		}
	}
}

func TestStateClaim_LabeledAfterEnd(t *testing.T) {
	w := newWorld(t)
	w.keepState(corev1.ReadWriteOnce)
	w.Until(v1.MigrationRunning)
	w.TargetTakesOver()
	w.Now = w.Now.Add(24 * time.Hour)
	s := w.Snapshot()
	s.Failures = map[migration.Verb]error{migration.ChangeClaim: errors.New("conflict")}
	w.Migration.Status = migration.Decide(s, w.Now).Status
	if w.Migration.Status.Phase != v1.MigrationSucceeded {
		t.Fatalf("phase is %q", w.Migration.Status.Phase)
	}
	w.Passes()
	target := migration.TargetStateName(w.VMI, ourUID)
	if c := w.Claims[target]; c == nil || c.Labels[migration.StateLabel] != "guest" || len(w.Claims) != 1 || !w.Released {
		t.Errorf("claims %v, released %v: %+v", w.claimNames(), w.Released, c)
	}
}

func TestTidyUp_CurrentPodIsKept(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"the state is cleared, no lease": func(w *world) { unleased(w); w.VMI.Status.MigrationState = nil },
		"the state is another's, no lease": func(w *world) {
			unleased(w)
			w.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "other"}
		},
		"the lease has orphaned the move": func(w *world) {
			w.Put(handoff.Lease{State: handoff.Owned, Epoch: 9, Holder: targetNode})
			w.VMI.Status.MigrationState = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Until(v1.MigrationRunning)
			w.TargetTakesOver()
			lose(w)
			w.Passes()
			if w.Pods["dst"] == nil || !w.Migration.IsFinal() || !w.Released {
				t.Errorf("its Pod is there: %v; phase %q, released %v", w.Pods["dst"] != nil, w.Migration.Status.Phase, w.Released)
			}
			// A controller that restarts observes the object again.
			w.Restart()
			if w.Passes(); w.Pods["dst"] == nil {
				t.Error("its Pod is gone after a restart")
			}
		})
	}
}

func TestFastMigration_SkipsPhases(t *testing.T) {
	for _, ph := range []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationScheduling, v1.MigrationScheduled} {
		t.Run(string(ph), func(t *testing.T) {
			w := newWorld(t)
			w.Until(v1.MigrationPreparingTarget)
			w.TargetPrepares()
			w.SourceBegins()
			w.TargetTakesOver()
			w.Migration.Status.Phase = ph
			delete(w.Pods, "dst") // it has ended by now
			w.Passes()
			if w.Migration.Status.Phase != v1.MigrationSucceeded || !w.Released {
				t.Errorf("phase %q, reason %q, released %v", w.Migration.Status.Phase, w.Reason(), w.Released)
			}
		})
	}
}

func TestLostMigrationState_LeaseDecides(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"cleared": func(w *world) { w.VMI.Status.MigrationState = nil },
		"taken": func(w *world) {
			w.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "other"}
		},
		"failed": func(w *world) { w.VMI.Status.MigrationState.Failed = true },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.keepState(corev1.ReadWriteOnce)
			w.Until(v1.MigrationRunning)
			w.TargetTakesOver()
			lose(w)
			w.Passes()
			if w.Migration.Status.Phase != v1.MigrationSucceeded || !w.Released || w.Pods["dst"] == nil {
				t.Errorf("phase %q, reason %q, released %v", w.Migration.Status.Phase, w.Reason(), w.Released)
			}
		})
	}
}

// An update requested while the VMI migrated is left to the next migration; what this one applies
// has its time.
func TestLiveUpdate_WaitIsBounded(t *testing.T) {
	asked := func(at time.Duration) func(*world) {
		return func(w *world) {
			w.VMI.Status.Conditions = []v1.VirtualMachineInstanceCondition{{
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
		"asked before, too long":    {func(w *world) { asked(-time.Hour)(w); w.Now = w.Now.Add(16 * time.Minute) }, v1.MigrationSucceeded},
		"asked before, deleted":     {func(w *world) { asked(-time.Hour)(w); w.Migration.DeletionTimestamp = &metav1.Time{Time: start} }, v1.MigrationSucceeded},
		"asked before, guest ended": {func(w *world) { asked(-time.Hour)(w); w.VMI.Status.Phase = v1.Succeeded }, v1.MigrationSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Until(v1.MigrationRunning)
			w.TargetTakesOver()
			tc.given(w)
			plan := w.Passes()
			if w.Migration.Status.Phase != tc.want {
				t.Fatalf("phase %q, reason %q, want %q", w.Migration.Status.Phase, w.Reason(), tc.want)
			}
			if tc.want == v1.MigrationRunning && !plan.Deadline.Equal(start.Add(15*time.Minute)) {
				t.Errorf("the deadline is %s", plan.Deadline)
			}
		})
	}
}

func TestAutomaticMigration_RejectionBacksOff(t *testing.T) {
	w := newWorld(t)
	w.Config.Evaluator = migration.Evaluator{{"house rule", houseRule}}
	w.Migration.Annotations = map[string]string{v1.EvacuationMigrationAnnotation: sourceNode}
	w.Others = past(v1.EvacuationMigrationAnnotation, "f")
	plan := w.Passes()
	if w.Migration.Status.Phase != v1.MigrationPending || w.Reason() != migration.ReasonBackoff || plan.RequeueAt.IsZero() {
		t.Fatalf("phase %q, reason %q, again at %s", w.Migration.Status.Phase, w.Reason(), plan.RequeueAt)
	}
	w.Now = plan.RequeueAt
	if w.Passes(); w.Migration.Status.Phase != v1.MigrationFailed || w.Reason() != "HouseRule" {
		t.Errorf("afterwards: phase %q, reason %q", w.Migration.Status.Phase, w.Reason())
	}
}

func TestEvacuation_ObsoleteAfterDeparture(t *testing.T) {
	for _, ph := range []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationScheduling} {
		t.Run(name(ph), func(t *testing.T) {
			w := newWorld(t)
			w.Migration.Annotations = map[string]string{v1.EvacuationMigrationAnnotation: sourceNode}
			w.Until(ph)
			w.Put(handoff.Lease{State: handoff.Owned, Epoch: 3, Holder: "third"})
			w.VMI.Status.NodeName, w.VMI.Labels[v1.NodeNameLabel] = "third", "third"
			w.PodBecomesReady(targetNode)
			w.Passes()
			if w.Migration.Status.Phase != v1.MigrationFailed || w.Reason() != "GuestHasLeft" || w.Pods["dst"] != nil {
				t.Errorf("phase %q, reason %q, target Pod %v", w.Migration.Status.Phase, w.Reason(), w.Pods["dst"] != nil)
			}
		})
	}
}

func TestAttachmentPod_RenderErrorEndsMigration(t *testing.T) {
	w := newWorld(t)
	w.plug("a", v1.VolumeReady)
	w.Until(v1.MigrationScheduling)
	w.Pods["dst"].Spec.NodeName, w.Pods["dst"].Status.Phase = targetNode, corev1.PodRunning
	s := w.Snapshot()
	s.Failures = map[migration.Verb]error{migration.CreateAttachment: migration.ErrRender}
	if plan := migration.Decide(s, w.Now); plan.Reason != "Cancelling" && plan.Status.Phase != v1.MigrationFailed {
		t.Errorf("phase %q, reason %q", plan.Status.Phase, plan.Reason)
	}
}

func TestSender_KeepsMigrationUnderWay(t *testing.T) {
	w := newWorld(t)
	w.Config.Decentralized = true
	w.Migration.Spec.SendTo = &v1.VirtualMachineInstanceMigrationSource{MigrationID: "id", ConnectURL: "192.0.2.9:9185"}
	w.Put(handoff.Lease{State: handoff.Moving, Epoch: 7, Holder: sourceNode, Target: targetNode, Tag: "gone"})
	begun := metav1.NewTime(start)
	w.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "gone", TargetNode: targetNode, TargetPod: "x", StartTimestamp: &begun}
	before := w.VMI.DeepCopy()
	w.Passes()
	if ms := w.VMI.Status.MigrationState; ms.MigrationUID != before.Status.MigrationState.MigrationUID || ms.TargetPod != "x" {
		t.Errorf("the state is %+v", ms)
	}
}

func TestBackup_LateStartIsReported(t *testing.T) {
	w := newWorld(t)
	w.Until(v1.MigrationScheduling)
	w.PodBecomesReady(targetNode)
	w.VMI.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{BackupStatus: &v1.VirtualMachineInstanceBackupStatus{BackupName: "b"}}
	w.Passes()
	if migration.Condition(w.Migration.Status, v1.VirtualMachineInstanceMigrationBlockedByBackup) == nil || w.Reason() != migration.ReasonBackup {
		t.Errorf("reason %q, conditions %+v", w.Reason(), w.Migration.Status.Conditions)
	}
}
