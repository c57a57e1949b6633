// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/explain"
	"github.com/virtloom/virtloom/migration/policy"
	"github.com/virtloom/virtloom/migration/queue"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// queued is a migration that waits, because another one leaves its node, with the policy in force.
func queued() migration.Snapshot {
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-1", Labels: map[string]string{v1.NodeNameLabel: "node-a", "tier": "web"}},
		Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "node-a", Conditions: []v1.VirtualMachineInstanceCondition{
			{Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue},
		}},
	}
	s := migration.Snapshot{
		Migration: &v1.VirtualMachineInstanceMigration{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "move-web", UID: "uid-2", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute)),
				Labels:     map[string]string{v1.MigrationSelectorLabel: "web"},
				Finalizers: []string{v1.VirtualMachineInstanceMigrationFinalizer},
			},
			Spec:   v1.VirtualMachineInstanceMigrationSpec{VMIName: "web"},
			Status: v1.VirtualMachineInstanceMigrationStatus{Phase: v1.MigrationPending},
		},
		VMI:       vmi,
		SourcePod: &corev1.Pod{},
		Config:    migration.Config{Limits: queue.Limits{Cluster: 5, Outbound: 1, Inbound: 2}}.WithDefaults(),
	}
	// The policy in force.
	match := policy.NewPolicies([]v1alpha1.MigrationPolicy{{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: v1alpha1.MigrationPolicySpec{
			Selectors: &v1alpha1.Selectors{VirtualMachineInstanceSelector: map[string]string{"tier": "web"}}, AllowAutoConverge: new(true),
		},
	}}).Match(vmi.Labels, nil)
	s.Resolution, _ = policy.Resolve(match, nil)
	// The queue of the controller.
	a := queue.NewAdmission(s.Config.Limits, queue.Options{})
	a.Ask(queue.Claim{Key: types.NamespacedName{Namespace: "shop", Name: "move-db"}, Since: now, SourceNode: "node-a"}, now)
	claim, _ := s.Claim(now)
	a.Ask(claim, now)
	s.Slot = a.Explain(claim.Key, now)

	return s
}

// Why does a migration not start?
func ExampleExplain() {
	fmt.Print(explain.Explain(queued(), now))
	// Output:
	// Migration     shop/move-web of VMI web
	// Phase         Pending, since 2026-01-01T11:59:00Z (1m0s)
	// Waits for     controller: WaitingForSlot: waiting for a slot: at most 5 migrations in the cluster (parallelMigrationsPerCluster), 1 leaving node node-a (parallelOutboundMigrationsPerNode)
	// Goes on when  fewer than 1 migrations leaving node node-a hold slots (one ends, or parallelOutboundMigrationsPerNode is raised)
	// Deadline      2026-01-02T11:59:00Z (in 23h59m0s), then it ends with PendingTimeout
	// Queue         place 1 of 1
	// Limit         parallelOutboundMigrationsPerNode of node node-a: 1 of 1 in use, by shop/move-db
	// Checks        none blocks
	// Policy        web: its selectors match, with 1 labels of the VMI and 0 of the namespace
	// Option        allowAutoConverge = true (default false)
}

// A program shows for which migrations the queue waits.
func ExampleExplanation() {
	e := explain.Explain(queued(), now)
	if e.Queue == nil {
		return
	}
	place := func(p explain.Place) string { return fmt.Sprintf("place %d of %d", p.Position, p.Waiting) }
	limit := func(o explain.ExhaustedLimit) string {
		return fmt.Sprintf("%s of %s: %d of %d, %v", o.Limit, o.Node, o.Used, o.Max, o.Holders)
	}
	fmt.Println(place(*e.Queue))
	for _, o := range e.Blockers {
		fmt.Println(limit(o))
	}
	blocks := func(c explain.CheckResult) bool { return c.Blocked && !c.Temporary }
	fmt.Println("checks that block for good:", slices.ContainsFunc(e.Checks, blocks))
	// Output:
	// place 1 of 1
	// parallelOutboundMigrationsPerNode of node-a: 1 of 1, [shop/move-db]
	// checks that block for good: false
}
