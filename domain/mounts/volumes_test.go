// SPDX-License-Identifier: Apache-2.0

package mounts_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/mounts"
)

// instance is a guest with a containerDisk and a plugged claim.
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

func TestTheObjectSaysWhatIsMountedWhere(t *testing.T) {
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
	path, err := v.ContainerDisk(t.Context(), vmi, 0)
	if err != nil {
		t.Fatal(err)
	}
	n.reads(path, "image")
	src, err := v.Hotplugged(t.Context(), vmi, &vmi.Spec.Volumes[1])
	want := domain.DiskSource{Path: filepath.Join(n.folder("hotplug-disks"), "data.img"), Format: "raw", Shared: true}
	if err != nil || src != want {
		t.Fatalf("%+v, %v; want %+v", src, err, want)
	}
	n.reads(src.Path, "two")
	if err := v.Release(t.Context(), guestUID); err != nil || len(n.mounted()) != 0 {
		t.Errorf("%v, left %v", err, n.mounted())
	}
}

func TestATargetHasItsOwnPodsAndCarriers(t *testing.T) {
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

func TestWhatTheObjectDoesNotSayIsWaitedFor(t *testing.T) {
	gone := errors.New("the API server is away")
	for name, tt := range map[string]struct {
		change func(*v1.VirtualMachineInstance, *mounts.Volumes)
		want   error
	}{
		"no Pod here": {func(vmi *v1.VirtualMachineInstance, _ *mounts.Volumes) { vmi.Status.ActivePods = nil }, domain.ErrNotReady},
		"two Pods":    {func(vmi *v1.VirtualMachineInstance, _ *mounts.Volumes) { vmi.Status.ActivePods["33"] = "node-a" }, domain.ErrNotReady},
		"no carrier":  {func(vmi *v1.VirtualMachineInstance, _ *mounts.Volumes) { vmi.Status.VolumeStatus = nil }, domain.ErrNotReady},
		"no volume":   {func(*v1.VirtualMachineInstance, *mounts.Volumes) {}, domain.ErrNotReady},
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
