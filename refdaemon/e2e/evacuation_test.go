// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
)

// TestEvacuation_Node: all guests of a node that is drained move away. Two at a time may
// leave it and one may enter the other, so they go one after the other, and all run on.
func TestEvacuation_Node(t *testing.T) {
	c := cluster(t)
	crashController(t, c, func() {}, "--migrations-inbound-per-node=1")
	t.Cleanup(func() { crashController(t, c, func() {}) })
	from, to := c.Nodes[0].Name(), c.Nodes[1].Name()
	uncordon := cordon(t, c, to)
	guests := make([]*scene, 4)
	for i := range guests {
		guests[i] = boot(t, c, newGuest(t, fmt.Sprintf("evacuated-%d", i), func(vmi *v1.VirtualMachineInstance) {
			move := v1.EvictionStrategyLiveMigrate
			vmi.Spec.EvictionStrategy = &move
		}))
	}
	uncordon()
	drain(t, c, from, true)
	t.Cleanup(func() { drain(t, c, from, false) })
	for _, s := range guests {
		s.awaitNode(to)
	}
	for _, s := range guests {
		s.single()
		s.beats(to, 3)
		s.unbroken()
	}
	m := moves(t, c, guests...)
	if len(m.All) != len(guests) {
		t.Errorf("%d migrations acted for %d guests", len(m.All), len(guests))
	}
	if n := overlapping(m.All); n > 1 {
		t.Errorf("%d guests entered %s at a time, want one", n, to)
	}
}

// awaitNode waits until the guest runs on the node, in no move.
func (s *scene) awaitNode(node string) {
	s.Helper()
	must(s.T, s.c.Await(s.Context(), patience, fmt.Sprintf("%s to run on %s", s.key.Name, node), func(ctx context.Context) (err error) {
		if s.vmi, err = s.c.VMI(ctx, s.key); err != nil {
			return err
		}
		if ms := s.vmi.Status.MigrationState; s.vmi.Status.NodeName != node || s.vmi.Status.Phase != v1.Running || ms == nil || !ms.Completed {
			return fmt.Errorf("it is %s on %s, migration %+v", s.vmi.Status.Phase, s.vmi.Status.NodeName, ms)
		}
		return nil
	}))
}

// drain sets or clears the taint by which KubeVirt has a node evacuated.
func drain(t *testing.T, c *refcluster.Cluster, node string, on bool) {
	t.Helper()
	ctx := context.Background()
	n := &corev1.Node{}
	must(t, c.Client.Get(ctx, client.ObjectKey{Name: node}, n))
	was := n.DeepCopy()
	n.Spec.Taints = nil
	if on {
		n.Spec.Taints = []corev1.Taint{{Key: "kubevirt.io/drain", Effect: corev1.TaintEffectNoSchedule}}
	}
	must(t, c.Client.Patch(ctx, n, client.MergeFrom(was)))
}
