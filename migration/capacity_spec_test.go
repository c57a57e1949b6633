// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/queue"
)

// guestOn is a snapshot of a migration in the phase, whose VMI is on the node.
func guestOn(name, node string, ph v1.VirtualMachineInstanceMigrationPhase) migration.Snapshot {
	m := newMigration(name, types.UID(name))
	m.Labels = map[string]string{v1.MigrationSelectorLabel: "guest"}
	m.Finalizers = []string{v1.VirtualMachineInstanceMigrationFinalizer}
	m.Status.Phase = ph
	return migration.Snapshot{
		Migration: m, Config: migration.Config{}.WithDefaults(), SourcePod: &corev1.Pod{},
		VMI: &v1.VirtualMachineInstance{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: types.UID("guest-" + name), Labels: map[string]string{v1.NodeNameLabel: node}},
			Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: node},
		},
	}
}

// withPod adds a target Pod, which no node takes if it is stuck.
func withPod(s migration.Snapshot, stuck bool) migration.Snapshot {
	s.TargetPod = &corev1.Pod{}
	if stuck {
		s.TargetPod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		}}
	}
	return s
}

// handedOff says that the VMI was handed off from one node to another, where
// it is now.
func handedOff(s migration.Snapshot, from, to string) migration.Snapshot {
	s.VMI.Status.NodeName = to
	s.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: s.Migration.UID, SourceNode: from, TargetNode: to}
	return s
}

func others(n int, build func(i int) migration.Snapshot) []migration.Snapshot {
	var out []migration.Snapshot
	for i := range n {
		out = append(out, build(i))
	}
	return out
}

// TestS14Capacity are the rows of the specification on which migrations may start.
// The candidate is pending, has no target Pod, and its VMI is on node S.
func TestS14Capacity(t *testing.T) {
	scheduling := func(node string) func(int) migration.Snapshot {
		return func(i int) migration.Snapshot {
			if node == "" {
				node = fmt.Sprint("n", i)
			}
			return withPod(guestOn(fmt.Sprint("o", node, i), node, v1.MigrationScheduling), false)
		}
	}
	distinct := func(n int, ph v1.VirtualMachineInstanceMigrationPhase) []migration.Snapshot {
		return others(n, func(i int) migration.Snapshot {
			return withPod(guestOn(fmt.Sprint(ph, i), fmt.Sprint(ph, i), ph), false)
		})
	}
	moved := others(2, func(i int) migration.Snapshot {
		return handedOff(withPod(guestOn(fmt.Sprint("moved", i), "T", v1.MigrationRunning), false), "S", "T")
	})
	later := guestOn("later", "L", v1.MigrationPending)
	later.Migration.CreationTimestamp = metav1.NewTime(start.Add(30 * time.Second))
	for name, tc := range map[string]struct {
		others []migration.Snapshot
		want   bool
	}{
		"S14/53 4 scheduling on distinct nodes, 2 pending without Pods": {append(distinct(4, v1.MigrationScheduling), later), true},
		"S14/55 3 scheduling, 2 pending with target Pods":               {append(distinct(3, v1.MigrationScheduling), distinct(2, v1.MigrationPending)...), false},
		"S14/56 1 other leaves S":                                       {others(1, scheduling("S")), true},
		"S14/56 2 others leave S":                                       {others(2, scheduling("S")), false},
		"S14/58 2 have moved from S to T and run on":                    {moved, false},
		"S14/59 2 others of the same node":                              {others(2, scheduling("S")), false},
		"S14/59 1 of the same node":                                     {others(1, scheduling("S")), true},
		"S14/59 2 and 1 on other nodes":                                 {append(others(2, scheduling("A")), others(1, scheduling("B"))...), true},
		"S14/59 5 elsewhere":                                            {distinct(5, v1.MigrationScheduling), false},
		"S14/62 one that is finished holds nothing": {append(distinct(4, v1.MigrationScheduling),
			withPod(guestOn("finished", "S", v1.MigrationSucceeded), false)), true},
		"S14/125 5 unschedulable targets do not keep one that is feasible": {others(5, func(i int) migration.Snapshot {
			return withPod(guestOn(fmt.Sprint("stuck", i), fmt.Sprint("n", i), v1.MigrationScheduling), true)
		}), true},
	} {
		t.Run(name, func(t *testing.T) {
			candidate := guestOn("candidate", "S", v1.MigrationPending)
			a := queue.NewAdmission(candidate.Config.Limits, queue.Options{})
			var claims []queue.Claim
			for _, s := range append(tc.others, candidate) {
				if c, wanted := s.Claim(start); wanted {
					claims = append(claims, c)
				}
			}
			a.Restore(claims, start.Add(60*time.Second))
			if v := a.Explain(types.NamespacedName{Namespace: "ns", Name: "candidate"}, start.Add(60*time.Second)); v.Held != tc.want || !v.Asked {
				t.Errorf("verdict is %+v, want a slot: %t", v, tc.want)
			}
		})
	}
}
