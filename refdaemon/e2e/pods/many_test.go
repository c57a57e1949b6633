// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// outbound is how many migrations may leave a node at once (KubeVirt: parallelOutboundMigrationsPerNode).
const outbound = 2

// TestNode_DrainedOfSix: "kubectl drain" empties a node with six guests, of which no more than may do so move at once; a seventh, which
// cannot move, keeps the drain from ending, and kubectl prints why.
func TestNode_DrainedOfSix(t *testing.T) {
	nightly(t)
	c := cluster(t)
	from, to := c.Nodes[0].Name(), c.Nodes[1].Name()
	cordon(t, to)
	vmis := []*v1.VirtualMachineInstance{newGuest("stuck", func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}
	})}
	for i := range 6 {
		vmis = append(vmis, newGuest(fmt.Sprintf("drained-%d", i)))
	}
	guests := bootAll(t, vmis...)
	uncordon(t, to)
	t.Cleanup(func() { uncordon(t, from) })
	drain := func(timeout string) (string, error) {
		out, err := kubectl("drain", from, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout="+timeout)
		return out, err
	}
	out, err := drain("150s")
	if err == nil || !strings.Contains(out, "VMI stuck is configured with an eviction strategy but is not live-migratable") {
		t.Errorf("drain with a guest that cannot move: %v\n%s", err, out)
	}
	stuck, moved := guests[0], guests[1:]
	for _, s := range moved {
		s.awaitRunning(to)
		s.beats(to, 3)
		s.unbroken()
	}
	atMost(t, outbound, moved)
	stuck.awaitRunning(from)
	stuck.beats(from, 3)
	stuck.unbroken()
	stuck.remove()
	if out, err := drain("60s"); err != nil {
		t.Errorf("drain of the rest: %v\n%s", err, out)
	}
}

// atMost checks that no more guests than that moved at once. Times of migrations are in seconds.
func atMost(t *testing.T, most int, moved []*scene) {
	t.Helper()
	begin := func(s *scene) time.Time { return s.vmi.Status.MigrationState.StartTimestamp.Time }
	for _, s := range moved {
		n := 0
		for _, other := range moved {
			if at := begin(s); !begin(other).After(at) && at.Before(other.vmi.Status.MigrationState.EndTimestamp.Time) {
				n++
			}
		}
		if n > most {
			t.Errorf("%d guests moved at once when %s did", n, s.key)
		}
	}
}

func cordon(t *testing.T, node string) {
	t.Helper()
	if out, err := kubectl("cordon", node); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { uncordon(t, node) })
}

func uncordon(t *testing.T, node string) {
	t.Helper()
	if out, err := kubectl("uncordon", node); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestNode_TenGuests: ten guests start at once on one node. How long that took is logged, beside one alone.
func TestNode_TenGuests(t *testing.T) {
	nightly(t)
	node := cluster(t).Nodes[0].Name()
	here := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
	alone := boot(t, newGuest("alone", here))
	alone.started()
	alone.remove()
	var vmis []*v1.VirtualMachineInstance
	for i := range 10 {
		vmis = append(vmis, newGuest(fmt.Sprintf("one-of-ten-%d", i), here))
	}
	for _, s := range bootAll(t, vmis...) {
		s.started()
		s.beats(node, 3)
		s.unbroken()
	}
}

// started logs how long the guest took to start.
func (s *scene) started() {
	s.Helper()
	at := func(phase v1.VirtualMachineInstancePhase) metav1.Time {
		for _, p := range s.vmi.Status.PhaseTransitionTimestamps {
			if p.Phase == phase {
				return p.PhaseTransitionTimestamp
			}
		}
		s.Fatalf("it was never %s: %+v", phase, s.vmi.Status.PhaseTransitionTimestamps)
		return metav1.Time{}
	}
	created := s.vmi.CreationTimestamp
	s.Logf("%s: scheduled after %v, running after %v, first heartbeat after %v", s.key.Name, at(v1.Scheduled).Sub(created.Time),
		at(v1.Running).Sub(created.Time), s.con.Ticks()[0].At.Sub(created.Time).Round(time.Second))
}
