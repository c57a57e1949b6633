// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
)

// TestReady_OpeningReadinessGate covers a ready VMI whose Pod, after a migration, has a false readiness gate.
func TestReady_OpeningReadinessGate(t *testing.T) {
	owned := lease(handoff.Lease{State: handoff.Owned, Epoch: 3, Holder: "node-a"})
	was := func(status corev1.ConditionStatus) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) {
			g.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceReady, Status: status, Reason: "AsBefore"}}
		}
	}
	unready := func(reason string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions[0] = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: reason}
		}
	}
	opened := func(ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.Conditions[1].LastTransitionTime = metav1.NewTime(now.Add(-ago)) }
	}
	const gates = "ReadinessGatesNotReady"
	for name, test := range map[string]struct {
		guest  *v1.VirtualMachineInstance
		pod    *corev1.Pod
		failed bool
		want   corev1.ConditionStatus
		again  time.Duration // zero: no requeue
	}{
		"it is opened in this pass":     {guest(v1.Running, owned, was(corev1.ConditionTrue)), pod("p", unready(gates), gate(corev1.ConditionFalse)), false, corev1.ConditionTrue, 5 * time.Second},
		"it was opened just now":        {guest(v1.Running, owned, was(corev1.ConditionTrue)), pod("p", unready(gates), opened(2*time.Second)), false, corev1.ConditionTrue, 3 * time.Second},
		"it was opened, and nothing":    {guest(v1.Running, owned, was(corev1.ConditionTrue)), pod("p", unready(gates), opened(5*time.Second)), false, corev1.ConditionFalse, 0},
		"it could not be opened":        {guest(v1.Running, owned, was(corev1.ConditionTrue)), pod("p", unready(gates), gate(corev1.ConditionFalse)), true, corev1.ConditionFalse, 0},
		"the guest was not ready":       {guest(v1.Running, owned, was(corev1.ConditionFalse)), pod("p", unready(gates), gate(corev1.ConditionFalse)), false, corev1.ConditionFalse, 0},
		"the guest is paused":           {guest(v1.Running, owned, was(corev1.ConditionTrue), paused), pod("p", unready(gates), gate(corev1.ConditionFalse)), false, corev1.ConditionFalse, 0},
		"a container is not ready":      {guest(v1.Running, owned, was(corev1.ConditionTrue)), pod("p", unready("ContainersNotReady"), gate(corev1.ConditionFalse)), false, corev1.ConditionFalse, 0},
		"the Pod is ready, as is right": {guest(v1.Running, owned, was(corev1.ConditionTrue)), pod("p"), false, corev1.ConditionTrue, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := vmi.Snapshot{VMI: test.guest, Pods: []*corev1.Pod{test.pod}}
			if test.failed {
				s.Failure = &vmi.Failure{Reason: vmi.ReasonFailedPodPatch, Message: "no"}
			}
			plan := vmi.Decide(s, now)
			for _, c := range plan.VMI.Status.Conditions {
				if c.Type == v1.VirtualMachineInstanceReady && c.Status != test.want {
					t.Errorf("Ready is %+v, want %s", c, test.want)
				}
			}
			switch {
			case test.again == 0 && plan.RequeueAt != nil, test.again > 0 && (plan.RequeueAt == nil || !plan.RequeueAt.Equal(now.Add(test.again))):
				t.Errorf("looks again at %v, want %s from now (zero is never)", plan.RequeueAt, test.again)
			}
		})
	}
}

// moving starts a migration to the target Pod.
func moving(s *vmi.Snapshot) {
	s.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "job"}
}

