// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/evacuation"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/migration/queue"
)

func TestAutomaticControllers_RequireMigrations(t *testing.T) {
	for name, set := range map[string]error{
		"evacuator":             (&migrationctrl.Evacuator{}).SetupWithManager(t.Context(), nil),
		"evacuator, not set up": (&migrationctrl.Evacuator{Migrations: &migrationctrl.Reconciler{}}).SetupWithManager(t.Context(), nil),
		"updater":               (&migrationctrl.Updater{}).SetupWithManager(t.Context(), nil),
	} {
		if set == nil || !strings.Contains(set.Error(), "Migrations is required") {
			t.Errorf("%s: %v", name, set)
		}
	}
}

// TestAutomaticMigrations runs all cases on one control plane; each has its own namespace and controllers.
func TestAutomaticMigrations(t *testing.T) {
	c := newCluster(t)
	for _, tc := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"12.14 a drained node is emptied, and the rest stays when it is not drained any more", drains},
		{"12.14 a guest leaves when it is asked to, and stays when it is not any more", leaves},
		{"12.20 what no node can take is not tried again until nodes change", hopeless},
		{"13.5 two controllers at once make one migration per guest", twice},
		{"a controller killed while a node is drained makes no second migration", drainKilled},
		{"guests are updated within limits", updated},
		{"S14/118 an update is called off when its cause is gone", calledOff},
		{"guests that cannot move are evicted in batches", evicted},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, c) })
	}
}

// startAutomatic runs all controllers; edit may change them first.
func (c *cluster) startAutomatic(t *testing.T, edit func(*migrationctrl.Reconciler)) (stop func()) {
	t.Helper()
	mgr, r := c.controller(t, edit)
	for _, setup := range []interface {
		SetupWithManager(context.Context, ctrl.Manager) error
	}{&migrationctrl.Evacuator{Migrations: r}, &migrationctrl.Updater{Migrations: r}} {
		if err := setup.SetupWithManager(t.Context(), mgr); err != nil {
			t.Fatal(err)
		}
	}
	return rigtest.Run(t, mgr.Start)
}

// movable makes a VMI that can be migrated and is to be migrated rather than evicted; edit changes it
// further.
func (c *cluster) movable(t *testing.T, namespace, name string, edit func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	t.Helper()
	vmi := c.guest(t, namespace, name, "sim-0")
	strategy := v1.EvictionStrategyLiveMigrate
	c.change(t, vmi, func() {
		vmi.Spec.EvictionStrategy = &strategy
		vmi.Status.LauncherContainerImageVersion = image
		vmi.Status.Conditions = append(vmi.Status.Conditions, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue,
		})
		if edit != nil {
			edit(vmi)
		}
	})
	return vmi
}

// change writes what edit changes of an object.
func (c *cluster) change(t *testing.T, o client.Object, edit func()) {
	t.Helper()
	was := o.DeepCopyObject().(client.Object)
	edit()
	if err := c.Patch(t.Context(), o, client.MergeFrom(was)); err != nil {
		t.Fatal(err)
	}
}

// taint gives sim-0 the drain taint, or takes it away.
func (c *cluster) taint(t *testing.T, on bool) {
	t.Helper()
	n := &corev1.Node{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "sim-0"}, n); err != nil {
		t.Fatal(err)
	}
	c.change(t, n, func() {
		n.Spec.Taints = nil
		if on {
			n.Spec.Taints = []corev1.Taint{{Key: evacuation.DefaultDrainTaint, Effect: corev1.TaintEffectNoSchedule}}
		}
	})
}

