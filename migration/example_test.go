// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// A custom check joins the default list and reports through the same condition.
func ExampleEvaluator() {
	office := func(s migration.Snapshot, _ time.Time) migration.Finding {
		if s.VMI == nil || s.VMI.Labels["office-hours"] != "stay" {
			return migration.Finding{}
		}
		return migration.Finding{Blocked: true, Temporary: true, Reason: "OfficeHours", Message: "the VMI stays until the evening"}
	}
	checks := append(migration.DefaultChecks(), migration.Check{Name: "office hours", Judge: office})
	f := checks.Evaluate(migration.Snapshot{
		Migration: &v1.VirtualMachineInstanceMigration{Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: "guest"}},
		VMI: &v1.VirtualMachineInstance{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"office-hours": "stay", v1.NodeNameLabel: "node-1"}},
			Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "node-1"},
		},
		SourcePod: &corev1.Pod{},
	}, time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	fmt.Println(f.Reason, "-", f.Text())
	// Output:
	// OfficeHours - the VMI stays until the evening
}

// Deciding needs no cluster: a snapshot goes in, a plan comes out.
func ExampleDecide() {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	plan := migration.Decide(migration.Snapshot{
		Migration: &v1.VirtualMachineInstanceMigration{
			ObjectMeta: metav1.ObjectMeta{
				Name: "move", Labels: map[string]string{v1.MigrationSelectorLabel: "guest"},
				Finalizers: []string{v1.VirtualMachineInstanceMigrationFinalizer},
			},
			Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: "guest"},
		},
		Config: migration.Config{}.WithDefaults(),
	}, now)
	fmt.Println(plan.Status.Phase)
	c := migration.Condition(plan.Status, migration.ConditionFailed)
	fmt.Println(c.Reason, "-", c.Message)
	// Output:
	// Failed
	// GuestNotFound - VirtualMachineInstance "guest" does not exist in this namespace
}

// When may a program try again to migrate a VMI whose last migrations have failed?
func ExampleBackoff() {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	failed := func(ended time.Time) *v1.VirtualMachineInstanceMigration {
		return &v1.VirtualMachineInstanceMigration{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1.EvacuationMigrationAnnotation: "node-1"}},
			Status: v1.VirtualMachineInstanceMigrationStatus{
				Phase: v1.MigrationFailed,
				PhaseTransitionTimestamps: []v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{
					{Phase: v1.MigrationFailed, PhaseTransitionTimestamp: metav1.NewTime(ended)},
				},
			},
		}
	}
	pause := migration.Backoff{First: 20 * time.Second, Max: 5 * time.Minute}
	until, failures := pause.Until([]*v1.VirtualMachineInstanceMigration{failed(at.Add(-time.Minute)), failed(at)})
	fmt.Println(failures, "failures in a row, next at", until.Format(time.TimeOnly))
	// Output:
	// 2 failures in a row, next at 12:00:40
}
