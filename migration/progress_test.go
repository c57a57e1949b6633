// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/migration"
)

// says makes the VMI report the progress of its migration.
func (w *world) says(mode v1.MigrationMode, message string) {
	c := v1.VirtualMachineInstanceCondition{Type: status.MigrationProgress, Status: corev1.ConditionTrue, Reason: string(mode), Message: message}
	w.silent()
	w.VMI.Status.Conditions = append(w.VMI.Status.Conditions, c)
}

// silent removes the VMI's progress report.
func (w *world) silent() {
	w.VMI.Status.Conditions = slices.DeleteFunc(w.VMI.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
		return c.Type == status.MigrationProgress
	})
}

// shows compares the migration's progress.
func (w *world) shows(want *v1.VirtualMachineInstanceMigrationCondition) {
	w.t.Helper()
	if diff := cmp.Diff(want, migration.Condition(w.Migration.Status, migration.ConditionProgress)); diff != "" {
		w.t.Errorf("progress (-want +got):\n%s", diff)
	}
}

func progressAt(at time.Time, s corev1.ConditionStatus, mode, message string) *v1.VirtualMachineInstanceMigrationCondition {
	return &v1.VirtualMachineInstanceMigrationCondition{
		Type: migration.ConditionProgress, Status: s, Reason: mode, Message: message, LastTransitionTime: metav1.NewTime(at).Rfc3339Copy(),
	}
}

// moving is a migration whose VMI is being migrated.
func moving(t *testing.T) *world {
	w := newWorld(t)
	w.Until(v1.MigrationRunning)
	return w
}

func TestMigration_Progress(t *testing.T) {
	const half, most = "processed=64Mi remaining=64Mi total=128Mi", "processed=120Mi remaining=8Mi total=128Mi"
	w := moving(t)
	w.shows(nil)
	began := w.Now
	w.says(v1.MigrationPreCopy, half)
	w.Pass()
	w.shows(progressAt(began, corev1.ConditionTrue, "PreCopy", half))

	w.Now = w.Now.Add(time.Second)
	w.says(v1.MigrationPreCopy, most)
	w.Pass()
	w.shows(progressAt(began, corev1.ConditionTrue, "PreCopy", most))
	before := w.Migration.Status.DeepCopy()
	w.Now = w.Now.Add(time.Second)
	w.Pass()
	if diff := cmp.Diff(before, &w.Migration.Status); diff != "" {
		t.Errorf("a VMI that says nothing new changed the migration (-before +after):\n%s", diff)
	}

	w.Now = w.Now.Add(time.Second)
	switched := w.Now
	w.says(v1.MigrationPostCopy, most)
	w.Pass()
	w.shows(progressAt(switched, corev1.ConditionTrue, "PostCopy", most))

	// The last report stays: the node removes it with the end of the migration.
	w.silent()
	w.Pass()
	w.shows(progressAt(switched, corev1.ConditionTrue, "PostCopy", most))
}

func TestProgress_OfAMigrationThatHasEndedIsFinal(t *testing.T) {
	const last = "processed=120Mi remaining=8Mi total=128Mi"
	for name, tt := range map[string]struct {
		end   func(*world)
		want  v1.VirtualMachineInstanceMigrationPhase
		shows string
	}{
		"it moved":  {func(w *world) { w.TargetTakesOver() }, v1.MigrationSucceeded, "the VMI has migrated"},
		"it failed": {func(w *world) { w.SourceReverts("the link broke") }, v1.MigrationFailed, last},
	} {
		t.Run(name, func(t *testing.T) {
			w := moving(t)
			w.says(v1.MigrationPreCopy, last)
			w.Pass()
			w.Now = w.Now.Add(time.Second)
			tt.end(w)
			w.silent()
			w.Passes()
			if w.Migration.Status.Phase != tt.want {
				t.Fatalf("phase is %s, want %s", w.Migration.Status.Phase, tt.want)
			}
			w.shows(progressAt(w.Now, corev1.ConditionFalse, "PreCopy", tt.shows))
		})
	}
}

func TestProgress_IgnoresOtherMigrations(t *testing.T) {
	for name, edit := range map[string]func(*world){
		"before it was handed over": func(w *world) { w.Until(v1.MigrationScheduling) },
		"before it has begun":       func(w *world) { w.Until(v1.MigrationTargetReady) },
		"by another one that began": func(w *world) {
			w.Until(v1.MigrationRunning)
			w.VMI.Status.MigrationState.MigrationUID = "another"
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			edit(w)
			w.says(v1.MigrationPreCopy, "processed=1Mi remaining=127Mi total=128Mi")
			w.Pass()
			w.shows(nil)
		})
	}
}

func TestConditionProgress_SameTypeOnVMI(t *testing.T) {
	if string(migration.ConditionProgress) != string(status.MigrationProgress) {
		t.Errorf("the migration says %s, the VMI %s", migration.ConditionProgress, status.MigrationProgress)
	}
}
