// SPDX-License-Identifier: Apache-2.0

package migrationctrl_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/migrationctrl"
	"github.com/virtloom/virtloom/migration/queue"
	"github.com/virtloom/virtloom/template"
)

func TestReconciler_MissingFields(t *testing.T) {
	err := (&migrationctrl.Reconciler{}).SetupWithManager(t.Context(), nil)
	for _, field := range []string{"Client", "APIReader", "LauncherImage"} {
		if err == nil || !strings.Contains(err.Error(), "Reconciler."+field+" is required") {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
}

// TestControlPlane runs all cases on one control plane; each has its own
// namespace and controller.
func TestControlPlane(t *testing.T) {
	c := newCluster(t)
	for _, tc := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"a guest is migrated", migrates},
		{"a policy is resolved at hand-off", resolvesPolicy},
		{"a bad policy holds a migration back until it is mended", badPolicy},
		{"options follow while a guest moves", followsPolicy},
		{"an abort works before, during and after hand-off", aborts},
		{"a deleted guest ends its migration", guestDeleted},
		{"limits hold and priority decides", limits},
		{"a second migration of a guest waits", second},
		{"an unschedulable target fails in time", unschedulable},
		{"S14/73 a target that no node can match is not made", nowhere},
		{"a label of a node lets a target match", awaitsNode},
		{"a raised limit takes effect at once", raised},
		{"S14/68 a quota is reported and costs no slot", quota},
		{"a foreign Pod of the target's name is left alone", foreign},
		{"a hand-over that comes too late is refused", late},
		{"plugged volumes go along", plugged},
		{"the guest's state goes along", state},
		{"progress is reported by the migration", progress},
		{"a killed controller is replaced", killed},
		{"nothing is sent without the feature gate", gated},
		{"a guest is received from another cluster", receives},
		{"a guest is sent to another cluster", sends},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, c) })
	}
}

func migrates(t *testing.T, c *cluster) {
	c.startController(t, nil)
	vmi := c.guest(t, c.namespace(t), "guest", "sim-0")
	m := c.migrate(t, vmi, "move", nil)
	c.waitPhase(t, m, v1.MigrationSucceeded)
	c.waitReleased(t, m)
	if m.Labels[v1.MigrationSelectorLabel] != "guest" {
		t.Errorf("labels are %v", m.Labels)
	}
	st := m.Status.MigrationState
	if st == nil || !st.Completed || st.Failed || st.SourceNode != "sim-0" || st.TargetNode == "sim-0" {
		t.Fatalf("migration state is %+v", st)
	}
	c.onlyPodOn(t, vmi, st.TargetNode)
	if vmi.Labels[v1.MigrationTargetNodeNameLabel] != "" {
		t.Errorf("labels of the VMI are %v", vmi.Labels)
	}
	c.waitEvents(t, m.Namespace, migration.EventCreated, migration.EventHandOver, migration.EventSucceeded, migration.EventDeleted)

	back := c.migrate(t, vmi, "back", nil)
	c.waitPhase(t, back, v1.MigrationSucceeded)
	c.waitReleased(t, back)
	c.onlyPodOn(t, vmi, back.Status.MigrationState.TargetNode)
}

// waitEvents waits until events of all reasons were recorded in the namespace.
func (c *cluster) waitEvents(t *testing.T, namespace string, reasons ...string) {
	t.Helper()
	for _, reason := range reasons {
		o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		c.waitFor(t, "event "+reason, o, func() bool {
			var list corev1.EventList
			if err := c.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.Reason == reason })
		})
	}
}

func resolvesPolicy(t *testing.T, c *cluster) {
	mgr, _ := c.controller(t, nil)
	rigtest.Run(t, mgr.Start)
	ns := c.namespace(t)
	yes := true
	bandwidth := resource.MustParse("32Mi")
	p := &v1alpha1.MigrationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "policy-of-" + ns},
		Spec: v1alpha1.MigrationPolicySpec{
			BandwidthPerMigration: &bandwidth, AllowPostCopy: &yes,
			Selectors: &v1alpha1.Selectors{
				NamespaceSelector:              v1alpha1.LabelSelector{corev1.LabelMetadataName: ns},
				VirtualMachineInstanceSelector: v1alpha1.LabelSelector{"guest": "special"},
			},
		},
	}
	c.create(t, p)
	c.waitFor(t, "the controller to know it and its namespace", p, func() bool {
		cached := mgr.GetClient()
		return cached.Get(t.Context(), client.ObjectKeyFromObject(p), new(v1alpha1.MigrationPolicy)) == nil &&
			cached.Get(t.Context(), client.ObjectKey{Name: ns}, new(corev1.Namespace)) == nil
	})
	for name, want := range map[string]bool{"special": true, "plain": false} {
		vmi := c.guest(t, ns, name, "sim-0")
		m := c.migrate(t, vmi, name, nil)
		c.waitPhase(t, m, v1.MigrationSucceeded)
		st := m.Status.MigrationState
		matched := st.MigrationPolicyName != nil && *st.MigrationPolicyName == p.Name
		if matched != want || *st.VMIMConfigurationOptions.AllowPostCopy != want || *st.VMIMConfigurationOptions.AllowWorkloadDisruption != want {
			t.Errorf("%s: policy %v, options %+v", name, st.MigrationPolicyName, st.VMIMConfigurationOptions)
		}
		if want && !st.VMIMConfigurationOptions.BandwidthPerMigration.Equal(bandwidth) {
			t.Errorf("bandwidth is %v", st.VMIMConfigurationOptions.BandwidthPerMigration)
		}
	}
}

