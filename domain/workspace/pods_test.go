// SPDX-License-Identifier: Apache-2.0

package workspace_test

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

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/workspace"
)

// launcher is the Pod of a guest: a directory as its file system.
type launcher struct {
	root    string
	kernel  string                       // directory of its kernel image
	secrets map[string]map[string][]byte // files by volume and name
	given   []string                     // names of files that are the hypervisor's
	owned   int                          // calls of OwnDevices
	err     error
}

func (l *launcher) Folder(_ context.Context, _ *v1.VirtualMachineInstance, dir string) (*os.File, error) {
	if l.err != nil {
		return nil, l.err
	}
	path := filepath.Join(l.root, dir)
	shared := strings.HasPrefix(dir, "/var/run/kubevirt-private/") && !strings.Contains(dir, "vmi-disks") || strings.HasPrefix(dir, "/var/run/kubevirt-ephemeral-disks")
	if shared {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s: %w", dir, domain.ErrNotReady)
	}
	return f, err
}

func (l *launcher) Kernel(_ context.Context, _ *v1.VirtualMachineInstance, file string) (*os.File, error) {
	return os.Open(filepath.Join(l.kernel, file))
}

func (l *launcher) Secret(_ context.Context, _ *v1.VirtualMachineInstance, volume string) (map[string][]byte, error) {
	data, ok := l.secrets[volume]
	if !ok {
		return nil, fmt.Errorf("no volume %q: %w", volume, domain.ErrNotReady)
	}
	return data, nil
}

func (l *launcher) Give(f *os.File) error {
	l.given = append(l.given, filepath.Base(f.Name()))
	return nil
}

func (l *launcher) OwnDevices(context.Context, *v1.VirtualMachineInstance) error {
	l.owned++
	return l.err
}

// path is the path on the node of one in the Pod.
func (l *launcher) path(elem ...string) string {
	return filepath.Join(append([]string{l.root}, elem...)...)
}

const (
	podFiles  = "/var/run/kubevirt-ephemeral-disks"
	podClaims = "/var/run/kubevirt-private/vmi-disks"
)

// inLauncher is a workspace whose guests are in a Pod.
func inLauncher(t *testing.T) (*workspace.Workspace, *launcher) {
	t.Helper()
	w, l := newWorkspace(t), &launcher{root: t.TempDir(), kernel: t.TempDir()}
	w.Pods, w.Images, w.Volumes = l, nil, &pods{}
	return w, l
}

