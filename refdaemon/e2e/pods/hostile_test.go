// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
)

// TestTenant_Disks: images and claims that are no disks, or that lead elsewhere, are refused with a condition that says why; one that
// claims to be larger than any node boots. A guest beside them notices nothing.
func TestTenant_Disks(t *testing.T) {
	nightly(t)
	stays := boot(t, newGuest("stays"))
	folder, err := cluster(t).Shared("link")
	must(t, err)
	must(t, os.Symlink("/etc/passwd", filepath.Join(folder, "disk.img")))
	linked := claim(t, "link", corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce, corev1.PersistentVolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: folder}})
	rigtest.LoadBusybox(t, cluster(t).Nodes...)
	gates(t, "Sidecar")
	for name, tt := range map[string]struct {
		vmi  func(*v1.VirtualMachineInstance)
		want string
	}{
		"claim with a link":         {func(vmi *v1.VirtualMachineInstance) { addDisk(vmi, "data", onClaim(linked, false)) }, "not a regular file"},
		"image without a disk":      {onImage(t, "none", "/other", "raw", "1M"), "/disk"},
		"image with a backing file": {onImage(t, "backing", "/disk/disk.qcow2", "qcow2", "-u", "-F", "raw", "-b", "/etc/passwd", "1M"), "refers to another file"},
		"huge image":                {onImage(t, "huge", "/disk/disk.qcow2", "qcow2", "64T"), ""},
		"hook sidecar that hangs": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Annotations = map[string]string{"hooks.kubevirt.io/hookSidecars": `[{"image": "` + rigtest.Busybox + `", "args": ["-c", "sleep 600"]}]`}
		}, "does not run hook sidecars"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			vmi := newGuest("tenant", tt.vmi)
			if tt.want == "" {
				boot(t, vmi).says(fmt.Sprintf("size=%d", int64(64)<<40))
				return
			}
			create(t, vmi).refused(tt.want)
		})
	}
	stays.beats("", 3)
	stays.unbroken()
}

// gates sets the feature gates of the cluster until the test is over.
func gates(t *testing.T, names ...string) {
	t.Helper()
	c := cluster(t)
	set := func(names []string) {
		kv := &v1.KubeVirt{}
		must(t, c.Client.Get(context.Background(), client.ObjectKey{Namespace: "kubevirt", Name: "kubevirt"}, kv))
		was := kv.DeepCopy()
		kv.Spec.Configuration.DeveloperConfiguration.FeatureGates = names
		must(t, c.Client.Patch(context.Background(), kv, client.MergeFrom(was)))
	}
	set(names)
	t.Cleanup(func() { set(nil) })
}

// onImage gives the nodes an image with a file that qemu-img makes, and returns what makes it a VMI's disk.
func onImage(t *testing.T, name, path, format string, args ...string) func(*v1.VirtualMachineInstance) {
	t.Helper()
	file, archive := filepath.Join(t.TempDir(), name), filepath.Join(t.TempDir(), name+".tar")
	at := len(args) - 1 // the size comes after the file
	argv := append(append([]string{"create", "-q", "-f", format}, args[:at]...), file, args[at])
	if out, err := exec.CommandContext(t.Context(), "qemu-img", argv...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	image := rig.Image{Name: "virtloom.test/" + name + ":1", Files: map[string]string{path: file}}
	must(t, rig.WriteImage(archive, image))
	for _, n := range cluster(t).Nodes {
		must(t, n.LoadImages(t.Context(), archive))
	}
	return func(vmi *v1.VirtualMachineInstance) {
		addDisk(vmi, "data", v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: image.Name, ImagePullPolicy: corev1.PullNever}})
	}
}

// refused waits until the VMI says why its guest does not start.
func (s *scene) refused(why string) {
	s.Helper()
	s.awaitStatus("the VMI to say "+why, func(vmi *v1.VirtualMachineInstance) error {
		for _, c := range vmi.Status.Conditions {
			if c.Type == v1.VirtualMachineInstanceSynchronized && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, why) {
				return nil
			}
		}
		return fmt.Errorf("it is %s, conditions %+v", vmi.Status.Phase, vmi.Status.Conditions)
	})
	if s.vmi.Status.Phase == v1.Running {
		s.Errorf("it runs")
	}
}

// vandal replaces what it finds in the volumes that it shares with a launcher: each file by a link to one of the node, or by a pipe.
const vandal = `
for file in $(busybox find /private /disks /sockets -mindepth 1 -maxdepth 3 ! -type d 2>/dev/null); do
  busybox rm -f "$file"
  busybox ln -s /etc/passwd "$file" || busybox mkfifo "$file"
  busybox mkfifo "$file.fifo"
done
for folder in $(busybox find /private /disks /sockets -mindepth 1 -maxdepth 1 -type d 2>/dev/null); do
  busybox mv "$folder" "$folder.moved" && busybox ln -s /etc "$folder"
done
echo done
sleep 600`

