// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
)

var rounds = flag.Int("rounds", 1, "round trips of TestMigration_RoundTrips")

// TestMigration_RoundTrips: a guest moves from Pod to Pod and back, no heartbeat is lost or comes twice, and the status has the
// address of the Pod where it is.
func TestMigration_RoundTrips(t *testing.T) {
	s := boot(t, newGuest("traveller"))
	for range 2 * *rounds {
		s.migrate()
		pods, err := s.pods(t.Context())
		must(t, err)
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool {
			return p.Spec.NodeName == s.vmi.Status.NodeName && p.Status.Phase == corev1.PodRunning
		})
		if i < 0 {
			t.Fatalf("no Pod runs on %s", s.vmi.Status.NodeName)
		}
		s.awaitAddress(pods[i].Status.PodIP)
	}
	s.unbroken()
}

// migrate migrates the VMI to the other node, where it beats then.
func (s *scene) migrate() {
	s.Helper()
	m := s.begin()
	s.arrive(m)
}

// begin begins a migration.
func (s *scene) begin() *v1.VirtualMachineInstanceMigration {
	s.Helper()
	// The console is followed from its Pod on, so that it has the last line before the switch as well.
	s.beats(s.vmi.Status.NodeName, 1)
	m := &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: s.key.Name + "-", Namespace: s.key.Namespace},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: s.key.Name},
	}
	must(s.T, s.c.Client.Create(s.Context(), m))
	return m
}

// arrive waits for the end of a migration, and for heartbeats on the other node.
func (s *scene) arrive(m *v1.VirtualMachineInstanceMigration) {
	s.Helper()
	to := s.other()
	must(s.T, refcluster.Await(s.Context(), patience, "migration "+m.Name+" to succeed", func(ctx context.Context) error {
		if err := s.c.Client.Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
			return err
		}
		if m.Status.Phase != v1.MigrationSucceeded {
			return fmt.Errorf("it is %s, %+v", m.Status.Phase, m.Status.MigrationState)
		}
		return nil
	}))
	s.awaitRunning(to)
	s.beats(to, 3)
}

// TestNode_Drained: "kubectl drain" empties a node by migration.
func TestNode_Drained(t *testing.T) {
	s := boot(t, newGuest("drained"))
	from, to := s.vmi.Status.NodeName, s.other()
	t.Cleanup(func() { _, _ = kubectl("uncordon", from) })
	out, err := kubectl("drain", from, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=150s")
	if err != nil {
		t.Fatalf("drain: %v\n%s", err, out)
	}
	s.awaitRunning(to)
	s.beats(to, 3)
	s.unbroken()
	if out, err := kubectl("uncordon", from); err != nil {
		t.Fatalf("uncordon: %v\n%s", err, out)
	}
}
