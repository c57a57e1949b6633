// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/cgroup"
	"github.com/virtloom/virtloom/domain/domainctrl"
	"github.com/virtloom/virtloom/domain/fleet"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/refdaemon/configfile"
)

const (
	// podsDir passes the directory of Pods to a launcher in a container and to its test.
	podsDir   = "VIRTLOOM_TEST_PODS"
	cgroupDir = "/sys/fs/cgroup"
	guestUID  = "0b6f3f0e-5d1c-4a53-9d5e-3a1f8f9f4c11"
	inPod     = "/var/run/kubevirt/hotplug-disks"
)

// emptyDir is a volume of the launcher Pod as the node sees it.
func emptyDir(pods, name string) string {
	return filepath.Join(pods, "pod-1/volumes/kubernetes.io~empty-dir", name)
}

// serveInContainer is a launcher whose container has the Pod's volume for plugged disks.
func serveInContainer() error {
	pods := os.Getenv(podsDir)
	// What is mounted on the node comes here, and nothing goes back.
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""), unix.Mount("none", "/run", "tmpfs", 0, ""))
	for _, m := range []struct{ from, to string }{
		{emptyDir(pods, "hotplug-disks"), inPod}, {emptyDir(pods, "private"), "/var/run/kubevirt-private"},
		{emptyDir(pods, "ephemeral-disks"), "/var/run/kubevirt-ephemeral-disks"},
		{filepath.Join(pods, "claim"), "/var/run/kubevirt-private/vmi-disks/data"}, {filepath.Join(pods, "image"), "/var/run/kubevirt-image-volume/disk_1"},
	} {
		if _, absent := os.Stat(m.from); absent == nil {
			err = errors.Join(err, os.MkdirAll(m.to, 0o755), unix.Mount(m.from, m.to, "", unix.MS_BIND|unix.MS_REC, ""))
		}
	}
	if err != nil {
		return err
	}
	return run(context.Background(), guestFlags(guestUID, "--connect", configfile.MemoryScheme, "--kubevirt-share-dir", filepath.Dir(emptyDir(pods, "sockets"))), io.Discard)
}

// inMountNamespace runs the test again in a mount namespace of its own, where it returns the folder of Pods.
func inMountNamespace(t *testing.T) (pods string, inside bool) {
	t.Helper()
	pods = os.Getenv(podsDir)
	if pods == "" {
		// A socket's address is short, so the folder's name has to be.
		pods, err := os.MkdirTemp("", "vl")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(pods) })
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env, cmd.SysProcAttr = append(os.Environ(), podsDir+"="+pods), &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		var failed *exec.ExitError
		switch {
		case errors.As(err, &failed):
			t.Errorf("%v:\n%s", err, out)
		case err != nil:
			t.Skipf("no mount namespace can be made here: %v", err)
		case strings.Contains(string(out), "--- SKIP"):
			t.Skipf("%s", out)
		}
		return "", false
	}
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")); err != nil {
		t.Fatal(err)
	}
	return pods, true
}

// TestLauncher_HotpluggedVolume has an agent and, in a container, the launcher of a
// guest. It runs in a mount namespace of its own.
func TestLauncher_HotpluggedVolume(t *testing.T) {
	pods, inside := inMountNamespace(t)
	if !inside {
		return
	}
	// What two Pods have: the guest's folders, the other two volumes.
	carried := filepath.Join(pods, "pod-2")
	device := filepath.Join(pods, "device")
	for _, dir := range []string{emptyDir(pods, "sockets"), emptyDir(pods, "hotplug-disks"), emptyDir(pods, "private"),
		filepath.Join(carried, "volumes/kubernetes.io~csi/pv-file/mount"), filepath.Join(carried, "volumeDevices/kubernetes.io~csi")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(carried, "volumes/kubernetes.io~csi/pv-file/mount/disk.img"), make([]byte, 1<<20), 0o600),
		unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 250))), os.Symlink(device, filepath.Join(carried, "volumeDevices/kubernetes.io~csi/pv-block"))); err != nil {
		t.Fatal(err)
	}
	plugAndUnplug(t, pods)
}

