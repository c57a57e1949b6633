// SPDX-License-Identifier: Apache-2.0

package mounts_test

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/mounts"
)

// instance returns a VMI with a containerDisk and a hotplugged claim.
func instance() *v1.VirtualMachineInstance {
	claim := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}
	claim.PersistentVolumeClaim.ClaimName = "claim"
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: guestUID},
		Spec: v1.VirtualMachineInstanceSpec{Volumes: []v1.Volume{
			{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "img", Path: "/images/os"}}},
			{Name: "data", VolumeSource: claim},
		}},
		Status: v1.VirtualMachineInstanceStatus{
			NodeName: "node-a", ActivePods: map[types.UID]string{podUID: "node-a", "77-other": "node-b"},
			VolumeStatus: []v1.VolumeStatus{{Name: "data", HotplugVolume: &v1.HotplugVolumeStatus{AttachPodUID: carrier},
				PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}}}},
		},
	}
}

func TestVolumes_FromVMI(t *testing.T) {
	n := newNode(t)
	n.sidecar(0, map[string]string{"images/os": "image"})
	n.write(n.carried("volumes/kubernetes.io~csi/pv-1/mount/disk.img"), "one")
	n.write(n.carried("volumes/kubernetes.io~csi/pv-2/mount/disk.img"), "two")
	v := mounts.Volumes{Mounter: n.Mounter, Node: "node-a", PersistentVolume: func(_ context.Context, ns, claim string) (string, error) {
		if ns != "ns" || claim != "claim" {
			return "", errors.New("another claim")
		}
		return "pv-2", nil
	}}
	vmi := instance()
	disk, err := v.ContainerDisk(t.Context(), vmi, 0)
	if err != nil || disk.Inside != "/var/run/kubevirt/container-disks/disk_0.img" {
		t.Fatalf("%+v, %v", disk, err)
	}
	n.reads(disk.Path, "image")
	src, err := v.Hotplugged(t.Context(), vmi, &vmi.Spec.Volumes[1])
	want := convert.DiskSource{Path: filepath.Join(n.folder("hotplug-disks"), "data.img"),
		Inside: "/var/run/kubevirt/hotplug-disks/data.img", Format: "raw", Shared: true}
	if err != nil || src != want {
		t.Fatalf("%+v, %v; want %+v", src, err, want)
	}
	n.reads(src.Path, "two")
	if err := v.Release(t.Context(), guestUID); err != nil || len(n.mounted()) != 0 {
		t.Errorf("%v, left %v", err, n.mounted())
	}
}

