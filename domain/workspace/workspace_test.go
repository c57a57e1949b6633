// SPDX-License-Identifier: Apache-2.0

package workspace_test

import (
	"context"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/workspace"
)

var kvmHost = domain.Host{Name: "node-a", Arch: "x86_64", KVM: true}

// images is an image store in memory: by image, then by path.
type images map[string]map[string]string

func (i images) Extract(_ context.Context, image, path, dst string) error {
	data, found := i[image][path]
	if !found {
		return fs.ErrNotExist
	}
	return os.WriteFile(dst, []byte(data), 0o600)
}

func (i images) List(_ context.Context, image, dir string) ([]string, error) {
	var out []string
	for path := range i[image] {
		if filepath.Dir(path) == dir {
			out = append(out, path)
		}
	}
	return out, nil
}

// claims are claims by name.
type claims map[string]workspace.Claim

func (c claims) Locate(_ context.Context, _, name string) (workspace.Claim, error) {
	claim, found := c[name]
	if !found {
		return claim, errors.New("not found")
	}
	return claim, nil
}

func newWorkspace(t *testing.T) *workspace.Workspace {
	t.Helper()
	return &workspace.Workspace{Root: t.TempDir(), Bridge: "br0", Claims: claims{}, Images: images{}, Settings: gatesOn}
}

// guest is an object with these volumes.
func guest(uid types.UID, volumes ...v1.Volume) *v1.VirtualMachineInstance {
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: uid},
		Spec:       v1.VirtualMachineInstanceSpec{Volumes: volumes},
	}
}

func cloudInit(user, network string) v1.Volume {
	return v1.Volume{Name: "seed", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: user, NetworkData: network}}}
}

func containerDisk(image string) v1.Volume {
	return v1.Volume{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: image}}}
}

func emptyDisk(size string) v1.Volume {
	return v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse(size)}}}
}

func claimed(name string) v1.Volume {
	v := v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}}
	v.PersistentVolumeClaim.ClaimName = name
	return v
}

// gatesOn is a cluster with the feature gates of the tests here enabled.
func gatesOn(context.Context) (*v1.KubeVirt, error) {
	kv := &v1.KubeVirt{}
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{
		FeatureGates: []string{"HostDisk", "DownwardMetrics", "ExperimentalIgnitionSupport", "EnableVirtioFsStorageVolumes", "HostDevices"},
	}
	return kv, nil
}

func hostDisk(path string, kind v1.HostDiskType) v1.Volume {
	return v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostDisk: &v1.HostDisk{Path: path, Type: kind, Capacity: resource.MustParse("1Mi")}}}
}

