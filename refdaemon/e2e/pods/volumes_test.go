// SPDX-License-Identifier: Apache-2.0

package pods_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/domain/cgroup"
	"github.com/virtloom/virtloom/internal/realcluster"
)

// Sizes of disks, which distinguish the guest's lines about them.
const (
	blockSize     = 24 << 20
	emptySize     = 12 << 20
	ephemeralSize = 6 << 20
	filesSize     = 7 << 20
	sharedSize    = 9 << 20
	grownSize     = 30 << 20 // what a claim of 32Mi has place for, to which disks in claims grow
	hostSize      = 5 << 20
)

// TestVolumes_AtStart: a guest sees a claim of file system and one of block mode, a folder that all nodes share, an empty disk, an
// ephemeral one over a claim, and the files of a ConfigMap, a Secret, the downward API and a service account, and cloud-init data of a Secret; status.volumeStatus has them all; its
// container may open no device but the usual ones and that of the claim. Another guest, in a namespace that allows it, sees a file of its
// node.
func TestVolumes_AtStart(t *testing.T) {
	nightly(t)
	c := cluster(t)
	loop, _, number := loopDevice(t, "block")
	block := claim(t, "block", corev1.PersistentVolumeBlock, corev1.ReadWriteOnce, corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: loop}})
	files := claim(t, "files", corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce, image(t, "files", filesSize))
	shared := claim(t, "together", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany, image(t, "together", sharedSize))
	base := claim(t, "base", corev1.PersistentVolumeFilesystem, corev1.ReadWriteMany, image(t, "base", ephemeralSize))
	sources(t)
	guests := bootAll(t, newGuest("volumes", func(vmi *v1.VirtualMachineInstance) {
		addDisk(vmi, "block", onClaim(block, false))
		addDisk(vmi, "files", onClaim(files, false))
		addDisk(vmi, "together", onClaim(shared, false))
		addDisk(vmi, "empty", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: *resource.NewQuantity(emptySize, resource.BinarySI)}})
		addDisk(vmi, "ephemeral", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: base}}})
		addDisk(vmi, "settings", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, VolumeLabel: "settings"}})
		addDisk(vmi, "secrets", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "secrets", VolumeLabel: "password"}})
		addDisk(vmi, "downward", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{VolumeLabel: "downward", Fields: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}})
		addDisk(vmi, "account", v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "default"}})
		vmi.Spec.Volumes[1].CloudInitNoCloud = &v1.CloudInitNoCloudSource{UserDataSecretRef: &corev1.LocalObjectReference{Name: "user-data"}}
	}), onHostDisk(t, c))
	s, host := guests[0], guests[1]
	for _, line := range []string{
		fmt.Sprintf("size=%d text=virtloom-block", blockSize), fmt.Sprintf("size=%d text=virtloom-files", grownSize),
		fmt.Sprintf("size=%d text=virtloom-together", grownSize), fmt.Sprintf("size=%d text=virtloom-base", ephemeralSize),
		fmt.Sprintf("size=%d text=virtloom guest-disk 1", diskSize), fmt.Sprintf("size=%d", emptySize),
		"label=settings colour=blue", "label=password word=swordfish", "label=downward labels=",
		" ca.crt=-----BEGIN CERTIFICATE----- namespace=" + namespace + " token=ey", "user-data=#of a secret",
	} {
		s.says(line)
	}
	host.says(fmt.Sprintf("size=%d text=virtloom-host", hostSize))
	s.awaitVolumes(map[string]string{"block": block, "files": files, "together": shared})
	host.awaitVolumes(nil)
	s.opens(cgroup.Rule{Kind: cgroup.Block, Major: 7, Minor: number, Access: cgroup.All})
	s.unbroken()
}

// sources creates what disks of files are made of, and lets agents read the Secret.
func sources(t *testing.T) {
	t.Helper()
	c := cluster(t)
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: namespace} }
	for _, o := range []client.Object{
		&corev1.ConfigMap{ObjectMeta: meta("settings"), Data: map[string]string{"colour": "blue"}},
		&corev1.Secret{ObjectMeta: meta("secrets"), StringData: map[string]string{"word": "swordfish"}},
		&corev1.Secret{ObjectMeta: meta("user-data"), StringData: map[string]string{"userData": "#of a secret"}},
	} {
		must(t, c.Client.Create(t.Context(), o))
		t.Cleanup(func() { must(t, c.Client.Delete(context.Background(), o)) })
	}
}

// onHostDisk returns a VMI with a file of its node, in a namespace of Pod Security level privileged, and sets the feature gate.
func onHostDisk(t *testing.T, c *realcluster.Cluster) *v1.VirtualMachineInstance {
	t.Helper()
	gates(t, "HostDisk")
	privileged := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "privileged", Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "privileged"}}}
	must(t, c.Client.Create(t.Context(), privileged))
	t.Cleanup(func() { must(t, c.Client.Delete(context.Background(), privileged)) })
	folder := image(t, "host", hostSize).HostPath.Path
	return newGuest("host", func(vmi *v1.VirtualMachineInstance) {
		vmi.Namespace = privileged.Name
		addDisk(vmi, "host", v1.VolumeSource{HostDisk: &v1.HostDisk{Path: filepath.Join(folder, "disk.img"), Type: v1.HostDiskExists}})
	})
}

