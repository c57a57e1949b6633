// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/migrations/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/migration"
)

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

// TestMigrationPolicy_ReachesHypervisor: its bandwidth is that of libvirt's job, and the
// guest that cannot be moved under it otherwise goes by post-copy, as it allows.
func TestMigrationPolicy_ReachesHypervisor(t *testing.T) {
	c := cluster(t)
	rate, late, yes := resource.MustParse("3Mi"), int64(10), true
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
	speed, err := c.Node(s.side("source")).Virsh(t.Context(), "migrate-getspeed", "default_"+s.key.Name)
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
