// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/migration"
)

// moves reads from the audit log which migrations acted when, of those whose guests
// are given.
func moves(t *testing.T, c *refcluster.Cluster, guests ...*scene) rig.Moves {
	t.Helper()
	requests, err := c.Rig.Requests()
	must(t, err)
	m, err := rig.MovesOf(requests)
	must(t, err)
	m.All = slices.DeleteFunc(m.All, func(o rig.Move) bool {
		return !slices.ContainsFunc(guests, func(s *scene) bool { return s.key == o.VMI })
	})
	return m
}

// awaitReason waits until the migration says why it stands where it stands, in that phase.
func (s *scene) awaitReason(m *v1.VirtualMachineInstanceMigration, phase v1.VirtualMachineInstanceMigrationPhase, reason migration.Reason) {
	s.Helper()
	must(s.T, s.c.Await(s.Context(), patience, fmt.Sprintf("%s to be %s: %s", m.Name, phase, reason), func(ctx context.Context) error {
		if err := s.c.Client.Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
			return err
		}
		for _, of := range []v1.VirtualMachineInstanceMigrationConditionType{migration.ConditionFailed, migration.ConditionWaiting} {
			if cond := migration.Condition(m.Status, of); m.Status.Phase == phase && cond != nil && cond.Reason == string(reason) {
				return nil
			}
		}
		return fmt.Errorf("it is %s, conditions %v", m.Status.Phase, m.Status.Conditions)
	}))
}

// withPriority creates a migration as a controller does.
func (s *scene) withPriority(name string, p v1.MigrationPriority) *v1.VirtualMachineInstanceMigration {
	s.Helper()
	return s.migrate(name, func(m *v1.VirtualMachineInstanceMigration) { m.Spec.Priority = &p })
}

// TestQueue_PriorityInversion: one slot is taken, and what waits was created with the
// least urgent first.
func TestQueue_PriorityInversion(t *testing.T) {
	c := cluster(t)
	one := uint32(1)
	slowly(t, c, func(m *v1.MigrationConfiguration) { m.ParallelMigrationsPerCluster = &one })
	guests := []*scene{boot(t, c, newGuest(t, "unset")), boot(t, c, newGuest(t, "maintenance")), boot(t, c, newGuest(t, "critical"))}
	first := boot(t, c, newGuest(t, "holds-the-slot", busy))
	whoHoldsTheSlot := first.migrate("holds-the-slot")
	first.awaitMoving()

	all := []*v1.VirtualMachineInstanceMigration{
		guests[0].migrate("unset"),
		guests[1].withPriority("maintenance", v1.PrioritySystemMaintenance),
		guests[2].withPriority("critical", v1.PrioritySystemCritical),
	}
	for i, m := range all {
		guests[i].awaitReason(m, v1.MigrationPending, migration.ReasonWaitingForSlot)
	}
	configure(t, c, func(m *v1.MigrationConfiguration) { m.BandwidthPerMigration = nil }) // slow was the one that they wait for
	must(t, c.Client.Delete(t.Context(), whoHoldsTheSlot.DeepCopy()))
	for i, m := range all {
		guests[i].awaitMigration(m, v1.MigrationSucceeded)
		guests[i].single()
		guests[i].unbroken()
	}
	var order []string
	for _, o := range moves(t, c, guests...).All {
		order = append(order, o.VMI.Name)
	}
	if want := []string{"critical", "maintenance", "unset"}; !slices.Equal(order, want) {
		t.Errorf("target Pods were created for %v, want %v", order, want)
	}
	if m := moves(t, c, append(guests, first)...); overlap(m.All) > 1 {
		t.Errorf("%d migrations acted at a time, want one: %+v", overlap(m.All), m.All)
	}
}

// overlap is how many of the migrations had a target Pod at the same time.
func overlap(all []rig.Move) int {
	return atATime(all, func(o rig.Move) time.Time { return o.Created })
}