// TestVolumes_HostPath: a PersistentVolume of type hostPath is looked up where the Pod that carries it has no volume, and only there.
func TestVolumes_HostPath(t *testing.T) {
	n := newNode(t)
	folder := t.TempDir()
	n.write(filepath.Join(folder, "disk.img"), "disk")
	failed := errors.New("the API server is not reachable")
	folders, asked := map[string]error{folder: nil, "": domain.ErrNotReady, "/none": domain.ErrNotReady, "/failed": failed}, 0
	for at, want := range folders {
		v := mounts.Volumes{Mounter: n.Mounter, Node: "node-a",
			PersistentVolume: func(context.Context, string, string) (string, error) { return "pv-1", nil },
			HostPath: func(_ context.Context, volume string) (string, error) {
				asked++
				if at == "/failed" || volume != "pv-1" {
					return "", failed
				}
				return at, nil
			}}
		vmi := instance()
		src, err := v.Hotplugged(t.Context(), vmi, &vmi.Spec.Volumes[1])
		if !errors.Is(err, want) {
			t.Errorf("%q: %+v, %v", at, src, err)
		}
		if want == nil {
			n.reads(src.Path, "disk")
			before := asked
			if again, err := v.Hotplugged(t.Context(), vmi, &vmi.Spec.Volumes[1]); err != nil || again != src || asked != before {
				t.Errorf("again: %+v, %v, asked %d times more", again, err, asked-before)
			}
		}
		if err := v.Release(t.Context(), guestUID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestVolumes_MigrationTarget(t *testing.T) {
	n := newNode(t)
	vmi := instance()
	vmi.Status.ActivePods = map[types.UID]string{podUID: "node-b", "77-other": "node-a"}
	vmi.Status.VolumeStatus[0].HotplugVolume.AttachPodUID = "99-source"
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{TargetNode: "node-b", TargetAttachmentPodUID: carrier}
	n.write(n.carried("volumes/kubernetes.io~csi/pv-1/mount/disk.img"), "disk")
	src, err := mounts.Volumes{Mounter: n.Mounter, Node: "node-b"}.Hotplugged(t.Context(), vmi, &vmi.Spec.Volumes[1])
	if err != nil {
		t.Fatal(err)
	}
	n.reads(src.Path, "disk")
}

func TestVolumes_IncompleteStatus(t *testing.T) {
	gone := errors.New("the API server is not reachable")
	for name, tt := range map[string]struct {
		change func(*v1.VirtualMachineInstance, *mounts.Volumes)
		want   error
	}{
		"no Pod here": {func(vmi *v1.VirtualMachineInstance, _ *mounts.Volumes) { vmi.Status.ActivePods = nil }, domain.ErrNotReady},
		"two Pods":    {func(vmi *v1.VirtualMachineInstance, _ *mounts.Volumes) { vmi.Status.ActivePods["33"] = "node-a" }, domain.ErrNotReady},
		"no carrier":  {func(vmi *v1.VirtualMachineInstance, _ *mounts.Volumes) { vmi.Status.VolumeStatus = nil }, domain.ErrNotReady},
		"no volume":   {func(*v1.VirtualMachineInstance, *mounts.Volumes) {}, domain.ErrNotReady},
		"no Pod connected to": {func(_ *v1.VirtualMachineInstance, v *mounts.Volumes) {
			v.Pod = func(*v1.VirtualMachineInstance) (types.UID, error) { return "", gone }
		}, gone},
		"no launcher": {func(_ *v1.VirtualMachineInstance, v *mounts.Volumes) {
			v.PID = func(*v1.VirtualMachineInstance) (int, error) { return 0, nil }
		}, domain.ErrNotReady},
		"unknown claim": {func(_ *v1.VirtualMachineInstance, v *mounts.Volumes) {
			v.PersistentVolume = func(context.Context, string, string) (string, error) { return "", gone }
		}, gone},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			v, vmi := mounts.Volumes{Mounter: n.Mounter, Node: "node-a"}, instance()
			tt.change(vmi, &v)
			if src, err := v.Hotplugged(t.Context(), vmi, &vmi.Spec.Volumes[1]); !errors.Is(err, tt.want) {
				t.Errorf("%+v, %v", src, err)
			}
		})
	}
	v := mounts.Volumes{Mounter: newNode(t).Mounter, Node: "node-a"}
	for _, index := range []int{-1, 1, 2} {
		if _, err := v.ContainerDisk(t.Context(), instance(), index); !errors.Is(err, domain.ErrInvalid) {
			t.Errorf("volume %d: %v", index, err)
		}
	}
}

const inLauncher = "/var/run/kubevirt/hotplug-disks"

func TestVolumes_VisibleInLauncher(t *testing.T) {
	n := newNode(t)
	launcher := startContainer(t, t.TempDir(), n.folder("hotplug-disks")+":"+inLauncher)
	n.write(n.carried("volumes/kubernetes.io~csi/pv-1/mount/disk.img"), "disk")
	dev := filepath.Join(t.TempDir(), "sdx")
	n.mkdir(n.carried("volumeDevices/kubernetes.io~csi"))
	if err := errors.Join(unix.Mknod(dev, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 3))), os.Symlink(dev, n.carried("volumeDevices/kubernetes.io~csi/pv-2"))); err != nil {
		t.Fatal(err)
	}
	v := mounts.Volumes{Mounter: n.Mounter, Node: "node-a", Witness: func(*v1.VirtualMachineInstance) (int, error) { return launcher.cmd.Process.Pid, nil }}
	v.Pod = func(*v1.VirtualMachineInstance) (types.UID, error) { return podUID, nil }
	vmi, block := instance(), corev1.PersistentVolumeBlock
	vmi.Status.ActivePods["33"] = "node-a" // a Pod whose launcher was killed
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "raw", VolumeSource: vmi.Spec.Volumes[1].VolumeSource})
	vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, v1.VolumeStatus{Name: "raw", HotplugVolume: &v1.HotplugVolumeStatus{AttachPodUID: carrier},
		PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{VolumeMode: &block}})
	for i, want := range map[int]string{1: inLauncher + "/data.img", 2: inLauncher + "/raw"} {
		if src, err := v.Hotplugged(t.Context(), vmi, &vmi.Spec.Volumes[i]); err != nil || src.Inside != want || src.Block != (i == 2) {
			t.Fatalf("%+v, %v; want %s", src, err, want)
		}
	}
	sees := func(want ...string) {
		t.Helper()
		left, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(launcher.cmd.Process.Pid), "root", inLauncher))
		if err != nil || len(left) != len(want) {
			t.Fatalf("the launcher sees %v, %v; want %q", left, err, want)
		}
		for i, w := range want {
			if left[i].Name() != w {
				t.Errorf("the launcher sees %v, want %q", left, want)
			}
		}
	}
	if got := launcher.do("read", inLauncher+"/data.img"); got != `"disk" <nil>` {
		t.Errorf("the launcher reads %s", got)
	}
	sees("data.img", "raw")
	// A later process finds the volumes of this one.
	later := mounts.Volumes{Mounter: &mounts.Mounter{Pods: n.Pods, Records: n.Records}, Node: "node-a"}
	for _, names := range [][]string{{"raw", "data", "root"}, {"raw"}, {"raw"}, nil, {"data"}} {
		if err := later.Retain(t.Context(), guestUID, names); err != nil {
			t.Fatal(err)
		}
		switch {
		case len(names) == 3:
			sees("data.img", "raw")
		case len(names) == 1 && names[0] == "raw":
			sees("raw")
		default:
			sees()
		}
	}
	if left := n.mounted(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	n.reads(n.carried("volumes/kubernetes.io~csi/pv-1/mount/disk.img"), "disk")
}

