// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// What KubeVirt's webhook refuses at creation fails, or waits, where there is no webhook.
func TestRejection_WithoutWebhook(t *testing.T) {
	notMigratable := func(reason string) func(*world) {
		return func(w *world) {
			w.VMI.Status.Conditions = []v1.VirtualMachineInstanceCondition{{
				Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionFalse, Reason: reason, Message: "why",
			}}
		}
	}
	another := func(phase v1.VirtualMachineInstanceMigrationPhase) func(*world) {
		return func(w *world) {
			o := newMigration("a", "another")
			o.Status.Phase = phase
			w.Others = append(w.Others, o)
		}
	}
	for name, tc := range map[string]struct {
		given func(*world)
		phase v1.VirtualMachineInstanceMigrationPhase
		want  migration.Reason
	}{
		"S14/1 no name":                  {func(w *world) { w.Migration.Spec.VMIName, w.VMI = "", nil }, v1.MigrationFailed, migration.ReasonGuestNotFound},
		"S14/2 no guest":                 {func(w *world) { w.VMI = nil }, v1.MigrationFailed, migration.ReasonGuestNotFound},
		"S14/4 not migratable":           {notMigratable("CPUModeLiveMigratable"), v1.MigrationFailed, migration.ReasonNotMigratable},
		"local disks":                    {notMigratable(v1.VirtualMachineInstanceReasonDisksNotMigratable), v1.MigrationFailed, migration.ReasonNotMigratable},
		"S14/7 another is not finished":  {another(v1.MigrationScheduling), v1.MigrationPending, migration.ReasonWaitingForMigration},
		"S14/7 another is finished":      {another(v1.MigrationFailed), v1.MigrationScheduling, "WaitingForTargetPod"},
		"S14/8 a priority set by a user": {func(w *world) { w.Migration.Spec.Priority = new(v1.PrioritySystemCritical) }, v1.MigrationScheduling, "WaitingForTargetPod"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.given(w)
			w.Passes()
			if w.Migration.Status.Phase != tc.phase || w.Reason() != tc.want {
				t.Errorf("phase %q, reason %q; want %q, %q", w.Migration.Status.Phase, w.Reason(), tc.phase, tc.want)
			}
		})
	}
	t.Run("S14/5 local disks do not keep a guest in the cluster", func(t *testing.T) {
		w := newWorld(t)
		notMigratable(v1.VirtualMachineInstanceReasonDisksNotMigratable)(w)
		w.Migration.Spec.SendTo = &v1.VirtualMachineInstanceMigrationSource{MigrationID: "x"}
		if f := checkNamed("migratable").Judge(w.Snapshot(), w.Now); f.Blocked {
			t.Errorf("finding is %+v", f)
		}
		w.Migration.Spec.Receive = &v1.VirtualMachineInstanceMigrationTarget{MigrationID: "x"}
		if f := checkNamed("migratable").Judge(w.Snapshot(), w.Now); !f.Blocked {
			t.Error("with both sides set it stays in the cluster")
		}
	})
	t.Run("S14/10 the two sides name different migrations", func(t *testing.T) {
		w := newWorld(t)
		w.Migration.Spec.SendTo = &v1.VirtualMachineInstanceMigrationSource{MigrationID: "x"}
		w.Migration.Spec.Receive = &v1.VirtualMachineInstanceMigrationTarget{MigrationID: "y"}
		if f := checkNamed("spec").Judge(w.Snapshot(), w.Now); !f.Blocked || f.Temporary || f.Reason != "InvalidSpec" {
			t.Errorf("finding is %+v", f)
		}
		w.Migration.Spec.Receive.MigrationID = "x"
		if f := checkNamed("spec").Judge(w.Snapshot(), w.Now); f.Blocked {
			t.Errorf("finding is %+v", f)
		}
	})
}

func TestEvaluator_All(t *testing.T) {
	w := newWorld(t)
	w.VMI.Status.Phase = v1.Scheduled
	w.VMI.Spec.UtilityVolumes = []v1.UtilityVolume{{}}
	s := w.Snapshot()
	s.Config.Evaluator = append(migration.DefaultChecks(), migration.Check{"office hours", func(migration.Snapshot, time.Time) migration.Finding {
		return migration.Finding{Blocked: true, Temporary: true, Reason: "Office", Until: start.Add(time.Hour)}
	}})
	var names, blocked []string
	for _, f := range s.Config.Checks().All(s, w.Now) {
		names = append(names, f.Check)
		if f.Blocked {
			blocked = append(blocked, f.Check)
		}
	}
	if len(names) != len(migration.Config{Evaluator: migration.Evaluator{}}.Checks())+len(migration.DefaultChecks())+1 || len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) || slices.Contains(names, "") {
		t.Errorf("findings are of %q", names)
	}
	if d := cmp.Diff([]string{"running", "utility volumes", "office hours"}, blocked); d != "" {
		t.Errorf("blocked (-want +got):\n%s", d)
	}
	if f := s.Config.Evaluate(s, w.Now); f.Check != "running" || f.Reason != migration.ReasonWaitingForGuest {
		t.Errorf("what decides is %+v", f)
	}
}

