// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/refcluster"
)

const hot = "hot"

// hotDisk is a disk of the shared claim, hotplugged.
func hotDisk(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: hot, VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: true,
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "first-guest"}}}})
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: hot, Serial: hot,
		DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}}})
}

// filled applies the shared claim and puts an image onto it: the node makes none for what is hotplugged, as that would hide that it is
// not the disk that was meant.
func filled(t *testing.T, c *refcluster.Cluster) {
	t.Helper()
	must(t, c.Apply(t.Context(), manifests, "testdata/disk.yaml"))
	image, err := os.OpenFile(filepath.Join(c.SharedDir(), "first-guest", "disk.img"), os.O_CREATE|os.O_WRONLY, 0o600)
	must(t, err)
	must(t, errors.Join(image.Truncate(8<<20), image.Close()))
}

func TestHotplug_AtStart(t *testing.T) {
	c := cluster(t)
	filled(t, c)
	g := newGuest(t, "plugged")
	hotDisk(g)
	s := boot(t, c, g)
	must(t, c.Await(t.Context(), patience, "the disk to be in the guest", func(ctx context.Context) error {
		return pluggedIn(ctx, c, s, true)
	}))
}

// pluggedIn looks whether the disk is in the guest, its status and its Pod as wanted.
func pluggedIn(ctx context.Context, c *refcluster.Cluster, s *scene, want bool) error {
	vmi, err := c.VMI(ctx, s.key)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(vmi.Status.VolumeStatus, func(v v1.VolumeStatus) bool { return v.Name == hot })
	ready := i >= 0 && vmi.Status.VolumeStatus[i].Phase == v1.VolumeReady && vmi.Status.VolumeStatus[i].Target != ""
	disks, err := c.Node(vmi.Status.NodeName).Virsh(ctx, "dumpxml", "default_"+vmi.Name)
	if err != nil {
		return err
	}
	var pods corev1.PodList
	if err := c.Client.List(ctx, &pods, client.InNamespace("default"), client.MatchingLabels{v1.AppLabel: "hotplug-disk"}); err != nil {
		return err
	}
	inGuest := strings.Contains(disks, "<serial>"+hot+"</serial>")
	if ready == want && (i >= 0) == want && inGuest == want && (len(pods.Items) == 1) == want {
		return nil
	}
	return fmt.Errorf("in the guest: %t, Pods %d, status %+v", inGuest, len(pods.Items), vmi.Status.VolumeStatus)
}

// TestHotplug_Migration changes the spec of a running guest as KubeVirt's subresources do, and sees both halves carry it out: the disk
// moves with the guest there and back, beside one that only the guest's node has, and can be unplugged at the end. Each move is an
// epoch of the lease for each of its nodes.
func TestHotplug_Migration(t *testing.T) {
	c := cluster(t)
	filled(t, c)
	s := boot(t, c, newGuest(t, "plug-moves", diskOfItsOwn))
	s.change(hotDisk)
	inside := func(want bool) {
		t.Helper()
		must(t, c.Await(t.Context(), patience, fmt.Sprintf("the disk to be in the guest: %t", want), func(ctx context.Context) error {
			return pluggedIn(ctx, c, s, want)
		}))
	}
	inside(true)
	for i, name := range []string{"plug-there", "plug-back"} {
		from := s.vmi.Status.NodeName
		m := s.migrate(name)
		s.awaitMigration(m, v1.MigrationSucceeded)
		s.await(v1.Running)
		if s.vmi.Status.NodeName == from {
			t.Fatalf("the guest is on %s still", from)
		}
		s.beats(s.vmi.Status.NodeName, 5)
		inside(true)
		l, err := handoff.Of(s.vmi)
		must(t, err)
		if want := uint64(3 + 2*i); l.State != handoff.Owned || l.Holder != s.vmi.Status.NodeName || l.Epoch != want {
			t.Errorf("the lease is %+v, want it owned at epoch %d", l, want)
		}
	}
	s.single()
	s.change(withoutHotDisk)
	inside(false)
	s.unbroken()
}

func withoutHotDisk(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Volumes = slices.DeleteFunc(vmi.Spec.Volumes, func(v v1.Volume) bool { return v.Name == hot })
	d := &vmi.Spec.Domain.Devices
	d.Disks = slices.DeleteFunc(d.Disks, func(d v1.Disk) bool { return d.Name == hot })
}

// change edits the guest's object.
func (s *scene) change(edit func(*v1.VirtualMachineInstance)) {
	s.Helper()
	vmi, err := s.c.VMI(s.Context(), s.key)
	must(s.T, err)
	was := vmi.DeepCopy()
	edit(vmi)
	must(s.T, s.c.Client.Patch(s.Context(), vmi, client.MergeFrom(was)))
}