// awaitVolumes waits until status.volumeStatus has each volume with its target, and claims with what is known of them.
func (s *scene) awaitVolumes(claims map[string]string) {
	s.Helper()
	s.awaitStatus("status.volumeStatus to be complete", func(vmi *v1.VirtualMachineInstance) error {
		targets := map[string]bool{}
		for _, v := range vmi.Spec.Volumes {
			i := slices.IndexFunc(vmi.Status.VolumeStatus, func(st v1.VolumeStatus) bool { return st.Name == v.Name })
			if i < 0 {
				return fmt.Errorf("%s is missing in %+v", v.Name, vmi.Status.VolumeStatus)
			}
			st := vmi.Status.VolumeStatus[i]
			if st.Target == "" || targets[st.Target] || st.HotplugVolume != nil {
				return fmt.Errorf("%+v", st)
			}
			targets[st.Target] = true
			info := st.PersistentVolumeClaimInfo
			if claim := claims[v.Name]; claim != "" && (info == nil || info.ClaimName != claim || info.VolumeMode == nil) {
				return fmt.Errorf("%s has %+v of claim %s", v.Name, info, claim)
			}
		}
		return nil
	})
}

// opens checks that the launcher's container may open the usual devices and these, and no other. Version 2 of control groups does not
// show what it allows.
func (s *scene) opens(devices ...cgroup.Rule) {
	s.Helper()
	pods, err := s.pods(s.Context())
	must(s.T, err)
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == s.vmi.Status.NodeName })
	if i < 0 {
		s.Fatalf("no Pod on %s", s.vmi.Status.NodeName)
	}
	list := deviceList(s.T, containerID(s.T, pods[i]))
	if list == "" {
		s.Log("the machine has no devices.list: control groups of version 2")
		return
	}
	raw, err := os.ReadFile(list)
	must(s.T, err)
	got := strings.Split(strings.TrimSpace(string(raw)), "\n")
	var want []string
	for _, r := range append(cgroup.Default(), devices...) {
		want = append(want, r.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, slices.Compact(want)) {
		s.Errorf("the container may open\n%q, want\n%q", got, want)
	}
}

func containerID(t *testing.T, pod corev1.Pod) string {
	t.Helper()
	i := slices.IndexFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == "compute" })
	if i < 0 {
		t.Fatalf("%s has no container compute: %+v", pod.Name, pod.Status.ContainerStatuses)
	}
	return strings.TrimPrefix(pod.Status.ContainerStatuses[i].ContainerID, "containerd://")
}

// deviceList finds the file in which the kernel shows what a container may open; empty where the kernel shows none.
func deviceList(t *testing.T, container string) string {
	t.Helper()
	const devices = "/sys/fs/cgroup/devices"
	if _, err := os.Stat(devices); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	found := ""
	err := filepath.WalkDir(devices, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // ended meanwhile
		case err == nil && d.IsDir() && strings.Contains(d.Name(), container):
			found = filepath.Join(path, "devices.list")
			return fs.SkipAll
		}
		return err
	})
	must(t, err)
	if found == "" {
		t.Fatalf("container %s has no control group", container)
	}
	return found
}

// loopDevice makes a device of the machine, which every node sees, and returns its file and its number. It is detached when it is
// closed: at the end of the test or of its process.
func loopDevice(t *testing.T, name string) (path, file string, number int64) {
	t.Helper()
	file = filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(file, []byte("virtloom-"+name+"\n"), 0o600))
	must(t, os.Truncate(file, blockSize))
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", file).Output()
	must(t, err)
	path = strings.TrimSpace(string(out))
	device, openErr := os.Open(path)
	detached, err := exec.CommandContext(t.Context(), "losetup", "--detach", path).CombinedOutput()
	if err := errors.Join(openErr, err); err != nil {
		t.Fatalf("%v: %s", err, detached)
	}
	t.Cleanup(func() { must(t, device.Close()) })
	_, err = fmt.Sscanf(path, "/dev/loop%d", &number)
	must(t, err)
	return path, file, number
}

// image makes a folder that every node sees, with a disk image of that size.
func image(t *testing.T, name string, size int64) corev1.PersistentVolumeSource {
	t.Helper()
	folder, err := cluster(t).Shared(name)
	must(t, err)
	path := filepath.Join(folder, "disk.img")
	must(t, os.WriteFile(path, []byte("virtloom-"+name+"\n"), 0o600))
	must(t, errors.Join(os.Truncate(path, size), os.Chown(path, launcherUser, launcherUser)))
	return corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}}
}

// claim makes a claim that is bound to such a volume, for every node, and returns its name.
func claim(t *testing.T, name string, mode corev1.PersistentVolumeMode, access corev1.PersistentVolumeAccessMode, source corev1.PersistentVolumeSource) string {
	t.Helper()
	c, class := cluster(t), ""
	names := make([]string, 0, len(c.Nodes))
	for _, n := range c.Nodes {
		names = append(names, n.Name())
	}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("32Mi")},
		AccessModes: []corev1.PersistentVolumeAccessMode{access}, VolumeMode: &mode,
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, PersistentVolumeSource: source,
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names}}}}}},
	}}
	request := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: volume.Spec.AccessModes, VolumeMode: &mode, VolumeName: name, StorageClassName: &class,
		Resources: corev1.VolumeResourceRequirements{Requests: volume.Spec.Capacity},
	}}
	for _, o := range []client.Object{volume, request} {
		must(t, c.Client.Create(t.Context(), o))
		t.Cleanup(func() { must(t, c.Client.Delete(context.Background(), o)) })
	}
	return name
}

func onClaim(name string, hotpluggable bool) v1.VolumeSource {
	return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: hotpluggable,
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
}

func addDisk(vmi *v1.VirtualMachineInstance, name string, source v1.VolumeSource) {
	vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	d := &vmi.Spec.Domain.Devices
	d.Disks = append(d.Disks, v1.Disk{Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}})
}
