// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/refcluster"
)

var (
	// full runs the tables of which continuous integration runs a part: "make nightly ONLY=migrations".
	full = flag.Bool("full", false, "run all rows about live migration, which takes half an hour")
	// launchers is set in "make e2e" and "make nightly ONLY=launchers"; roundTrips is 50 there.
	launchers  = flag.Bool("launchers", false, "run each guest in a Pod with a libvirt of its own")
	roundTrips = flag.Int("roundtrips", 1, "how often a guest moves there and back")
)

// part returns what is run of a table without -full.
func part[row any](all map[string]row, names ...string) map[string]row {
	if *full {
		return all
	}
	some := map[string]row{}
	for _, name := range names {
		some[name] = all[name]
	}
	return some
}

// diskOfItsOwn gives a guest a disk that only its node has, so that it travels.
func diskOfItsOwn(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "own", VolumeSource: v1.VolumeSource{
		EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("8Mi")}}})
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: "own",
		DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}})
}

// diskOfTheCluster gives a guest the disk of the manifests, which all nodes see.
func diskOfTheCluster(t *testing.T, c *refcluster.Cluster) func(*v1.VirtualMachineInstance) {
	t.Helper()
	must(t, c.Apply(t.Context(), manifests, "testdata/disk.yaml"))
	return func(vmi *v1.VirtualMachineInstance) {
		whole := example(t)
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, whole.Spec.Volumes[0])
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, whole.Spec.Domain.Devices.Disks[0])
	}
}

// TestMigration_RepeatedRoundTrips: the counter of the guest never goes back and never counts twice,
// on whichever node.
func TestMigration_RepeatedRoundTrips(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *refcluster.Cluster) func(*v1.VirtualMachineInstance){
		"trips-own-disk":    func(*testing.T, *refcluster.Cluster) func(*v1.VirtualMachineInstance) { return diskOfItsOwn },
		"trips-shared-disk": diskOfTheCluster,
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t)
			s := boot(t, c, newGuest(t, name, change(t, c)))
			began := time.Now()
			for i := range 2 * *roundTrips {
				from := s.vmi.Status.NodeName
				m := s.migrate(fmt.Sprintf("%s-%d", name, i))
				s.awaitMigration(m, v1.MigrationSucceeded)
				s.await(v1.Running)
				if s.vmi.Status.NodeName == from {
					t.Fatalf("move %d: the guest is on %s still", i, from)
				}
				s.beats(s.vmi.Status.NodeName, 1)
				s.unbroken()
			}
			s.single()
			l, err := handoff.Of(s.vmi)
			must(t, err)
			if l.State != handoff.Owned || l.Holder != s.vmi.Status.NodeName {
				t.Errorf("the lease is %+v", l)
			}
			t.Logf("%d moves in %v", 2**roundTrips, time.Since(began).Round(time.Second))
		})
	}
}
