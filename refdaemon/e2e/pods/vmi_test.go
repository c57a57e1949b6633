// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/refcluster"
	"github.com/virtloom/virtloom/internal/rig"
)

// TestVMI_Restricted: a plain VMI runs in a namespace of Pod Security level restricted, with kernel and disk from images, the host name
// of cloud-init, and the address of its Pod.
func TestVMI_Restricted(t *testing.T) {
	s := boot(t, newGuest("plain"))
	s.says("virtloom-disk vda size=16777216")
	s.says("user-data=#cloud-config")
	s.says("virtloom-hostname " + hostName("plain"))
	pods, err := s.pods(t.Context())
	must(t, err)
	if len(pods) != 1 {
		t.Fatalf("%d Pods, want one", len(pods))
	}
	s.awaitAddress(pods[0].Status.PodIP)
	s.awaitChecksums()
	compute := pods[0].Spec.Containers[slices.IndexFunc(pods[0].Spec.Containers, func(c corev1.Container) bool { return c.Name == "compute" })]
	if pods[0].Namespace != namespace || compute.SecurityContext == nil || compute.SecurityContext.Privileged != nil && *compute.SecurityContext.Privileged {
		t.Errorf("the Pod is in %s with %+v", pods[0].Namespace, compute.SecurityContext)
	}
}

// awaitChecksums waits until the VMI's status has the checksums of its kernel and of its disk.
func (s *scene) awaitChecksums() {
	s.Helper()
	sum := func(name string) uint32 {
		raw, err := os.ReadFile(filepath.Join(programs(s.T), "guest", name))
		must(s.T, err)
		return crc32.ChecksumIEEE(raw)
	}
	s.awaitStatus("the checksums of its images", func(vmi *v1.VirtualMachineInstance) error {
		i := slices.IndexFunc(vmi.Status.VolumeStatus, func(v v1.VolumeStatus) bool { return v.ContainerDiskVolume != nil })
		kernel := vmi.Status.KernelBootStatus
		if i < 0 || kernel == nil || kernel.KernelInfo == nil || kernel.InitrdInfo == nil {
			return fmt.Errorf("there are %+v and %+v", vmi.Status.VolumeStatus, kernel)
		}
		disk := make([]byte, diskSize)
		copy(disk, diskContent)
		got := [...]uint32{vmi.Status.VolumeStatus[i].ContainerDiskVolume.Checksum, kernel.KernelInfo.Checksum, kernel.InitrdInfo.Checksum}
		if want := [...]uint32{crc32.ChecksumIEEE(disk), sum("vmlinux"), sum("initrd")}; got != want {
			s.Fatalf("the checksums are %d, want %d", got, want)
		}
		return nil
	})
}

// The disk of newGuest, from hack/guest/ociimage.
const (
	diskSize    = 16 << 20
	diskContent = "virtloom guest-disk 1\n"
)

// awaitStatus waits until the VMI is as the function wants it.
func (s *scene) awaitStatus(what string, is func(*v1.VirtualMachineInstance) error) {
	s.Helper()
	must(s.T, refcluster.Await(s.Context(), patience, what, func(ctx context.Context) error {
		vmi := &v1.VirtualMachineInstance{}
		if err := s.c.Client.Get(ctx, s.key, vmi); err != nil {
			return err
		}
		return is(vmi)
	}))
}

// awaitAddress waits until the VMI's status has the address for its interface.
func (s *scene) awaitAddress(ip string) {
	s.Helper()
	s.awaitStatus("status.interfaces to have "+ip, func(vmi *v1.VirtualMachineInstance) error {
		if in := vmi.Status.Interfaces; len(in) != 1 || in[0].IP != ip || ip == "" {
			return fmt.Errorf("it has %+v", in)
		}
		return nil
	})
}

// TestVMI_FromContainerDisk: a guest starts from a disk in an image.
func TestVMI_FromContainerDisk(t *testing.T) {
	s := boot(t, newGuest("from-image", func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Firmware = nil
		vmi.Spec.Volumes[0].ContainerDisk.Image = "virtloom.test/guest-boot:1"
	}))
	s.says("virtloom-disk vda size=")
}

// TestVMI_FromClaim: a guest starts from a disk in a claim of file system mode, which every node sees, and moves with it.
func TestVMI_FromClaim(t *testing.T) {
	c := cluster(t)
	folder, err := c.Shared("claim")
	must(t, err)
	copyFile(t, filepath.Join(programs(t), "guest", "disk.img"), filepath.Join(folder, "disk.img"))
	mode, class := corev1.PersistentVolumeFilesystem, ""
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "shared"}, Spec: corev1.PersistentVolumeSpec{
		Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, VolumeMode: &mode,
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}},
	}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "shared", Namespace: namespace}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: volume.Spec.AccessModes, VolumeMode: &mode, VolumeName: volume.Name, StorageClassName: &class,
		Resources: corev1.VolumeResourceRequirements{Requests: volume.Spec.Capacity},
	}}
	must(t, c.Client.Create(t.Context(), volume))
	must(t, c.Client.Create(t.Context(), claim))
	t.Cleanup(func() {
		must(t, c.Client.Delete(context.Background(), claim))
		must(t, c.Client.Delete(context.Background(), volume))
	})
	s := boot(t, newGuest("from-claim", func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Firmware = nil
		source := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}
		source.PersistentVolumeClaim.ClaimName = claim.Name
		vmi.Spec.Volumes[0].VolumeSource = source
	}))
	s.says("virtloom-disk vda size=")
	s.migrate()
	s.unbroken()
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, raw, 0o600))
	must(t, os.Chown(to, launcherUser, launcherUser))
}

func programs(t *testing.T) string {
	t.Helper()
	bin, err := rig.BinDir()
	must(t, err)
	return bin
}

// TestVMI_Deleted: a guest whose VMI is deleted is asked to shut down, and the VMI ends as one that did.
func TestVMI_Deleted(t *testing.T) {
	s := boot(t, newGuest("deleted", func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Firmware = nil
		vmi.Spec.Volumes[0].ContainerDisk.Image = "virtloom.test/guest-boot:1"
	}))
	w, err := s.c.Client.Watch(t.Context(), &v1.VirtualMachineInstanceList{}, client.InNamespace(namespace))
	must(t, err)
	defer w.Stop()
	must(t, s.c.Client.Delete(t.Context(), s.vmi.DeepCopy()))
	last := v1.Running
	for e := range w.ResultChan() {
		vmi, ok := e.Object.(*v1.VirtualMachineInstance)
		if !ok || vmi.UID != s.vmi.UID {
			continue
		}
		last = vmi.Status.Phase
		if e.Type == watch.Deleted {
			break
		}
	}
	s.says("virtloom-power-button")
	if last != v1.Succeeded {
		t.Errorf("the VMI ended as %s, want %s", last, v1.Succeeded)
	}
}