func aborts(t *testing.T, c *cluster) {
	c.startController(t, leftToScheduler)
	for phase, step := range map[v1.VirtualMachineInstanceMigrationPhase]string{
		v1.MigrationScheduling:      "",
		v1.MigrationPreparingTarget: holdReady,
		v1.MigrationTargetReady:     holdBegin,
		v1.MigrationRunning:         holdTakeOver,
	} {
		t.Run(string(phase), func(t *testing.T) {
			vmi := c.guest(t, c.namespace(t), "guest", "sim-0")
			if step != "" {
				c.holdAt(t, vmi, step)
			}
			m := c.migrate(t, vmi, "move", func(m *v1.VirtualMachineInstanceMigration) {
				if phase == v1.MigrationScheduling {
					m.Spec.AddedNodeSelector = map[string]string{"no-such": "node"}
				}
			})
			c.waitPhase(t, m, phase)
			if err := c.Delete(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			c.waitGone(t, m)
			c.onlyPodOn(t, vmi, "sim-0")
			if st := vmi.Status.MigrationState; st != nil && (!st.Failed || !st.Completed) {
				t.Errorf("migration state is %+v", st)
			}
		})
	}
}

func guestDeleted(t *testing.T, c *cluster) {
	c.startController(t, nil)
	vmi := c.guest(t, c.namespace(t), "guest", "sim-0")
	c.holdAt(t, vmi, holdReady)
	m := c.migrate(t, vmi, "move", nil)
	c.waitPhase(t, m, v1.MigrationPreparingTarget)
	if err := c.Delete(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	c.waitGone(t, vmi)
	c.waitGone(t, m) // it has failed, and nothing else would delete it
}

func limits(t *testing.T, c *cluster) {
	// Everything is there before the controller starts, so that the order is
	// that of priority and not of arrival.
	ns := c.namespace(t)
	guests := map[string]*v1.VirtualMachineInstance{}
	var ms []*v1.VirtualMachineInstanceMigration
	critical, user := v1.PrioritySystemCritical, v1.PriorityUserTriggered
	for i, p := range []*v1.MigrationPriority{nil, nil, &user, &critical} {
		name := fmt.Sprintf("guest-%d", i)
		guests[name] = c.guest(t, ns, name, "sim-0")
		ms = append(ms, c.migrate(t, guests[name], name, func(m *v1.VirtualMachineInstanceMigration) { m.Spec.Priority = p }))
	}
	c.holdAt(t, guests["guest-3"], holdReady)
	c.holdAt(t, guests["guest-2"], holdReady)
	c.startController(t, func(r *migrationctrl.Reconciler) {
		r.Config.Limits = queue.Limits{Cluster: 9, Outbound: 2, Inbound: 9}
	})
	c.waitPhase(t, ms[3], v1.MigrationPreparingTarget)
	c.waitPhase(t, ms[2], v1.MigrationPreparingTarget)
	for _, m := range ms[:2] {
		c.waitFor(t, "the queue to be explained", m, func() bool { return reasonOf(m) == migration.ReasonWaitingForSlot })
		if text := migration.Condition(m.Status, migration.ConditionWaiting).Message; !strings.Contains(text, "2 leaving node sim-0") {
			t.Errorf("message is %q", text)
		}
		if n := len(c.pods(t, guests[m.Name])); n != 1 {
			t.Errorf("%s has %d Pods while it waits", m.Name, n)
		}
	}
	c.holdAt(t, guests["guest-3"], "")
	c.holdAt(t, guests["guest-2"], "")
	for _, m := range ms {
		c.waitPhase(t, m, v1.MigrationSucceeded)
		c.waitReleased(t, m)
	}
}

func second(t *testing.T, c *cluster) {
	c.startController(t, leftToScheduler)
	vmi := c.guest(t, c.namespace(t), "guest", "sim-0")
	c.holdAt(t, vmi, holdReady)
	first := c.migrate(t, vmi, "a-first", func(m *v1.VirtualMachineInstanceMigration) {
		m.Spec.AddedNodeSelector = map[string]string{"no-such": "node"}
	})
	c.waitPhase(t, first, v1.MigrationScheduling)
	next := c.migrate(t, vmi, "b-next", nil)
	c.waitFor(t, "the second to wait", next, func() bool { return reasonOf(next) == migration.ReasonWaitingForMigration })
	if err := c.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	c.waitPhase(t, next, v1.MigrationPreparingTarget)
	third := c.migrate(t, vmi, "c-third", nil)
	c.waitFor(t, "the third to be refused", third, func() bool { return reasonOf(third) == migration.ReasonConflict })
	c.holdAt(t, vmi, "")
	c.waitPhase(t, next, v1.MigrationSucceeded)
}

func unschedulable(t *testing.T, c *cluster) {
	c.startController(t, leftToScheduler)
	vmi := c.guest(t, c.namespace(t), "guest", "sim-0")
	m := c.migrate(t, vmi, "move", func(m *v1.VirtualMachineInstanceMigration) {
		m.Spec.AddedNodeSelector = map[string]string{"no-such": "node"}
		m.Annotations = map[string]string{v1.MigrationUnschedulablePodTimeoutSecondsAnnotation: "1"}
	})
	c.waitPhase(t, m, v1.MigrationFailed)
	if reasonOf(m) != migration.ReasonUnschedulable {
		t.Errorf("reason is %q: %+v", reasonOf(m), m.Status.Conditions)
	}
	c.waitReleased(t, m)
	c.onlyPodOn(t, vmi, "sim-0")
}

func raised(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	none, five := uint32(0), uint32(5)
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "kubevirt"}}
	kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{ParallelMigrationsPerCluster: &none}
	c.create(t, kv)
	stop := c.startController(t, nil)
	vmi := c.guest(t, ns, "guest", "sim-0")
	m := c.migrate(t, vmi, "move", nil)
	c.waitFor(t, "the limit to be explained", m, func() bool { return reasonOf(m) == migration.ReasonWaitingForSlot })
	kv.Spec.Configuration.MigrationConfiguration.ParallelMigrationsPerCluster = &five
	if err := c.Update(t.Context(), kv); err != nil {
		t.Fatal(err)
	}
	c.waitPhase(t, m, v1.MigrationSucceeded)
	stop()
	if err := c.Delete(t.Context(), kv); err != nil {
		t.Fatal(err)
	}
}