// TestTenant_DebugContainer: a debug container in the launcher's Pod destroys all that it shares with the launcher. The agent, which
// starts anew, does not wait for it for ever and changes nothing on the node; other guests start; the VMI can be deleted.
func TestTenant_DebugContainer(t *testing.T) {
	nightly(t)
	c := cluster(t)
	rigtest.LoadBusybox(t, c.Nodes...)
	s := boot(t, newGuest("debugged"))
	before := s.passwd()
	s.debug(vandal)
	node := s.vmi.Status.NodeName
	s.restore(s.killContainers("virtloom-node", node))
	beside := boot(t, newGuest("beside", func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}))
	beside.beats("", 3)
	if after := s.passwd(); after != before {
		t.Errorf("the node's file is %s, and was %s", after, before)
	}
	must(t, client.IgnoreNotFound(c.Client.Delete(t.Context(), s.vmi.DeepCopy())))
	s.remove()
	beside.unbroken()
}

// passwd returns owner, mode and checksum of a file of the VMI's node.
func (s *scene) passwd() string {
	s.Helper()
	out, err := s.c.Node(s.vmi.Status.NodeName).Command(context.Background(), "sh", "-c", "stat -c '%u %g %a' /etc/passwd; sha256sum /etc/passwd").Output()
	must(s.T, err)
	return string(out)
}

// debug runs a script in an ephemeral container of the launcher's Pod, with the launcher's user and volumes, and waits until it says
// that it is done.
func (s *scene) debug(script string) {
	s.Helper()
	pods, err := s.pods(s.Context())
	must(s.T, err)
	pod := &pods[0]
	user := int64(launcherUser)
	pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, corev1.EphemeralContainer{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "vandal", Image: rigtest.Busybox, ImagePullPolicy: corev1.PullNever, Command: []string{"/bin/sh", "-c", script},
			VolumeMounts: []corev1.VolumeMount{{Name: "private", MountPath: "/private"}, {Name: "ephemeral-disks", MountPath: "/disks"}, {Name: "sockets", MountPath: "/sockets"}},
			SecurityContext: &corev1.SecurityContext{RunAsUser: &user, RunAsNonRoot: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
				Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		},
	})
	api := s.c.Clientset.CoreV1().Pods(pod.Namespace)
	_, err = api.UpdateEphemeralContainers(s.Context(), pod.Name, pod, metav1.UpdateOptions{})
	must(s.T, err)
	must(s.T, refcluster.Await(s.Context(), patience, "the debug container to be done", func(ctx context.Context) error {
		out, err := api.GetLogs(pod.Name, &corev1.PodLogOptions{Container: "vandal"}).DoRaw(ctx)
		if err == nil && !strings.Contains(string(out), "done\n") {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	}))
}

// TestTenant_GuestTalks: a guest floods its console, and another one answers the questions of the agent with garbage without end.
// What they may occupy on the node is bounded, and a third guest notices nothing.
func TestTenant_GuestTalks(t *testing.T) {
	nightly(t)
	guests := bootAll(t, newGuest("stays"), newGuest("floods", saying("flood=1")), newGuest("babbles", withAgent, saying("babble=1")))
	stays, floods, babbles := guests[0], guests[1], guests[2]
	babbles.says("virtloom-babble")
	largest := int64(0)
	must(t, refcluster.Await(t.Context(), 2*patience, "the log of the console to be cut", func(context.Context) error {
		size, err := floods.consoleLog()
		if err != nil || size < largest {
			return err
		}
		largest = size
		return fmt.Errorf("it has %d bytes", size)
	}))
	if largest > 16<<20 {
		t.Errorf("the log had %d bytes", largest)
	}
	for _, s := range guests {
		s.awaitRunning("")
		s.beats("", 3)
	}
	stays.unbroken()
}

// consoleLog returns the bytes on disk of the console's log in the launcher's Pod.
func (s *scene) consoleLog() (size int64, err error) {
	pods, err := s.pods(s.Context())
	if err != nil {
		return 0, err
	}
	out, err := s.c.Node(s.vmi.Status.NodeName).Command(s.Context(), "stat", "-c", "%b", fmt.Sprintf(
		"/var/lib/kubelet/pods/%s/volumes/kubernetes.io~empty-dir/private/%s/virt-serial0-log", pods[0].UID, s.vmi.UID)).Output()
	if err == nil {
		_, err = fmt.Sscan(string(out), &size)
	}
	return size * 512, err
}

// saying adds a word to the guest's kernel command line.
func saying(word string) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Firmware.KernelBoot.KernelArgs += " " + word }
}
