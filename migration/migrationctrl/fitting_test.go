// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/migration/queue"
)

// leftToScheduler makes target Pods that no node can match.
func leftToScheduler(r *migrationctrl.Reconciler) { r.Config.AwaitNodes = -1 }

func nowhere(t *testing.T, c *cluster) {
	c.startController(t, nil)
	vmi := c.guest(t, c.namespace(t), "guest", "sim-0")
	m := c.migrate(t, vmi, "move", func(m *v1.VirtualMachineInstanceMigration) {
		m.Spec.AddedNodeSelector = map[string]string{"no-such": "node"}
	})
	c.waitPhase(t, m, v1.MigrationFailed)
	text := migration.Condition(m.Status, migration.ConditionFailed).Message
	if reasonOf(m) != migration.ReasonNoNode || !strings.Contains(text, "0 of 3 nodes: 1 is the source, 2 lack label no-such=node") {
		t.Errorf("reason %q: %s", reasonOf(m), text)
	}
	for _, p := range m.Status.PhaseTransitionTimestamps {
		if p.Phase == v1.MigrationScheduling {
			t.Error("a target Pod was made")
		}
	}
	c.waitReleased(t, m)
	c.onlyPodOn(t, vmi, "sim-0")
}

func awaitsNode(t *testing.T, c *cluster) {
	c.startController(t, func(r *migrationctrl.Reconciler) {
		r.Config.AwaitNodes = time.Hour
		r.Config.Limits = queue.Limits{Cluster: 1, Outbound: 1, Inbound: 1}
	})
	ns := c.namespace(t)
	vmi, free := c.guest(t, ns, "guest", "sim-0"), c.guest(t, ns, "free", "sim-0")
	m := c.migrate(t, vmi, "move", func(m *v1.VirtualMachineInstanceMigration) {
		m.Spec.AddedNodeSelector = map[string]string{"rare": "yes"}
	})
	c.waitFor(t, "the wait for a node", m, func() bool { return reasonOf(m) == migration.ReasonNoNode })
	if m.IsFinal() {
		t.Fatalf("the migration ended: %+v", m.Status.Conditions)
	}
	// The only slot is free for others.
	c.waitPhase(t, c.migrate(t, free, "other", nil), v1.MigrationSucceeded)

	node := &corev1.Node{}
	node.Name = "sim-1"
	relabel := func(value string) {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
			t.Fatal(err)
		}
		was := node.DeepCopy()
		if node.Labels["rare"] = value; value == "" {
			delete(node.Labels, "rare")
		}
		if err := c.Patch(t.Context(), node, client.MergeFrom(was)); err != nil {
			t.Fatal(err)
		}
	}
	relabel("yes")
	c.waitPhase(t, m, v1.MigrationSucceeded)
	relabel("")
	if m.Status.MigrationState.TargetNode != "sim-1" || migration.Condition(m.Status, migration.ConditionNoNode) != nil {
		t.Errorf("target %q, conditions %+v", m.Status.MigrationState.TargetNode, m.Status.Conditions)
	}
}
