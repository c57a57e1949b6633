// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// hotSize is the size of the plugged claim of file system mode.
const hotSize = 10 << 20

// TestVolumes_Hotplug: claims of file system and block mode are plugged into a running guest by a Pod that the kubelet runs, in a
// namespace of Pod Security level restricted; they move with the guest, are unplugged, and nothing is left of them.
func TestVolumes_Hotplug(t *testing.T) {
	if !*everyVolume {
		return // nightly
	}
	loop, _ := loopDevice(t)
	files := claim(t, "hot-files", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany, image(t, "hot", hotSize))
	block := claim(t, "hot-block", corev1.PersistentVolumeBlock, corev1.ReadWriteMany, corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: loop}})
	t.Cleanup(func() { awaitNoLoop(t, block) }) // after the guest is gone
	s := boot(t, newGuest("plugged"))
	s.change(func(vmi *v1.VirtualMachineInstance) { plug(vmi, "hot-files", files) })
	lines := []string{s.says("text=virtloom-hot")}
	s.plugged("hot-files")
	s.change(func(vmi *v1.VirtualMachineInstance) { plug(vmi, "hot-block", block) })
	lines = append(lines, s.says(fmt.Sprintf("size=%d text=virtloom-block", blockSize)))
	s.plugged("hot-files", "hot-block")
	s.migrate()
	s.plugged("hot-files", "hot-block")
	s.change(func(vmi *v1.VirtualMachineInstance) { unplug(vmi, "hot-block") })
	s.plugged("hot-files")
	s.change(func(vmi *v1.VirtualMachineInstance) { unplug(vmi, "hot-files") })
	s.plugged()
	for _, line := range lines {
		_, rest, _ := strings.Cut(line, "virtloom-disk ")
		disk, _, _ := strings.Cut(rest, " ")
		s.says("virtloom-disk " + disk + " removed")
	}
	s.unbroken()
}

func plug(vmi *v1.VirtualMachineInstance, name, claim string) {
	addDisk(vmi, name, onClaim(claim, true))
	d := vmi.Spec.Domain.Devices.Disks
	d[len(d)-1].Disk.Bus = v1.DiskBusSCSI
}

func unplug(vmi *v1.VirtualMachineInstance, name string) {
	vmi.Spec.Volumes = slices.DeleteFunc(vmi.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
	d := &vmi.Spec.Domain.Devices
	d.Disks = slices.DeleteFunc(d.Disks, func(d v1.Disk) bool { return d.Name == name })
}

// change edits the VMI, as the subresources of KubeVirt do.
func (s *scene) change(edit func(*v1.VirtualMachineInstance)) {
	s.Helper()
	vmi := &v1.VirtualMachineInstance{}
	must(s.T, s.c.Client.Get(s.Context(), s.key, vmi))
	was := vmi.DeepCopy()
	edit(vmi)
	must(s.T, s.c.Client.Patch(s.Context(), vmi, client.MergeFrom(was)))
}

// plugged waits until these volumes and no other are plugged in, by one Pod on the guest's node, or none without any.
func (s *scene) plugged(names ...string) {
	s.Helper()
	s.awaitStatus(fmt.Sprintf("%q to be plugged in", names), func(vmi *v1.VirtualMachineInstance) error {
		var pods corev1.PodList
		if err := s.c.Client.List(s.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{v1.AppLabel: "hotplug-disk"}); err != nil {
			return err
		}
		var ready []string
		for _, v := range vmi.Status.VolumeStatus {
			if v.HotplugVolume == nil {
				continue
			}
			if v.Phase != v1.VolumeReady || v.Target == "" || len(pods.Items) != 1 || v.HotplugVolume.AttachPodName != pods.Items[0].Name {
				return fmt.Errorf("%d Pods, status %+v of %+v", len(pods.Items), v, v.HotplugVolume)
			}
			ready = append(ready, v.Name)
		}
		slices.Sort(ready)
		if !slices.Equal(ready, slices.Sorted(slices.Values(names))) || len(pods.Items) != min(len(names), 1) {
			return fmt.Errorf("%d Pods for %q", len(pods.Items), ready)
		}
		if len(names) > 0 && pods.Items[0].Spec.NodeName != vmi.Status.NodeName {
			return fmt.Errorf("the Pod is on %s, the guest on %s", pods.Items[0].Spec.NodeName, vmi.Status.NodeName)
		}
		return nil
	})
}
