// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain/cgroup"
	"github.com/virtloom/virtloom/internal/refcluster"
)

// hotSize is the size of the plugged claim of file system mode.
const hotSize = 10 << 20

// TestVolumes_Hotplug: claims of file system and block mode are plugged into a running guest by a Pod that the kubelet runs, in a
// namespace of Pod Security level restricted, by a change of the spec that only the control plane may make. The guest writes to both,
// before and after a migration to the other node and back. One is unplugged, and plugged again. Nothing is left of them on the nodes.
func TestVolumes_Hotplug(t *testing.T) {
	nightly(t)
	loop, blockFile, number := loopDevice(t, "count-block")
	source := image(t, "count-files", hotSize)
	files := claim(t, "count-files", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany, source)
	block := claim(t, "count-block", corev1.PersistentVolumeBlock, corev1.ReadWriteMany, corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: loop}})
	s := boot(t, newGuest("plugged"))
	plugFiles := func(vmi *v1.VirtualMachineInstance) { plug(vmi, "hot-files", files) }
	plugBlock := func(vmi *v1.VirtualMachineInstance) { plug(vmi, "hot-block", block) }
	device := cgroup.Rule{Kind: cgroup.Block, Major: 7, Minor: number, Access: cgroup.All}

	if err := s.changedBy(s.c.Client, plugFiles); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		t.Errorf("a user who changes the spec gets %v, want a refusal", err)
	}
	s.change(plugFiles)
	s.says("text=virtloom-count-files")
	s.plugged("hot-files")
	s.change(plugBlock)
	disk := nameOf(s.says(fmt.Sprintf("size=%d text=virtloom-count-block", blockSize)))
	s.plugged("hot-block", "hot-files")
	s.opens(device)
	s.change(func(vmi *v1.VirtualMachineInstance) { unplug(vmi, "hot-block") })
	s.says("virtloom-disk " + disk + " removed")
	s.plugged("hot-files")
	s.opens()
	s.change(plugBlock)
	s.plugged("hot-block", "hot-files")
	for range 2 {
		s.counts(filepath.Join(source.HostPath.Path, "disk.img"), blockFile)
		s.migrate()
		s.plugged("hot-block", "hot-files")
		s.opens(device)
	}
	s.counts(filepath.Join(source.HostPath.Path, "disk.img"), blockFile)
	for _, line := range s.con.Lines() {
		if strings.Contains(line, "cannot be written") {
			t.Errorf("the guest says %q", line)
		}
	}
	s.unbroken()
	pods, err := s.pods(t.Context())
	must(t, err)
	marks := []string{files, block}
	for i := range pods {
		marks = append(marks, string(pods[i].UID), containerID(t, pods[i]))
	}
	if s.noMounts(t.Context(), marks) == nil || noDevices(marks) == nil || noGroups(marks) == nil {
		t.Error("what is there now is not found")
	}
	s.remove()
	s.vanished(marks)
}

// TestVolumes_HotplugOfLink: a claim whose disk.img is a symbolic link is not attached, the VMI's status has the reason, and the guest
// runs on; once there is an image, it is attached.
func TestVolumes_HotplugOfLink(t *testing.T) {
	nightly(t)
	source := image(t, "linked", hotSize)
	disk := filepath.Join(source.HostPath.Path, "disk.img")
	elsewhere := disk + ".real"
	must(t, errors.Join(os.Rename(disk, elsewhere), os.Symlink(elsewhere, disk)))
	files := claim(t, "linked", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany, source)
	s := boot(t, newGuest("linked"))
	s.change(func(vmi *v1.VirtualMachineInstance) { plug(vmi, "linked", files) })
	s.awaitStatus("the reason", func(vmi *v1.VirtualMachineInstance) error {
		for _, v := range vmi.Status.VolumeStatus {
			if v.Name == "linked" && v.Reason == "HotplugFailed" && strings.Contains(v.Message, "symbolic link") && v.Target == "" {
				return nil
			}
		}
		return fmt.Errorf("it is %+v", vmi.Status.VolumeStatus)
	})
	s.beats("", 3)
	must(t, os.Rename(elsewhere, disk))
	s.says("text=virtloom-linked")
	s.plugged("linked")
	s.unbroken()
}

