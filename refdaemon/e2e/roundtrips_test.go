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
)

var (
	// full runs the tables of which continuous integration runs a part: "make migrations".
	full = flag.Bool("full", false, "run all rows about live migration, which takes an hour")
	// launchers is set in "make launchers". roundTrips is 50 in "make roundtrips".
	launchers  = flag.Bool("launchers", false, "run each guest in a Pod with a libvirt of its own")
	roundTrips = flag.Int("roundtrips", 0, "how often a guest moves there and back")
)

// big leaves a test to its make target.
func big(t *testing.T, run bool, target string) {
	t.Helper()
	if !run {
		t.Skipf("run it by \"make %s\"", target)
	}
}

// diskOfItsOwn gives a guest a disk that only its node has, so that it travels.
func diskOfItsOwn(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "own", VolumeSource: v1.VolumeSource{
		EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("8Mi")}}})
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: "own",
		DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}})
}

// TestAGuestMovesThereAndBackManyTimes: the counter of the guest never goes back and never counts twice,
// on whichever node.
func TestAGuestMovesThereAndBackManyTimes(t *testing.T) {
	big(t, *roundTrips > 0, "roundtrips")
	for name, change := range map[string]func(*v1.VirtualMachineInstance){
		"trips":      func(*v1.VirtualMachineInstance) {},
		"trips-disk": diskOfItsOwn,
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t)
			s := boot(t, c, newGuest(t, name, change))
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