func mustWrite(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func contentOf(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPods_FilesOfGuest(t *testing.T) {
	needQemuImg(t)
	w, l := inLauncher(t)
	mustWrite(t, filepath.Join(l.kernel, "vmlinuz"), "kernel")
	mustWrite(t, filepath.Join(l.kernel, "initrd"), "initrd")
	vmi := guest("uid-1", emptyDisk("1Mi"), cloudInit("#cloud-config", ""))
	vmi.Annotations = map[string]string{v1.IgnitionAnnotation: "{}"}
	vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{Container: &v1.KernelBootContainer{Image: "boot", KernelPath: "/vmlinuz", InitrdPath: "/initrd"}}}
	f := prepare(t, w, vmi)
	if f.Dir != "/var/run/kubevirt-private/uid-1" || f.Kernel != podFiles+"/kernel" || f.Initrd != podFiles+"/initrd" || f.Ignition != podFiles+"/data.ign" {
		t.Errorf("%+v", f)
	}
	if st, err := os.Stat(l.path(f.Dir)); err != nil || !st.IsDir() {
		t.Errorf("the folder of sockets and logs: %v", err)
	}
	for volume, path := range map[string]string{"scratch": podFiles + "/volume-scratch.qcow2", "seed": podFiles + "/volume-seed.iso"} {
		if d := f.Disks[volume]; d.Inside != path || d.Path != path {
			t.Errorf("%+v", d)
		}
	}
	if k := contentOf(t, l.path(f.Kernel)); k != "kernel" {
		t.Errorf("kernel %q", k)
	}
	slices.Sort(l.given)
	if want := []string{".new-data.ign", ".new-initrd", ".new-kernel", ".new-volume-scratch.qcow2", ".new-volume-seed.iso"}; !slices.Equal(l.given, want) {
		t.Errorf("the hypervisor has %q, want %q", l.given, want)
	}
	if left, err := filepath.Glob(l.path(podFiles, ".new*")); err != nil || left != nil {
		t.Errorf("%q, %v are left", left, err)
	}
	if n := w.Size(t.Context(), vmi, []convert.DiskSource{f.Disks["seed"]}); n != int64(len(contentOf(t, l.path(f.Disks["seed"].Path)))) {
		t.Errorf("the disk has %d bytes", n)
	}
	// What the guest has written stays; the images are not read again.
	mustWrite(t, l.path(podFiles, "volume-scratch.qcow2"), "written")
	l.kernel = "/nowhere"
	if again := prepare(t, w, vmi); again.Kernel != f.Kernel || contentOf(t, l.path(podFiles, "volume-scratch.qcow2")) != "written" {
		t.Error("the disk of a running guest was replaced")
	}
	if err := errors.Join(w.Clear(t.Context(), vmi.UID), w.Clear(t.Context(), vmi.UID)); err != nil {
		t.Errorf("the guest's Pod is gone: %v", err)
	}
}

// TestPods_Secrets: they are read where the kubelet has put them for the Pod, by the name of KubeVirt's
// volume there, and nowhere else.
func TestPods_Secrets(t *testing.T) {
	secret := func(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }
	acpi := volumeOf(v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "tables"}})
	for name, tt := range map[string]struct {
		volume  v1.Volume
		secrets map[string]map[string]string // by volume of the Pod
		want    map[string]string
	}{
		"disk": {volumeOf(v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}),
			map[string]map[string]string{"conf": {"word": "swordfish"}}, map[string]string{"word": "swordfish"}},
		"optional": {volumeOf(v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", Optional: yes()}}),
			map[string]map[string]string{"conf": {}}, map[string]string{}},
		"answers": {volumeOf(v1.VolumeSource{Sysprep: &v1.SysprepSource{Secret: secret("s")}}),
			map[string]map[string]string{"conf": {"unattend.xml": "<x/>"}}, map[string]string{"unattend.xml": "<x/>"}},
		"token": {volumeOf(v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "sa"}}),
			map[string]map[string]string{"": {"token": "eyJ", "namespace": "ns"}}, map[string]string{"token": "eyJ", "namespace": "ns"}},
		"cloud-init": {volumeOf(v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserDataSecretRef: secret("u"), NetworkDataSecretRef: secret("n")}}),
			map[string]map[string]string{"conf-udata": {"userdata": "#!/bin/sh"}, "conf-ndata": {"networkData": "version: 2"}, "keys-access-cred": {"a": "ssh-ed25519 A"}},
			map[string]string{"user-data": "#!/bin/sh", "network-config": "version: 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, l := inLauncher(t)
			w.Objects = forbidding{}
			vmi := guest("uid-1", tt.volume)
			vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "conf"}}
			vmi.Spec.AccessCredentials = []v1.AccessCredential{{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{
				Source:            v1.SSHPublicKeyAccessCredentialSource{Secret: &v1.AccessCredentialSecretSource{SecretName: "keys"}},
				PropagationMethod: v1.SSHPublicKeyAccessCredentialPropagationMethod{NoCloud: &v1.NoCloudSSHPublicKeyAccessCredentialPropagation{}},
			}}}
			_, err := w.Prepare(t.Context(), vmi, kvmHost)
			domainfixture.Says(t, err, "ns/guest", "spec.", "cannot read")
			if !errors.Is(err, domain.ErrNotReady) {
				t.Errorf("a volume that the kubelet has not mounted: %v", err)
			}
			l.secrets = map[string]map[string][]byte{}
			for volume, files := range tt.secrets {
				l.secrets[volume] = map[string][]byte{}
				for file, content := range files {
					l.secrets[volume][file] = []byte(content)
				}
			}
			_, files := disc(t, l.path(prepare(t, w, vmi).Disks["conf"].Path))
			if meta, ok := files["meta-data"]; ok && !strings.Contains(meta, "ssh-ed25519 A") {
				t.Errorf("metadata %s", meta)
			}
			delete(files, "meta-data")
			if diff := cmp.Diff(tt.want, files); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	w, l := inLauncher(t)
	w.Objects = forbidding{}
	l.secrets = map[string]map[string][]byte{"conf": {"slic.bin": []byte("table")}}
	vmi := guest("uid-1", acpi)
	vmi.Spec.Domain.Firmware = &v1.Firmware{ACPI: &v1.ACPI{SlicNameRef: "conf"}}
	if dir := prepare(t, w, vmi).SecretDirs["conf"]; contentOf(t, l.path(dir, "slic.bin")) != "table" {
		t.Errorf("tables in %q", dir)
	}
}