func (c *cluster) drain(t *testing.T) {
	t.Helper()
	c.taint(t, true)
	t.Cleanup(func() {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "sim-0"}}
		if err := c.Patch(context.Background(), n, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"taints":null}}`))); err != nil {
			t.Error(err)
		}
	})
}

// migrations lists those of a namespace.
func (c *cluster) migrations(t *testing.T, namespace string) []v1.VirtualMachineInstanceMigration {
	t.Helper()
	var list v1.VirtualMachineInstanceMigrationList
	if err := c.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// await waits for what the migrations of a namespace come to, and returns them.
func (c *cluster) await(t *testing.T, what, namespace string, ok func([]v1.VirtualMachineInstanceMigration) bool) []v1.VirtualMachineInstanceMigration {
	t.Helper()
	var all []v1.VirtualMachineInstanceMigration
	err := rigtest.Poll(t.Context(), patience, func(context.Context) (bool, error) {
		all = c.migrations(t, namespace)
		return ok(all), nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v; there are %+v", what, err, all)
	}
	return all
}

// are reports whether there are so many, all of which hold.
func are(n int, hold func(*v1.VirtualMachineInstanceMigration) bool) func([]v1.VirtualMachineInstanceMigration) bool {
	return func(all []v1.VirtualMachineInstanceMigration) bool {
		for i := range all {
			if !hold(&all[i]) {
				return false
			}
		}
		return len(all) == n
	}
}

func inPhase(p v1.VirtualMachineInstanceMigrationPhase) func(*v1.VirtualMachineInstanceMigration) bool {
	return func(m *v1.VirtualMachineInstanceMigration) bool { return m.Status.Phase == p }
}

func whatever(*v1.VirtualMachineInstanceMigration) bool { return true }

// made counts the requests to create migrations in a namespace, by name. The log does not show the outcome of a
// request whose sender was killed before the answer.
func (c *cluster) made(t *testing.T, namespace string) map[string]int {
	t.Helper()
	requests, err := c.Requests()
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for _, q := range requests {
		if q.What() == "create virtualmachineinstancemigrations" && q.ObjectRef.Namespace == namespace {
			n[q.ObjectRef.Name]++
		}
	}
	return n
}

func drains(t *testing.T, c *cluster) {
	c.startAutomatic(t, func(r *migrationctrl.Reconciler) {
		r.Config.Limits = queue.Limits{Cluster: 2, Outbound: 2, Inbound: 2}
	})
	ns := c.namespace(t)
	var guests []*v1.VirtualMachineInstance
	for _, name := range []string{"a", "b", "c"} {
		vmi := c.movable(t, ns, name, nil)
		c.holdAt(t, vmi, holdTakeOver)
		guests = append(guests, vmi)
	}
	c.drain(t)
	c.await(t, "one migration for each guest, two of which move", ns, func(all []v1.VirtualMachineInstanceMigration) bool {
		phases := map[v1.VirtualMachineInstanceMigrationPhase]int{}
		for i := range all {
			phases[all[i].Status.Phase]++
		}
		return len(all) == 3 && phases[v1.MigrationRunning] == 2 && phases[v1.MigrationPending] == 1
	})
	for _, m := range c.migrations(t, ns) {
		if m.Annotations[v1.EvacuationMigrationAnnotation] != "sim-0" || *m.Spec.Priority != v1.PrioritySystemCritical {
			t.Errorf("migration %+v", m)
		}
	}
	c.taint(t, false)
	c.await(t, "the one that has not begun to go", ns, are(2, inPhase(v1.MigrationRunning)))
	for _, vmi := range guests {
		c.holdAt(t, vmi, "")
	}
	c.await(t, "the others to end", ns, are(2, inPhase(v1.MigrationSucceeded)))
	c.taint(t, true)
	all := c.await(t, "the last one to leave", ns, are(3, inPhase(v1.MigrationSucceeded)))
	for _, m := range all {
		if m.Status.MigrationState.SourceNode != "sim-0" {
			t.Errorf("a VMI migrated from %s", m.Status.MigrationState.SourceNode)
		}
	}
	if made := c.made(t, ns); len(made) > 4 {
		t.Errorf("created were %v, want one for each VMI, and one again", made)
	}
}

func leaves(t *testing.T, c *cluster) {
	c.startAutomatic(t, nil)
	vmi := c.movable(t, c.namespace(t), "guest", nil)
	c.holdAt(t, vmi, holdBegin)
	c.change(t, vmi, func() { vmi.Status.EvacuationNodeName = "sim-0" })
	c.await(t, "the migration to be about to begin", vmi.Namespace, are(1, inPhase(v1.MigrationTargetReady)))
	c.change(t, vmi, func() { vmi.Status.EvacuationNodeName = "" })
	c.await(t, "the migration to go", vmi.Namespace, are(0, whatever))
	c.onlyPodOn(t, vmi, "sim-0")
	c.holdAt(t, vmi, "")
	c.change(t, vmi, func() { vmi.Status.EvacuationNodeName = "sim-0" })
	c.await(t, "the guest to leave", vmi.Namespace, are(1, inPhase(v1.MigrationSucceeded)))
	c.waitEvents(t, vmi.Namespace, migration.EventCreated, migration.EventDeleted)
}

func hopeless(t *testing.T, c *cluster) {
	c.startAutomatic(t, func(r *migrationctrl.Reconciler) { r.Config.Backoff.First = -1 })
	ns := c.namespace(t)
	vmi := c.movable(t, ns, "guest", func(vmi *v1.VirtualMachineInstance) { vmi.Spec.NodeSelector = map[string]string{"for": ns} })
	c.change(t, vmi, func() { vmi.Status.EvacuationNodeName = "sim-0" })
	all := c.await(t, "the migration to fail", ns, are(1, inPhase(v1.MigrationFailed)))
	if reasonOf(&all[0]) != migration.ReasonNoNode {
		t.Errorf("failed for %s", reasonOf(&all[0]))
	}
	// No event makes the controller retry.
	c.change(t, vmi, func() { vmi.Annotations[v1.EvictionSourceAnnotation] = "somebody" })
	probe := c.movable(t, ns, "probe", func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = "sim-0" })
	c.await(t, "another guest to leave", ns, func(all []v1.VirtualMachineInstanceMigration) bool {
		return len(all) == 2 && all[0].Status.Phase != all[1].Status.Phase && all[0].IsFinal() && all[1].IsFinal()
	})
	c.onlyPodOn(t, probe, probeNode(t, c, probe))
	n := &corev1.Node{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "sim-2"}, n); err != nil {
		t.Fatal(err)
	}
	c.change(t, n, func() { n.Labels["for"] = ns })
	c.await(t, "the guest to leave", ns, func(all []v1.VirtualMachineInstanceMigration) bool {
		done := 0
		for i := range all {
			if all[i].Status.Phase == v1.MigrationSucceeded {
				done++
			}
		}
		return len(all) == 3 && done == 2
	})
}

func probeNode(t *testing.T, c *cluster, vmi *v1.VirtualMachineInstance) string {
	t.Helper()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi); err != nil {
		t.Fatal(err)
	}
	return vmi.Status.NodeName
}