// nameOf returns the name of the disk that a line of the console is about.
func nameOf(line string) string {
	_, rest, _ := strings.Cut(line, "virtloom-disk ")
	name, _, _ := strings.Cut(rest, " ")
	return name
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

// change edits the VMI, as the subresources of KubeVirt do, in the name of the service account that serves them.
func (s *scene) change(edit func(*v1.VirtualMachineInstance)) {
	s.Helper()
	api, err := client.New(s.c.Rig.Config("system:serviceaccount:kubevirt:kubevirt-apiserver"), client.Options{Scheme: s.c.Client.Scheme()})
	must(s.T, err)
	must(s.T, s.changedBy(api, edit))
}

func (s *scene) changedBy(who client.Client, edit func(*v1.VirtualMachineInstance)) error {
	vmi := &v1.VirtualMachineInstance{}
	if err := who.Get(s.Context(), s.key, vmi); err != nil {
		return err
	}
	was := vmi.DeepCopy()
	edit(vmi)
	return who.Patch(s.Context(), vmi, client.MergeFrom(was))
}

// plugged waits until these volumes and no other are attached, by one Pod on the guest's node.
func (s *scene) plugged(names ...string) {
	s.Helper()
	s.awaitStatus(fmt.Sprintf("%q to be plugged in", names), func(vmi *v1.VirtualMachineInstance) error {
		pods, err := attachments(s.Context(), s.c.Client)
		if err != nil {
			return err
		}
		if len(pods) != 1 || pods[0].Spec.NodeName != vmi.Status.NodeName {
			return fmt.Errorf("there are %d Pods, the guest is on %s", len(pods), vmi.Status.NodeName)
		}
		var ready []string
		for _, v := range vmi.Status.VolumeStatus {
			if v.HotplugVolume == nil {
				continue
			}
			if v.Phase != v1.VolumeReady || v.Target == "" || v.HotplugVolume.AttachPodName != pods[0].Name {
				return fmt.Errorf("status %+v of %+v", v, v.HotplugVolume)
			}
			ready = append(ready, v.Name)
		}
		if slices.Sort(ready); !slices.Equal(ready, names) {
			return fmt.Errorf("%q are plugged in", ready)
		}
		return nil
	})
}

// attachments lists the Pods that carry plugged volumes.
func attachments(ctx context.Context, c client.Client) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := c.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{v1.AppLabel: "hotplug-disk"})
	return pods.Items, err
}

// counts waits until the guest has written twice to each of the images.
func (s *scene) counts(images ...string) {
	s.Helper()
	for _, file := range images {
		first := ""
		must(s.T, refcluster.Await(s.Context(), patience, "the guest to write to "+file, func(context.Context) error {
			said, err := secondSector(file)
			switch {
			case err != nil:
				return err
			case first == "" && strings.HasPrefix(said, "n="):
				first = said
			case first != "" && said != first:
				return nil
			}
			return fmt.Errorf("it has written %q", said)
		}))
	}
}

// secondSector returns the text in the second sector of a disk.
func secondSector(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	raw := make([]byte, 512)
	_, err = f.ReadAt(raw, int64(len(raw)))
	return strings.TrimRight(string(raw), "\n\x00"), err
}

// vanished waits until the API has no Pod of plugged volumes any more, and the nodes no mount, device or control group with such a mark.
func (s *scene) vanished(marks []string) {
	s.Helper()
	must(s.T, refcluster.Await(s.Context(), patience, "nothing to be left of the volumes", func(ctx context.Context) error {
		left, err := attachments(ctx, s.c.Client)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("there are %d Pods", len(left))
		}
		return errors.Join(err, s.noMounts(ctx, marks), noDevices(marks), noGroups(marks))
	}))
}

// noMounts reports what the nodes have mounted with such a mark, and what the agents have recorded.
func (s *scene) noMounts(ctx context.Context, marks []string) error {
	for _, n := range s.c.Nodes {
		mounted, err := n.Command(ctx, "cat", "/proc/self/mountinfo").Output()
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(mounted)) {
			if m := marked(line, marks); m != "" {
				return fmt.Errorf("%s has mounted %s of %s", n.Name(), line, m)
			}
		}
		records, err := os.ReadDir(n.HostPath("/var/lib/virtloom/mounts"))
		if err == nil && len(records) > 0 {
			err = fmt.Errorf("the agent of %s has records of mounts: %v", n.Name(), records)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func marked(text string, marks []string) string {
	i := slices.IndexFunc(marks, func(m string) bool { return strings.Contains(text, m) })
	if i < 0 {
		return ""
	}
	return marks[i]
}

// noDevices reports a loop device that a kubelet has put on top of a volume that is still mapped. One that it forgets once the volume is
// not mapped any more has no path that distinguishes it.
func noDevices(marks []string) error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return err
	}
	for _, file := range files {
		// It may be gone meanwhile.
		raw, err := os.ReadFile(file)
		if on := string(raw); err == nil && strings.Contains(on, "/volumeDevices/") && marked(on, marks) != "" {
			return fmt.Errorf("%s is on %s", file, on)
		}
	}
	return nil
}

// noGroups reports a control group of a container, which has the rules of its devices.
func noGroups(marks []string) error {
	return filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // ended meanwhile
		case err == nil && d.IsDir() && marked(d.Name(), marks) != "":
			return fmt.Errorf("there is %s", path)
		}
		return err
	})
}