func TestRetain_KeepsContainerDisks(t *testing.T) {
	n := newNode(t)
	n.sidecar(0, map[string]string{"disk/os.img": "image"})
	path, err := n.ContainerDisk(guest, mounts.ContainerDisk{})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Retain(guestUID, nil); err != nil {
		t.Fatal(err)
	}
	n.reads(path, "image")
	if err := n.Retain("../x", nil); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("a path is accepted as UID: %v", err)
	}
}

// TestVolumes_MissingPropagation has launchers to which mounts do not propagate: the file below a
// mount is empty, and must not become a disk.
func TestVolumes_MissingPropagation(t *testing.T) {
	elsewhere := t.TempDir()
	if err := os.WriteFile(filepath.Join(elsewhere, "data.img"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		binds []string
		pid   int
		want  error
	}{
		"another file is there": {binds: []string{elsewhere + ":" + inLauncher}, want: domain.ErrInvalid},
		"nothing is there":      {want: domain.ErrNotReady},
		"it cannot be seen":     {pid: -1, want: domain.ErrNotReady},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.write(n.carried("volumes/kubernetes.io~csi/pv-1/mount/disk.img"), "disk")
			launcher := startContainer(t, t.TempDir(), tt.binds...)
			v := mounts.Volumes{Mounter: n.Mounter, Node: "node-a", Witness: func(*v1.VirtualMachineInstance) (int, error) {
				return cmp.Or(tt.pid, launcher.cmd.Process.Pid), nil
			}}
			vmi := instance()
			if src, err := v.Hotplugged(t.Context(), vmi, &vmi.Spec.Volumes[1]); !errors.Is(err, tt.want) {
				t.Errorf("%+v, %v; want %v", src, err, tt.want)
			}
		})
	}
}