func TestUtilityVolumes(t *testing.T) {
	attached := func(w *world) { w.VMI.Spec.UtilityVolumes = []v1.UtilityVolume{{}} }
	annotated := func(w *world) {
		attached(w)
		w.Migration.Annotations = map[string]string{v1.MigrationUtilityVolumesTimeoutSecondsAnnotation: "60"}
	}
	for name, tc := range map[string]struct {
		given func(*world)
		age   time.Duration
		phase v1.VirtualMachineInstanceMigrationPhase
	}{
		"S14/74 new":                    {attached, 0, v1.MigrationPending},
		"S14/74 just in time":           {attached, 149 * time.Second, v1.MigrationPending},
		"S14/74 too late":               {attached, 151 * time.Second, v1.MigrationFailed},
		"S14/74 too late by annotation": {annotated, 65 * time.Second, v1.MigrationFailed},
		"too late by the cluster's configuration": {func(w *world) {
			attached(w)
			w.Config.Cluster = &v1.MigrationConfiguration{UtilityVolumesTimeout: new(int64(5))}
		}, 5 * time.Second, v1.MigrationFailed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Pass()
			tc.given(w)
			w.Now = start.Add(tc.age)
			plan := w.Passes()
			if w.Migration.Status.Phase != tc.phase || w.Reason() != "UtilityVolumesPresent" {
				t.Fatalf("phase %q, reason %q; want %q", w.Migration.Status.Phase, w.Reason(), tc.phase)
			}
			marked := migration.Condition(w.Migration.Status, v1.VirtualMachineInstanceMigrationBlockedByUtilityVolumes) != nil
			if waits := tc.phase == v1.MigrationPending; marked != waits || waits && !plan.RequeueAt.Equal(start.Add(150*time.Second)) {
				t.Errorf("condition is there: %v; wake is %s", marked, plan.RequeueAt)
			}
			emitted := slices.ContainsFunc(w.Events, func(e migration.Event) bool { return e.Reason == "UtilityVolumeMigrationPending" })
			if emitted != marked {
				t.Errorf("event was emitted: %v", emitted)
			}
		})
	}
	t.Run("S14/74 removed", func(t *testing.T) {
		w := newWorld(t)
		attached(w)
		w.Passes()
		w.VMI.Spec.UtilityVolumes = nil
		w.Passes()
		if w.Migration.Status.Phase != v1.MigrationScheduling || migration.Condition(w.Migration.Status, v1.VirtualMachineInstanceMigrationBlockedByUtilityVolumes) != nil {
			t.Errorf("phase %q, conditions %+v", w.Migration.Status.Phase, w.Migration.Status.Conditions)
		}
	})
}

// backingUp makes the VMI's backup one that is in progress, or has completed.
func backingUp(w *world, completed bool) {
	w.VMI.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{
		BackupStatus: &v1.VirtualMachineInstanceBackupStatus{BackupName: "nightly", Completed: completed},
	}
}

func TestBackup_BlocksMigration(t *testing.T) {
	w := newWorld(t)
	backingUp(w, false)
	w.Config.AbortBackups = true
	w.Passes()
	if w.Reason() != migration.ReasonBackup || migration.Condition(w.Migration.Status, v1.VirtualMachineInstanceMigrationBlockedByBackup) == nil {
		t.Fatalf("conditions are %+v", w.Migration.Status.Conditions)
	}
	backingUp(w, true)
	w.Passes()
	if w.Migration.Status.Phase != v1.MigrationScheduling || migration.Condition(w.Migration.Status, v1.VirtualMachineInstanceMigrationBlockedByBackup) != nil {
		t.Errorf("S14/77: phase %q, conditions %+v", w.Migration.Status.Phase, w.Migration.Status.Conditions)
	}
}