// TestPods_CrashBetweenSteps: whatever an agent has left of a file, the next one completes.
func TestPods_CrashBetweenSteps(t *testing.T) {
	needQemuImg(t)
	disk := podFiles + "/volume-scratch.qcow2"
	elsewhere := filepath.Join(t.TempDir(), "file")
	mustWrite(t, elsewhere, "of the node")
	for name, leave := range map[string]func(w *workspace.Workspace, l *launcher) error{
		"half a copy": func(_ *workspace.Workspace, l *launcher) error {
			return os.WriteFile(l.path(podFiles, ".new-volume-scratch.qcow2"), []byte("QF"), 0o600)
		},
		"a link for a copy": func(_ *workspace.Workspace, l *launcher) error {
			return os.Symlink(elsewhere, l.path(podFiles, ".new-volume-scratch.qcow2"))
		},
		"a pipe for a copy": func(_ *workspace.Workspace, l *launcher) error {
			return unix.Mkfifo(l.path(podFiles, ".new-volume-scratch.qcow2"), 0o600)
		},
		"a second name": func(w *workspace.Workspace, l *launcher) error {
			err := os.WriteFile(l.path(podFiles, ".new-volume-scratch.qcow2"), []byte("QF"), 0o600)
			return errors.Join(err, os.Link(l.path(podFiles, ".new-volume-scratch.qcow2"), l.path(podFiles, "other")))
		},
		"half a disk of the node": func(w *workspace.Workspace, _ *launcher) error {
			return errors.Join(os.MkdirAll(w.Dir("uid-1"), 0o700), os.WriteFile(filepath.Join(w.Dir("uid-1"), ".new-volume-scratch.qcow2"), []byte("QF"), 0o600))
		},
	} {
		w, l := inLauncher(t)
		if err := errors.Join(os.MkdirAll(l.path(podFiles), 0o700), leave(w, l)); err != nil {
			t.Fatal(err)
		}
		f := prepare(t, w, guest("uid-1", emptyDisk("1Mi")))
		if f.Disks["scratch"].Path != disk || !strings.HasPrefix(contentOf(t, l.path(disk)), "QFI\xfb") {
			t.Errorf("%s: %+v", name, f.Disks)
		}
		if got := contentOf(t, elsewhere); got != "of the node" {
			t.Errorf("%s: a file of the node has %q", name, got)
		}
	}
}

