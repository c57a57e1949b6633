// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
)

var rounds = flag.Int("rounds", 10, "round trips of TestMigration_RoundTrips")

// TestMigration_RoundTrips: a guest moves from Pod to Pod and back, no heartbeat is lost or comes twice, what it counts in a claim that
// the nodes share goes on from where it was, and the status has the address of the Pod where it is.
func TestMigration_RoundTrips(t *testing.T) {
	volume := image(t, "count", sharedSize)
	disk := claim(t, "count", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany, volume)
	file := filepath.Join(volume.HostPath.Path, "disk.img")
	s := boot(t, newGuest("traveller", func(vmi *v1.VirtualMachineInstance) { addDisk(vmi, "count", onClaim(disk, false)) }))
	written := s.countsOn(file, 0)
	for range 2 * *rounds {
		s.migrate()
		pod, err := s.pod(t.Context())
		must(t, err)
		s.awaitAddress(pod.Status.PodIP)
		written = s.countsOn(file, written)
	}
	s.unbroken()
	t.Logf("the guest has counted to %d", written)
}

// countsOn waits until the guest counts on in the file, and returns how far; it fails unless that is from what it had counted to before.
func (s *scene) countsOn(file string, before int) (now int) {
	s.Helper()
	first := 0
	must(s.T, refcluster.Await(s.Context(), patience, "the guest to count on in "+file, func(context.Context) error {
		said, err := secondSector(file)
		if err != nil {
			return err
		}
		if _, err := fmt.Sscanf(said, "n=%d", &now); err != nil {
			return fmt.Errorf("it has written %q", said)
		}
		if first == 0 {
			first = now
		}
		if now == first {
			return fmt.Errorf("it has counted to %d", now)
		}
		return nil
	}))
	if first < before || now < first {
		s.Fatalf("the guest had counted to %d in %s, and then there were %d and %d", before, file, first, now)
	}
	return now
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
