// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/vmi"
)

// TestNode_Dies: everything that runs on the node of a guest ends at once, as when it loses its power, and the node returns with its
// files. The VMI stays as it is while nothing is known, is lost when the node has been silent for long, and has failed once its node
// says that the guest is gone. The guest is started once only, and that of another node notices nothing.
func TestNode_Dies(t *testing.T) {
	nightly(t)
	for name, silence := range map[string]func(*scene){
		"for a moment": func(*scene) {},
		"for long":     (*scene).awaitLost,
	} {
		t.Run(name, func(t *testing.T) {
			guests := bootAll(t, newGuest("dies"), newGuest("stays"))
			s, other := guests[0], guests[1]
			if s.vmi.Status.NodeName == other.vmi.Status.NodeName {
				other.migrate()
			}
			node := s.c.Node(s.vmi.Status.NodeName)
			must(t, node.PowerOff(t.Context()))
			silence(s)
			s.restore(node.PowerOn)
			s.awaitFinal(v1.Failed)
			if n := strings.Count(strings.Join(s.con.Lines(), "\n"), "virtloom-guest-up"); n != 1 {
				t.Errorf("the guest was started %d times", n)
			}
			if pods, err := s.pods(t.Context()); err != nil || len(pods) > 1 {
				t.Errorf("%d Pods, %v", len(pods), err)
			}
			other.beats("", 3)
			other.unbroken()
		})
	}
}

// awaitLost waits until the VMI is lost: its node has not answered for [vmi.DefaultSilentAfter].
func (s *scene) awaitLost() {
	s.Helper()
	must(s.T, refcluster.Await(s.Context(), vmi.DefaultSilentAfter+patience, "the VMI to be lost", func(ctx context.Context) error {
		if err := s.c.Client.Get(ctx, s.key, s.vmi); err != nil {
			return err
		}
		lease, err := handoff.Of(s.vmi)
		if err != nil {
			return err
		}
		if s.vmi.IsFinal() {
			s.Fatalf("it has %s, reason %q, although nothing is known about its node", s.vmi.Status.Phase, s.vmi.Status.Reason)
		}
		if lease.State != handoff.Lost {
			return fmt.Errorf("it is %s, its lease %s", s.vmi.Status.Phase, lease.State)
		}
		return nil
	}))
}

// TestLauncher_OutOfMemory: a guest whose container has no memory left has failed, and the VMI says why.
func TestLauncher_OutOfMemory(t *testing.T) {
	nightly(t)
	s := boot(t, newGuest("hungry", func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: *vmi.Spec.Domain.Memory.Guest}
	}))
	qemu, _ := s.processes()
	// A process of the container takes all memory, and is not the one that the kernel ends.
	hog := s.c.Node(s.vmi.Status.NodeName).Command(t.Context(), "sh", "-c", fmt.Sprintf(`
		group=/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/%[1]s/cgroup)
		[ -d /sys/fs/cgroup/memory ] || group=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/%[1]s/cgroup)
		echo $$ >"$group/cgroup.procs"
		echo -999 >/proc/$$/oom_score_adj
		exec tail /dev/zero`, qemu))
	must(t, hog.Start())
	t.Cleanup(func() { _, _ = hog.Process.Kill(), hog.Wait() })
	s.awaitFailed("OOMKilled")
}

// TestVM_NodeDies: the node of four guests loses its power and returns. Whether there is another guest then is up to the run strategy.
func TestVM_NodeDies(t *testing.T) {
	nightly(t)
	c := cluster(t)
	cordon(t, c.Nodes[1].Name())
	again := map[v1.VirtualMachineRunStrategy]bool{v1.RunStrategyAlways: true, v1.RunStrategyRerunOnFailure: true, v1.RunStrategyManual: false, v1.RunStrategyOnce: false}
	machines, guests := map[v1.VirtualMachineRunStrategy]machine{}, map[v1.VirtualMachineRunStrategy]*scene{}
	for strategy := range again {
		m := newMachine(t, "dies-"+strings.ToLower(string(strategy)), strategy)
		if strategy == v1.RunStrategyManual {
			m.request(v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest})
		}
		machines[strategy] = m
	}
	for strategy, m := range machines {
		guests[strategy] = m.boots(nil)
	}
	uncordon(t, c.Nodes[1].Name())
	must(t, c.Nodes[0].PowerOff(t.Context()))
	guests[v1.RunStrategyAlways].restore(c.Nodes[0].PowerOn)
	for strategy, m := range machines {
		if again[strategy] {
			m.boots(guests[strategy])
			m.ran(2)
			continue
		}
		m.keeps(guests[strategy], v1.Failed)
		m.ran(1)
	}
}