// plugAndUnplug gives the guest two volumes, a file and a device, and takes them away.
func plugAndUnplug(t *testing.T, pods string) {
	group := groupOf(t)
	launcherIn(t, pods, group)
	if _, err := cgroup.Set(group, cgroup.Default()); err != nil {
		t.Skipf("the kernel refuses device filters: %v", err)
	}
	o := &node{config: &configfile.NodeConfiguration{NodeName: "node-a", StateDir: t.TempDir(), Launchers: pods, Cgroups: filepath.Dir(group)}}
	vmi := pluggedGuest("file", "block")
	c := connectorOf(t, o, vmi)
	w := &workspace.Workspace{Root: o.config.StateDir}
	if err := o.inPods(w, c, domainctrl.VolumeClaims{Reader: fake.NewClientBuilder().WithObjects(boundClaim("file"), boundClaim("block")).Build()}); err != nil {
		t.Fatal(err)
	}
	f, err := w.Prepare(t.Context(), vmi, domain.Host{Arch: "x86_64", KVM: true})
	if err != nil {
		t.Fatal(err)
	}
	if f.Disks["file"].Inside != inPod+"/file.img" || f.Disks["block"].Inside != inPod+"/block" || !f.Disks["block"].Block {
		t.Errorf("disks %+v", f.Disks)
	}
	pid, err := c.PID(vmi)
	if err != nil {
		t.Fatal(err)
	}
	with := &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{Disks: []libvirtxml.DomainDisk{
		{Source: &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: f.Disks["block"].Inside}}},
	}}}
	for _, d := range []*libvirtxml.Domain{with, nil} {
		if err := w.Devices.Allow(t.Context(), vmi, d); err != nil {
			t.Fatal(err)
		}
		want := cgroup.Default()
		if d != nil {
			want = append(want, cgroup.Rule{Kind: cgroup.Block, Major: 7, Minor: 250, Access: cgroup.All})
		}
		if changed, err := cgroup.Set(group, want); changed || err != nil {
			t.Errorf("the container may open something else than %v: %v", want, err)
		}
	}
	seen := filepath.Join("/proc", strconv.Itoa(pid), "root", "run/kubevirt/hotplug-disks")
	for _, left := range [][]string{{"block", "file.img"}, {"block"}, nil} {
		if err := w.Volumes.Retain(t.Context(), vmi.UID, []string{"block", "file"}[:len(left)]); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(seen)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if err != nil || !slices.Equal(names, left) {
			t.Errorf("the launcher sees %q, %v; want %q", names, err, left)
		}
	}
}

// mountsOf returns the mount points of file systems of a type.
func mountsOf(t *testing.T, kind string) (all []string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[2] == kind {
			all = append(all, f[1])
		}
	}
	return all
}

// groupOf makes a cgroup for a launcher.
func groupOf(t *testing.T) string {
	t.Helper()
	root := ""
	for _, m := range mountsOf(t, "cgroup2") {
		if strings.HasPrefix(m, cgroupDir) {
			root = m
		}
	}
	group, err := os.MkdirTemp(root, "virtloom-test-*")
	if root == "" || err != nil {
		t.Skipf("no cgroup can be made here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Rmdir(group); err != nil {
			t.Error(err)
		}
	})
	return group
}

// launcherIn starts the launcher in a container, with that cgroup if there is one.
func launcherIn(t *testing.T, pods, group string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), podRole+"=contained"), os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	if group != "" {
		dir, err := os.Open(group)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // and all in its PID namespace with it
		_ = cmd.Wait()
	})
	connected(t, filepath.Join(emptyDir(pods, "sockets"), launcher.ReadySocket), nil)
}

// connectorOf connects an agent to the launcher of a VMI.
func connectorOf(t *testing.T, o *node, vmi *v1.VirtualMachineInstance) *launcher.Connector {
	t.Helper()
	find := func(_ context.Context, uid types.UID) (*corev1.Pod, error) {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, UID: uid, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)},
		}}, nil
	}
	c := &launcher.Connector{Pods: o.config.Launchers, NodeName: o.config.NodeName, Find: find, Fleet: &fleet.Fleet{}}
	t.Cleanup(func() { _ = errors.Join(c.Close(), c.Fleet.Close()) })
	if _, err := c.Connect(t.Context(), vmi, nil); err != nil {
		t.Fatal(err)
	}
	return c
}

func boundClaim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
}

// pluggedGuest has a volume for each claim, the last one a device, all carried by pod-2.
func pluggedGuest(claims ...string) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: guestUID}}
	vmi.Status.ActivePods = map[types.UID]string{"pod-1": "node-a"}
	for i, name := range claims {
		mode := corev1.PersistentVolumeFilesystem
		if i == len(claims)-1 {
			mode = corev1.PersistentVolumeBlock
		}
		source := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: true}}
		source.PersistentVolumeClaim.ClaimName = name
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
		vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, v1.VolumeStatus{Name: name, Phase: v1.HotplugVolumeAttachedToNode,
			HotplugVolume: &v1.HotplugVolumeStatus{AttachPodUID: "pod-2"}, PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{VolumeMode: &mode}})
	}
	return vmi
}