// overlapping is how many of the migrations had been handed to the nodes at the same time.
func overlapping(all []rig.Move) int {
	return atATime(all, func(o rig.Move) time.Time { return o.HandedOver })
}

func atATime(all []rig.Move, begin func(rig.Move) time.Time) int {
	most := 0
	for _, o := range all {
		n := 0
		for _, p := range all {
			if !begin(p).IsZero() && !begin(p).After(begin(o)) && (p.Ended.IsZero() || p.Ended.After(begin(o))) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// TestMigration_AbortedInEveryPhase that it can be made to stay in.
func TestMigration_AbortedInEveryPhase(t *testing.T) {
	c := cluster(t)
	s := boot(t, c, newGuest(t, "abort-phases"))
	home := s.vmi.Status.NodeName
	other := c.Nodes[0].Name()
	if other == home {
		other = c.Nodes[1].Name()
	}
	for name, stay := range map[v1.VirtualMachineInstanceMigrationPhase]func() (undo func()){
		v1.MigrationPending: func() func() {
			none := uint32(0)
			configure(t, c, func(m *v1.MigrationConfiguration) { m.ParallelMigrationsPerCluster = &none })
			return func() { configure(t, c, func(m *v1.MigrationConfiguration) { *m = v1.MigrationConfiguration{} }) }
		},
		v1.MigrationScheduling: func() func() { return cordon(t, c, other) },
		v1.MigrationPreparingTarget: func() func() {
			c.Forget(shared.agents[other])
			must(t, shared.agents[other].Kill())
			return func() { restartAgent(t, c, other) }
		},
		v1.MigrationTargetReady: func() func() {
			c.Forget(shared.agents[home])
			must(t, shared.agents[home].Kill())
			return func() { restartAgent(t, c, home) }
		},
	} {
		t.Run(string(name), func(t *testing.T) {
			undo := sync.OnceFunc(stay())
			t.Cleanup(undo)
			m := s.migrate("abort-" + strings.ToLower(string(name)))
			s.awaitMigration(m, name)
			must(t, c.Client.Delete(t.Context(), m.DeepCopy()))
			must(t, c.AwaitGone(t.Context(), m.DeepCopy(), patience))
			undo()
			s.single()
			s.await(v1.Running)
			if s.vmi.Status.NodeName != home {
				t.Errorf("the guest is on %s, want %s", s.vmi.Status.NodeName, home)
			}
			s.beats(home, 3)
			s.unbroken()
		})
	}
}

func restartAgent(t *testing.T, c *refcluster.Cluster, node string) {
	t.Helper()
	var err error
	shared.agents[node], err = c.StartAgent(c.Node(node))
	must(t, err)
	must(t, c.AwaitAgents(t.Context(), patience))
}

// cordon keeps new Pods from a node until undo, or the end of the test.
func cordon(t *testing.T, c *refcluster.Cluster, node string) (undo func()) {
	t.Helper()
	set := func(to bool) {
		t.Helper()
		n := &corev1.Node{}
		ctx := context.Background()
		must(t, c.Client.Get(ctx, client.ObjectKey{Name: node}, n))
		was := n.DeepCopy()
		n.Spec.Unschedulable = to
		must(t, c.Client.Patch(ctx, n, client.MergeFrom(was)))
	}
	set(true)
	t.Cleanup(func() { set(false) })
	return func() { set(false) }
}

// TestMigration_Quota: a migration that a quota has no room for says so and
// continues when there is room.
func TestMigration_Quota(t *testing.T) {
	c := cluster(t)
	s := boot(t, c, newGuest(t, "quota"))
	var pods corev1.PodList
	must(t, c.Client.List(t.Context(), &pods, client.InNamespace(s.key.Namespace)))
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.key.Namespace, Name: "no-room"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(int64(len(pods.Items)), resource.DecimalSI)}},
	}
	must(t, c.Client.Create(t.Context(), quota))
	t.Cleanup(func() { must(t, client.IgnoreNotFound(c.Client.Delete(context.Background(), quota.DeepCopy()))) })
	must(t, c.Await(t.Context(), patience, "the quota to count", func(ctx context.Context) error {
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(quota), quota); err != nil {
			return err
		}
		if used := quota.Status.Used[corev1.ResourcePods]; used.Value() < int64(len(pods.Items)) {
			return fmt.Errorf("it counts %s", used.String())
		}
		return nil
	}))
	m := s.migrate("quota")
	s.awaitReason(m, v1.MigrationPending, migration.ReasonQuota)
	if migration.Condition(m.Status, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota) == nil {
		t.Errorf("the conditions are %+v", m.Status.Conditions)
	}
	was := quota.DeepCopy()
	quota.Spec.Hard[corev1.ResourcePods] = *resource.NewQuantity(int64(len(pods.Items))+1, resource.DecimalSI)
	must(t, c.Client.Patch(t.Context(), quota, client.MergeFrom(was)))
	s.awaitMigration(m, v1.MigrationSucceeded)
	s.single()
	s.unbroken()
}