func quota(t *testing.T, c *cluster) {
	c.startController(t, func(r *migrationctrl.Reconciler) {
		r.Config.Limits = queue.Limits{Cluster: 1, Outbound: 1, Inbound: 1}
	})
	ns, other := c.namespace(t), c.namespace(t)
	vmi, free := c.guest(t, ns, "guest", "sim-0"), c.guest(t, other, "guest", "sim-0")
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "one-pod"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}},
	}
	c.create(t, q)
	c.waitFor(t, "the quota to count", q, func() bool {
		used := q.Status.Used[corev1.ResourcePods]
		return used.Value() == 1
	})
	m := c.migrate(t, vmi, "move", nil)
	c.waitFor(t, "the quota to be reported", m, func() bool {
		return migration.Condition(m.Status, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota) != nil
	})
	const text = "the target Pod exceeds the quota: pods: needs 1, 1 of 1 are used in ResourceQuota one-pod"
	if got := migration.Condition(m.Status, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota).Message; got != text {
		t.Errorf("condition says %q, want %q", got, text)
	}
	// The only slot is free for others.
	c.waitPhase(t, c.migrate(t, free, "move", nil), v1.MigrationSucceeded)
	if err := c.Delete(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	c.waitPhase(t, m, v1.MigrationSucceeded)
	if migration.Condition(m.Status, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota) != nil {
		t.Errorf("conditions are %+v", m.Status.Conditions)
	}
}

func foreign(t *testing.T, c *cluster) {
	ns := c.namespace(t)
	vmi := c.guest(t, ns, "guest", "sim-0")
	m := c.migrate(t, vmi, "move", nil)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: template.TargetName(vmi, m.UID)},
		Spec:       corev1.PodSpec{NodeName: "sim-1", Containers: []corev1.Container{{Name: "c", Image: "example.test/c:1"}}},
	}
	c.create(t, pod)
	c.startController(t, nil)
	c.waitPhase(t, m, v1.MigrationFailed)
	c.waitReleased(t, m)
	if reasonOf(m) != migration.ReasonTargetPodForeign {
		t.Errorf("conditions are %+v", m.Status.Conditions)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || pod.DeletionTimestamp != nil {
		t.Errorf("the foreign Pod was touched: %v", err)
	}
}