func TestPods_NamesTakenByOthers(t *testing.T) {
	needQemuImg(t)
	elsewhere := filepath.Join(t.TempDir(), "file")
	mustWrite(t, elsewhere, "of the node")
	w, l := inLauncher(t)
	disk := l.path(podFiles, "volume-scratch.qcow2")
	if err := errors.Join(os.MkdirAll(l.path(podFiles), 0o700), os.Symlink(elsewhere, disk)); err != nil {
		t.Fatal(err)
	}
	_, err := w.Prepare(t.Context(), guest("uid-1", emptyDisk("1Mi")), kvmHost)
	domainfixture.Says(t, err, "ns/guest", "spec.volumes[0].name", "scratch")
	if got := contentOf(t, elsewhere); got != "of the node" || len(l.given) > 0 {
		t.Errorf("a file of the node has %q, the hypervisor %q", got, l.given)
	}
}

func TestPods_NotReady(t *testing.T) {
	w, l := inLauncher(t)
	l.err = domain.ErrNotReady
	vmi := guest("uid-1", emptyDisk("1Mi"))
	if _, err := w.Prepare(t.Context(), vmi, kvmHost); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("%v", err)
	}
	if err := w.OwnDevices(t.Context(), vmi); !errors.Is(err, domain.ErrNotReady) || l.owned != 1 {
		t.Errorf("%v", err)
	}
	w.Pods = nil
	if err := w.OwnDevices(t.Context(), vmi); err != nil {
		t.Errorf("devices of the node: %v", err)
	}
}

func TestPods_ClaimWithFileSystem(t *testing.T) {
	needQemuImg(t)
	w, l := inLauncher(t)
	w.Claims = claims{"c": {Bytes: 1 << 20}}
	vmi := guest("uid-1", claimed("c"))
	if _, err := w.Prepare(t.Context(), vmi, kvmHost); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("before the kubelet has mounted it: %v", err)
	}
	disk := l.path(podClaims, "data/disk.img")
	if err := os.MkdirAll(filepath.Dir(disk), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, given := range [][]string{{".new-disk-uid-1"}, {"disk.img"}} {
		l.given = nil
		d := prepare(t, w, vmi).Disks["data"]
		if want := podClaims + "/data/disk.img"; d.Path != want || d.Inside != want || d.Bytes != 1<<20 || d.Block || d.Sector == nil {
			t.Errorf("%+v", d)
		}
		if st, err := os.Stat(disk); err != nil || st.Size() != 1<<20 {
			t.Errorf("%v, %v", st, err)
		}
		if !slices.Equal(l.given, given) {
			t.Errorf("the hypervisor has %q, want %q", l.given, given)
		}
	}
	if err := errors.Join(os.Remove(disk), os.Symlink("/etc/passwd", disk)); err != nil {
		t.Fatal(err)
	}
	_, err := w.Prepare(t.Context(), vmi, kvmHost)
	domainfixture.Says(t, err, "spec.volumes[0].persistentVolumeClaim.claimName", "not a regular file")
}

func TestPods_SharedClaimOfRunningGuestIsNotMade(t *testing.T) {
	w, l := inLauncher(t)
	w.Claims = claims{"c": {Bytes: 1 << 20, Shared: true}}
	if err := os.MkdirAll(l.path(podClaims, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	vmi := guest("uid-1", claimed("c"))
	vmi.Status.Phase = v1.Running
	_, err := w.Prepare(t.Context(), vmi, kvmHost)
	domainfixture.Says(t, err, podClaims+"/data/disk.img", "shared")
}

func TestPods_DeviceOfClaim(t *testing.T) {
	w, l := inLauncher(t)
	w.Claims = claims{"c": {Block: true}}
	mustWrite(t, l.path("/dev/data"), "no device")
	_, err := w.Prepare(t.Context(), guest("uid-1", claimed("c")), kvmHost)
	domainfixture.Says(t, err, "spec.volumes[0].persistentVolumeClaim.claimName", "/dev/data", "not a block device")
	if len(l.given) > 0 {
		t.Errorf("the hypervisor has %q", l.given)
	}
}

func TestPods_OverlayNamesThePathInThePod(t *testing.T) {
	needQemuImg(t)
	w, l := inLauncher(t)
	w.Claims = claims{"c": {}}
	mustWrite(t, l.path(podClaims, "data/disk.img"), strings.Repeat("\x00", 1<<20))
	vmi := guest("uid-1", v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
	}}})
	d := prepare(t, w, vmi).Disks["data"]
	base := podClaims + "/data/disk.img"
	if d.Inside != podFiles+"/volume-data.qcow2" || d.Backing == nil || d.Backing.Inside != base {
		t.Errorf("%+v, backing %+v", d, d.Backing)
	}
	if b := contentOf(t, l.path(d.Path)); !strings.Contains(b, base) || strings.Contains(b, l.root) {
		t.Error("the overlay does not refer to the path in the Pod")
	}
}