func TestS14_76ACriticalMigrationAbortsTheBackupOnce(t *testing.T) {
	w := newWorld(t)
	w.Config.AbortBackups = true
	w.Migration.Spec.Priority = new(v1.PrioritySystemCritical)
	w.Pass()
	backingUp(w, false)
	aborts := func(s migration.Snapshot) (migration.Plan, int) {
		plan := migration.Decide(s, w.Now)
		return plan, len(slices.DeleteFunc(slices.Clone(plan.Actions), func(a migration.Action) bool { return a.Verb != migration.AbortBackup }))
	}
	plan, n := aborts(w.Snapshot())
	if n != 1 || plan.Actions[0].Name != "nightly" || plan.Actions[0].Event.Reason != "BackupAbortedForMigration" {
		t.Fatalf("plan is %+v", plan.Actions)
	}

	failed := w.Snapshot()
	failed.Failures = map[migration.Verb]error{migration.AbortBackup: errors.New("no route")}
	plan, n = aborts(failed)
	if n != 0 || migration.Condition(plan.Status, v1.VirtualMachineInstanceMigrationBlockedByBackup) != nil || plan.Events[0].Reason != "BackupAbortFailed" {
		t.Errorf("after a failure: conditions %+v, events %+v", plan.Status.Conditions, plan.Events)
	}
	w.Migration.Status = plan.Status
	if _, n = aborts(w.Snapshot()); n != 1 {
		t.Error("a failed abort is not tried again")
	}
	failed = w.Snapshot()
	failed.Failures = map[migration.Verb]error{migration.AbortBackup: errors.New("still no route")}
	if plan, _ = aborts(failed); len(plan.Events) > 0 {
		t.Errorf("each failed abort is reported: %+v", plan.Events)
	}

	done := w.Snapshot()
	done.BackupAborted = true
	plan, _ = aborts(done)
	if migration.Condition(plan.Status, v1.VirtualMachineInstanceMigrationBlockedByBackup) == nil {
		t.Errorf("conditions are %+v", plan.Status.Conditions)
	}
	w.Migration.Status = plan.Status
	if plan, n = aborts(w.Snapshot()); n != 0 || plan.Reason != migration.ReasonBackup {
		t.Errorf("the abort is asked for again: %+v", plan)
	}
}

func TestAbortBackup_NotSupported(t *testing.T) {
	for name, change := range map[string]func(*world){
		"only a check of one's own knows of it": func(w *world) {
			w.VMI.Status.ChangedBlockTracking = nil
			w.Config.Evaluator = append(migration.DefaultChecks(), migration.Check{"archive", func(migration.Snapshot, time.Time) migration.Finding {
				return migration.Finding{Blocked: true, Temporary: true, Reason: migration.ReasonBackup}
			}})
		},
		"not critical": func(w *world) { w.Migration.Spec.Priority = new(v1.PriorityUserTriggered) },
		"nobody can":   func(w *world) { w.Config.AbortBackups = false },
		"backing off": func(w *world) {
			w.Migration.Annotations = map[string]string{v1.EvacuationMigrationAnnotation: ""}
			w.Others = past(v1.EvacuationMigrationAnnotation, "ff")
		},
		"another of its guest's runs": func(w *world) { w.Others = append(w.Others, newMigration("a", "another")) },
		"being deleted":               func(w *world) { w.Migration.DeletionTimestamp = &metav1.Time{Time: start} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Config.AbortBackups = true
			w.Migration.Spec.Priority = new(v1.PrioritySystemCritical)
			w.Pass()
			backingUp(w, false)
			change(w)
			for _, a := range migration.Decide(w.Snapshot(), w.Now).Actions {
				if a.Verb == migration.AbortBackup {
					t.Error("the backup is aborted")
				}
			}
		})
	}
}

func BenchmarkEvaluate(b *testing.B) {
	yes := true
	claim := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest"},
		Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: sourceNode},
	}
	onClaim(corev1.ReadWriteMany)(claim)
	claim.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "net", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}}}
	claim.Spec.Networks = []v1.Network{{Name: "net", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}}
	claim.Labels = map[string]string{v1.NodeNameLabel: sourceNode}
	claim.Spec.Domain.Features = &v1.Features{Hyperv: &v1.FeatureHyperv{Relaxed: &v1.FeatureState{Enabled: &yes}}}
	s := migration.Snapshot{Migration: newMigration("m", ourUID), VMI: claim, SourcePod: &corev1.Pod{}, Config: migration.Config{}.WithDefaults()}
	s.Migration.Annotations = map[string]string{v1.EvacuationMigrationAnnotation: sourceNode}
	s.Others = past(v1.WorkloadUpdateMigrationAnnotation, "ffsff")
	b.ReportAllocs()
	for b.Loop() {
		if f := s.Config.Evaluate(s, start.Add(time.Hour)); f.Blocked {
			b.Fatal(f)
		}
	}
}