// TestMigration_TargetUnschedulable and leaves the guest alone; the next one finds
// a node again.
func TestMigration_TargetUnschedulable(t *testing.T) {
	c := cluster(t)
	s := boot(t, c, newGuest(t, "unschedulable"))
	home := s.vmi.Status.NodeName
	uncordon := func() {}
	for _, n := range c.Nodes {
		if n.Name() != home {
			uncordon = cordon(t, c, n.Name())
		}
	}
	m := s.migrate("unschedulable", func(m *v1.VirtualMachineInstanceMigration) {
		m.Annotations = map[string]string{v1.MigrationUnschedulablePodTimeoutSecondsAnnotation: "10"}
	})
	s.awaitReason(m, v1.MigrationScheduling, migration.ReasonUnschedulable)
	s.awaitReason(m, v1.MigrationFailed, migration.ReasonUnschedulable)
	uncordon()
	s.single()
	s.unbroken()
	s.awaitMigration(s.migrate("schedulable"), v1.MigrationSucceeded)
	s.single()
}

// TestMigrationPolicy_ReachesHypervisor: its bandwidth is that of libvirt's job, and the
// guest that cannot be moved under it otherwise goes by post-copy, as it allows.
func TestMigrationPolicy_ReachesHypervisor(t *testing.T) {
	c := cluster(t)
	rate, late, yes := resource.MustParse("3Mi"), int64(20), true
	p := &v1alpha1.MigrationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "slow-and-post-copy"},
		Spec: v1alpha1.MigrationPolicySpec{
			Selectors:             &v1alpha1.Selectors{VirtualMachineInstanceSelector: v1alpha1.LabelSelector{"policy": "slow"}},
			BandwidthPerMigration: &rate, AllowPostCopy: &yes, CompletionTimeoutPerGiB: &late,
		},
	}
	must(t, c.Client.Create(t.Context(), p))
	t.Cleanup(func() { must(t, c.Client.Delete(context.Background(), p.DeepCopy())) })
	s := boot(t, c, newGuest(t, "policed", busy, func(vmi *v1.VirtualMachineInstance) {
		vmi.Labels = map[string]string{"policy": "slow"}
	}))
	m := s.migrate("policed")
	s.awaitMoving()
	speed, err := c.Virsh(t.Context(), s.side("source"), "migrate-getspeed", "default_"+s.key.Name)
	must(t, err)
	if strings.TrimSpace(speed) != "3" {
		t.Errorf("the job may send %q MiB/s, want 3", speed)
	}
	s.awaitMigration(m, v1.MigrationSucceeded)
	s.await(v1.Running)
	ms := s.vmi.Status.MigrationState
	if ms.Mode != v1.MigrationPostCopy || ms.MigrationPolicyName == nil || *ms.MigrationPolicyName != p.Name {
		t.Errorf("it went by %s under policy %v", ms.Mode, ms.MigrationPolicyName)
	}
	s.single()
	s.beats(s.vmi.Status.NodeName, 3)
	s.unbroken()
}