// TestActivePods_MigrationTarget covers the entry of a running VMI's target Pod.
func TestActivePods_MigrationTarget(t *testing.T) {
	owned := lease(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"})
	known := func(pods map[types.UID]string) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) { g.Status.ActivePods = pods }
	}
	alone := map[types.UID]string{"uid-p": "node-a"}
	for name, test := range map[string]struct {
		known map[types.UID]string
		pod   *corev1.Pod
		move  types.UID
		want  map[types.UID]string
	}{
		"not placed yet":                        {alone, pod("t", target, unscheduled), "", alone},
		"placed, and the move is not begun":     {alone, pod("t", target), "", alone},
		"placed, and another move was the last": {alone, pod("t", target), "other", alone},
		"placed, and stock KubeVirt moves":      {alone, pod("t", target), "job", map[types.UID]string{"uid-p": "node-a", "uid-t": "node-b"}},
		"recorded before it was placed":         {map[types.UID]string{"uid-p": "node-a", "uid-t": ""}, pod("t", target, unscheduled), "", map[types.UID]string{"uid-p": "node-a", "uid-t": ""}},
		"recorded before, and placed meanwhile": {map[types.UID]string{"uid-p": "node-a", "uid-t": ""}, pod("t", target), "", map[types.UID]string{"uid-p": "node-a", "uid-t": "node-b"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := guest(v1.Running, owned, known(test.known))
			if test.move != "" {
				g.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: test.move}
			}
			plan := vmi.Decide(vmi.Snapshot{VMI: g, Pods: []*corev1.Pod{pod("p"), test.pod}}, now)
			if got := plan.VMI.Status.ActivePods; !maps.Equal(got, test.want) {
				t.Errorf("activePods %v, want %v", got, test.want)
			}
		})
	}
}

// TestImage_AfterMigration covers the image of the launcher after a migration: it is stored in one write with the
// end of the old Pod.
func TestImage_AfterMigration(t *testing.T) {
	ended, both := metav1.NewTime(now), map[types.UID]string{"uid-p": "node-a", "uid-t": "node-b"}
	for name, test := range map[string]struct {
		migration *v1.VirtualMachineInstanceMigrationState
		pods      []*corev1.Pod
		stored    string
		want      string
	}{
		"the old Pod is there":              {&v1.VirtualMachineInstanceMigrationState{EndTimestamp: &ended, Completed: true}, []*corev1.Pod{pod("p"), pod("t", target)}, "", ""},
		"the old Pod is gone":               {&v1.VirtualMachineInstanceMigrationState{EndTimestamp: &ended, Completed: true}, []*corev1.Pod{pod("t", target)}, "", "launcher:0"},
		"the image is known":                {&v1.VirtualMachineInstanceMigrationState{EndTimestamp: &ended, Completed: true}, []*corev1.Pod{pod("p"), pod("t", target)}, "launcher:-1", "launcher:0"},
		"the migration failed":              {&v1.VirtualMachineInstanceMigrationState{EndTimestamp: &ended, Failed: true}, []*corev1.Pod{pod("p"), pod("t", target)}, "", "launcher:0"},
		"the migration has not ended":       {&v1.VirtualMachineInstanceMigrationState{}, []*corev1.Pod{pod("p"), pod("t", target)}, "", "launcher:0"},
		"two Pods, and never any migration": {nil, []*corev1.Pod{pod("p"), pod("t", target)}, "", "launcher:0"},
	} {
		t.Run(name, func(t *testing.T) {
			owned := lease(handoff.Lease{State: handoff.Owned, Epoch: 2, Holder: "node-b"})
			g := guest(v1.Running, owned, func(g *v1.VirtualMachineInstance) {
				g.Status.NodeName = "node-b"
				g.Status.ActivePods, g.Status.MigrationState, g.Status.LauncherContainerImageVersion = both, test.migration, test.stored
			})
			for _, p := range test.pods {
				p.Spec.Containers = []corev1.Container{{Name: "compute", Image: "launcher:0"}}
			}
			plan := vmi.Decide(vmi.Snapshot{VMI: g, Pods: test.pods}, now)
			if got := plan.VMI.Status.LauncherContainerImageVersion; got != test.want {
				t.Errorf("image %q, want %q", got, test.want)
			}
		})
	}
}