func TestPods_ImageVolume(t *testing.T) {
	needQemuImg(t)
	w, l := inLauncher(t)
	const volume = "/var/run/kubevirt-image-volume/disk_0"
	vmi := guest("uid-1", containerDisk("img"))
	if _, err := w.Prepare(t.Context(), vmi, kvmHost); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("neither volume nor container: %v", err)
	}
	mustWrite(t, l.path(volume, "disk/a.img"), strings.Repeat("\x00", 1<<20))
	d := prepare(t, w, vmi).Disks["root"]
	if want := volume + "/disk/a.img"; d.Backing == nil || d.Backing.Inside != want || !d.Backing.ReadOnly || d.Backing.Format != "raw" {
		t.Errorf("%+v, backing %+v", d, d.Backing)
	}
	mustWrite(t, l.path(volume, "disk/b.img"), "")
	_, err := w.Prepare(t.Context(), vmi, kvmHost)
	domainfixture.Says(t, err, "spec.volumes[0].containerDisk", "exactly one file")
	vmi.Spec.Volumes[0].ContainerDisk.Path = "/disk/a.img"
	if d := prepare(t, w, vmi).Disks["root"]; d.Backing.Inside != volume+"/disk/a.img" {
		t.Errorf("%+v", d.Backing)
	}
}

func TestPods_KernelIsBounded(t *testing.T) {
	w, l := inLauncher(t)
	large := filepath.Join(l.kernel, "large")
	mustWrite(t, large, "")
	if err := os.Truncate(large, 512<<20+1); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(l.kernel, "vmlinuz"), "kernel")
	vmi := guest("uid-1")
	c := &v1.KernelBootContainer{Image: "boot", KernelPath: "/large"}
	vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{Container: c}}
	_, err := w.Prepare(t.Context(), vmi, kvmHost)
	domainfixture.Says(t, err, "kernelBoot.container.kernelPath", "larger than 512 MiB")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c.KernelPath = "/vmlinuz"
	if _, err := w.Prepare(ended, vmi, kvmHost); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the pass: %v", err)
	}
	for _, dir := range []string{w.Dir(vmi.UID), l.path(podFiles)} {
		if left, err := filepath.Glob(dir + "/*kernel*"); err != nil || left != nil {
			t.Errorf("%q, %v are left", left, err)
		}
	}
}

func TestPods_FirmwareOfLauncher(t *testing.T) {
	w, l := inLauncher(t)
	mustWrite(t, l.path("/usr/share/OVMF/OVMF_CODE.fd"), "")
	mustWrite(t, l.path("/usr/share/OVMF/real_VARS.fd"), "")
	if err := os.Symlink("/usr/share/OVMF/real_VARS.fd", l.path("/usr/share/OVMF/OVMF_VARS.fd")); err != nil {
		t.Fatal(err)
	}
	if f := prepare(t, w, guest("uid-1")).Firmware; f.Plain.Code != "/usr/share/OVMF/OVMF_CODE.fd" || f.Plain.Vars != "/usr/share/OVMF/OVMF_VARS.fd" || f.SecureBoot.Code != "" {
		t.Errorf("%+v", f)
	}
}
