// SPDX-License-Identifier: Apache-2.0

package workspace_test

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/workspace"
)

// qcow2 is the beginning of an image.
func qcow2(version uint32, backing, incompatible uint64) string {
	head := make([]byte, 1024)
	copy(head, "QFI\xfb")
	binary.BigEndian.PutUint32(head[4:], version)
	binary.BigEndian.PutUint64(head[8:], backing)
	binary.BigEndian.PutUint64(head[72:], incompatible)
	return string(head)
}

func TestCloudInit_CrashWhileMade(t *testing.T) {
	w := newWorkspace(t)
	vmi := guest("uid-1", cloudInit("user", ""))
	path := filepath.Join(w.Dir(vmi.UID), "volume-seed.iso")
	for _, dir := range []string{w.Dir(vmi.UID), path + ".d"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, half := range []string{path + ".new", filepath.Join(path+".d", "other")} {
		if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := prepare(t, w, vmi).Disks["seed"].Path; fromISO(t, got, "user-data") != "user" {
		t.Fatal("the disk is wrong")
	}
	if left, err := filepath.Glob(path + "*"); err != nil || len(left) != 1 {
		t.Errorf("files %v, %v", left, err)
	}
}

func TestImage_RefersToOtherFiles(t *testing.T) {
	for name, head := range map[string]string{
		"backing file":       qcow2(3, 512, 0),
		"old, backing file":  qcow2(2, 512, 0),
		"external data file": qcow2(3, 0, 1<<2),
		"cut off":            "QFI\xfb\x00",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t)
			w.Images = images{"img": {"/disk/a.img": head}}
			_, err := w.Prepare(t.Context(), guest("uid-1", containerDisk("img")), kvmHost)
			domainfixture.Says(t, err, "ns/guest", "spec.volumes[0].containerDisk.image")
			if _, err := os.Stat(filepath.Join(w.Dir("uid-1"), "volume-root.qcow2")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("an overlay was made: %v", err)
			}
		})
	}
}

func TestImage_NotRegularFile(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := errors.Join(os.WriteFile(secret, nil, 0o600), os.Symlink(secret, filepath.Join(dir, "disk.img")),
		os.Symlink(secret, filepath.Join(dir, "link")), os.Mkdir(filepath.Join(dir, "dir"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		volume v1.Volume
		words  []string
	}{
		"link in a claim": {claimed("c"), []string{"persistentVolumeClaim.claimName", "not a regular file"}},
		"host link":       {hostDisk(filepath.Join(dir, "link"), v1.HostDiskExists), []string{"hostDisk.path", "not a regular file"}},
		"host directory":  {hostDisk(filepath.Join(dir, "dir"), v1.HostDiskExistsOrCreate), []string{"hostDisk.path", "not a regular file"}},
		"host, upwards":   {hostDisk(dir+"/../x", v1.HostDiskExistsOrCreate), []string{"hostDisk.path", "clean absolute path"}},
		"host, relative":  {hostDisk("x", v1.HostDiskExistsOrCreate), []string{"hostDisk.path", "absolute"}},
		"host, missing":   {hostDisk(filepath.Join(dir, "none"), v1.HostDiskExists), []string{"hostDisk.path", "does not exist"}},
		"no device":       {claimed("block"), []string{"persistentVolumeClaim.claimName", "not a block device"}},
		"unknown claim":   {claimed("none"), []string{"persistentVolumeClaim.claimName", "none"}},
		"volume name":     {v1.Volume{Name: "../up", VolumeSource: emptyDisk("1Mi").VolumeSource}, []string{"spec.volumes[0].name", "../up"}},
		"no size":         {emptyDisk("0"), []string{"emptyDisk.capacity"}},
		"not base64": {v1.Volume{Name: "seed", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserDataBase64: "%"}}},
			[]string{"cloudInitNoCloud.userDataBase64"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t)
			w.Claims = claims{"c": {Path: dir, Bytes: 1}, "block": {Path: secret, Block: true}}
			_, err := w.Prepare(t.Context(), guest("uid-1", tt.volume), kvmHost)
			domainfixture.Says(t, err, append(tt.words, "VirtualMachineInstance ns/guest")...)
		})
	}
}

func TestImage_SharedDiskNotRecreated(t *testing.T) {
	w, dir := newWorkspace(t), t.TempDir()
	w.Claims = claims{"c": {Path: dir, Shared: true, Bytes: 1 << 20}, "own": {Path: dir, Bytes: 1 << 20}}
	vmi := guest("uid-1", claimed("c"))
	vmi.Status.Phase = v1.Running
	_, err := w.Prepare(t.Context(), vmi, kvmHost)
	domainfixture.Says(t, err, "ns/guest", "disk.img", "declared as shared", "on every node")
	if _, err := os.Stat(filepath.Join(dir, "disk.img")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was made: %v", err)
	}
	vmi.Spec.Volumes[0] = claimed("own")
	prepare(t, w, vmi) // the copy needs a location
}

func TestWorkspace_ErrorTextIsStable(t *testing.T) {
	w := newWorkspace(t)
	missing := filepath.Join(t.TempDir(), "none")
	w.Claims = claims{"c": {Path: missing, Bytes: 1 << 20}}
	vmi := guest("uid-1", claimed("c"))
	_, first := w.Prepare(t.Context(), vmi, kvmHost)
	_, second := w.Prepare(t.Context(), vmi, kvmHost)
	if first == nil || second == nil || first.Error() != second.Error() {
		t.Fatalf("a status written at every attempt:\n%v\n%v", first, second)
	}
}

func TestRemove_OnlyOneVMI(t *testing.T) {
	w := newWorkspace(t)
	for _, uid := range []types.UID{"uid-1", "uid-2"} {
		prepare(t, w, guest(uid, cloudInit("x", "")))
	}
	for _, uid := range []types.UID{"..", ".", "/", "../..", "uid-1/../uid-2", "a b"} {
		if err := w.Remove(uid); err == nil {
			t.Errorf("%q names a guest", uid)
		}
		if _, err := w.Prepare(t.Context(), guest(uid), kvmHost); err == nil {
			t.Errorf("files were prepared for %q", uid)
		}
	}
	if err := errors.Join(w.Remove("uid-1"), w.Remove("uid-1"), w.Remove("uid-3"), w.Remove("")); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[types.UID]bool{"uid-1": false, "uid-2": true} {
		if _, err := os.Stat(w.Dir(uid)); (err == nil) != want {
			t.Errorf("%s: %v", uid, err)
		}
	}
}

func TestOwners_AfterRestart(t *testing.T) {
	w := newWorkspace(t)
	prepare(t, w, guest("uid-1"))
	prepare(t, w, guest("uid-2"))
	if err := w.Remove("uid-2"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.Root, "owners", "uid-3.json.new"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	// As is one that is removed while the folder is read.
	if err := os.Symlink("nowhere", filepath.Join(w.Root, "owners", "uid-4.json")); err != nil {
		t.Fatal(err)
	}
	got, err := (&workspace.Workspace{Root: w.Root}).Owners()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[types.UID]types.NamespacedName{"uid-1": {Namespace: "ns", Name: "guest"}}, got); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
}