func prepare(t *testing.T, w *workspace.Workspace, vmi *v1.VirtualMachineInstance) convert.Facts {
	t.Helper()
	f, err := w.Prepare(t.Context(), vmi, kvmHost)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCloudInit_NoCloudContent(t *testing.T) {
	w := newWorkspace(t)
	vmi := guest("uid-1", cloudInit("#cloud-config\n", "version: 2\n"))
	vmi.Spec.Hostname = "web"
	path := prepare(t, w, vmi).Disks["seed"].Path
	got := map[string]string{}
	for _, name := range []string{"meta-data", "user-data", "network-config"} {
		got[name] = fromISO(t, path, name)
	}
	want := map[string]string{
		"meta-data": `{"instance-id":"uid-1","local-hostname":"web"}` + "\n", "user-data": "#cloud-config\n", "network-config": "version: 2\n",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
}

func fromISO(t *testing.T, path, name string) string {
	t.Helper()
	label, files := disc(t, path)
	if label != "cidata" {
		t.Errorf("the label is %q", label)
	}
	if _, found := files[name]; !found {
		t.Fatalf("there is no file %s", name)
	}
	return files[name]
}

func TestCloudInit_SameSizeOnEveryNode(t *testing.T) {
	vmi := guest("uid-1", cloudInit(strings.Repeat("x", 10_000), ""))
	var sizes []int64
	for range 2 {
		sizes = append(sizes, size(t, prepare(t, newWorkspace(t), vmi).Disks["seed"].Path))
	}
	if sizes[0] != sizes[1] || sizes[0]%2048 != 0 {
		t.Fatalf("sizes %v", sizes)
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

func TestPrepare_Idempotent(t *testing.T) {
	needQemuImg(t)
	w := newWorkspace(t)
	w.Images = images{"img": {"/disk/a.img": "raw"}}
	vmi := guest("uid-1", containerDisk("img"), emptyDisk("1Mi"), cloudInit("a", ""))
	first := prepare(t, w, vmi)
	before := contents(t, w.Root)
	// A VMI keeps the files it was started with, whatever its object says later.
	vmi.Spec.Volumes[2] = cloudInit("b", "")
	vmi.Spec.Volumes[0].ContainerDisk.Image = "gone"
	second := prepare(t, w, vmi)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("facts (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(before, contents(t, w.Root)); diff != "" {
		t.Errorf("files (-first +second):\n%s", diff)
	}
}

// contents returns all files below root.
func contents(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestVolumes_KeepFileWhenListChanges(t *testing.T) {
	needQemuImg(t)
	w := newWorkspace(t)
	scratch := prepare(t, w, guest("uid-1", emptyDisk("1Mi"))).Disks["scratch"]
	after := prepare(t, w, guest("uid-1", cloudInit("a", ""), emptyDisk("1Mi"))).Disks
	if diff := cmp.Diff(scratch, after["scratch"]); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	if after["seed"].Path == scratch.Path {
		t.Error("two volumes share a file")
	}
}

func needQemuImg(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("qemu-img is not installed")
	}
}

func TestContainerDisk_Overlay(t *testing.T) {
	needQemuImg(t)
	w := newWorkspace(t)
	w.Images = images{"img": {"/disk/a.img": strings.Repeat("\x00", 1<<20)}}
	d := prepare(t, w, guest("uid-1", containerDisk("img"))).Disks["root"]
	if d.Format != "qcow2" || d.ReadOnly || d.Backing == nil || d.Backing.Format != "raw" || !d.Backing.ReadOnly {
		t.Fatalf("%+v, backing %+v", d, d.Backing)
	}
	out, err := exec.CommandContext(t.Context(), "qemu-img", "info", "--output=json", d.Path).Output()
	if err != nil || !strings.Contains(string(out), `"virtual-size": 1048576`) {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestClaim_OneDiskOfItsCapacity(t *testing.T) {
	w, dir := newWorkspace(t), t.TempDir()
	w.Claims = claims{"c": {Path: dir, Shared: true, Bytes: 3<<20 + 5}}
	d := prepare(t, w, guest("uid-1", claimed("c"))).Disks["data"]
	want := convert.DiskSource{Path: filepath.Join(dir, "disk.img"), Format: "raw", Shared: true, Bytes: 3 << 20, DirectIO: d.DirectIO, Sector: d.Sector}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	if n := size(t, d.Path); n != 3<<20 {
		t.Errorf("%d bytes", n)
	}
	data := strings.Repeat("data", 1<<20)
	if err := os.WriteFile(d.Path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	prepare(t, w, guest("uid-2", claimed("c")))
	if b, err := os.ReadFile(d.Path); err != nil || string(b) != data {
		t.Errorf("the disk holds other %d bytes, %v", len(b), err)
	}
	if err := errors.Join(w.Remove("uid-1"), w.Remove("uid-2")); err != nil || size(t, d.Path) != int64(len(data)) {
		t.Errorf("removing the guests touched the claim: %v", err)
	}
}

func TestKernel_FromImage(t *testing.T) {
	w := newWorkspace(t)
	w.Images = images{"boot": {"/vmlinuz": "k", "/initrd": "i"}}
	vmi := guest("uid-1")
	vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{Container: &v1.KernelBootContainer{Image: "boot", KernelPath: "/vmlinuz", InitrdPath: "/initrd"}}}
	f := prepare(t, w, vmi)
	for path, want := range map[string]string{f.Kernel: "k", f.Initrd: "i"} {
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s holds %q, %v", path, b, err)
		}
	}
	vmi.UID, vmi.Spec.Domain.Firmware.KernelBoot.Container.KernelPath = "uid-2", "/none"
	_, err := w.Prepare(t.Context(), vmi, kvmHost)
	domainfixture.Says(t, err, "ns/guest", "kernelBoot.container.kernelPath", "/none", "correct image and path")
}

func TestCloudInit_EncodedUserData(t *testing.T) {
	v := cloudInit("", "")
	v.CloudInitNoCloud.UserDataBase64 = base64.StdEncoding.EncodeToString([]byte("hello"))
	if got := fromISO(t, prepare(t, newWorkspace(t), guest("uid-1", v)).Disks["seed"].Path, "user-data"); got != "hello" {
		t.Fatalf("%q", got)
	}
}

func TestEmulation_NeedsClusterConsent(t *testing.T) {
	bare := domain.Host{Name: "node-a", Arch: "x86_64", KVMReason: "no vmx"}
	for name, tt := range map[string]struct {
		allow workspace.Emulation
		want  bool
	}{
		"not asked": {nil, false},
		"refused":   {func(context.Context) (bool, error) { return false, nil }, false},
		"unknown":   {func(context.Context) (bool, error) { return true, errors.New("no answer") }, false},
		"allowed":   {func(context.Context) (bool, error) { return true, nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t)
			w.AllowEmulation = tt.allow
			f, err := w.Prepare(t.Context(), guest("uid-1"), bare)
			if (err == nil) != tt.want || f.Emulation != tt.want {
				t.Fatalf("emulation %t, error %v", f.Emulation, err)
			}
		})
	}
}
