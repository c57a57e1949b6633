// SPDX-License-Identifier: Apache-2.0

package mounts_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/mounts"
)

func volume(name string) mounts.Volume { return mounts.Volume{Name: name, Carrier: carrier} }

func TestPlug_S8FilesystemVolume(t *testing.T) {
	for name, dir := range map[string]string{
		"CSI": "kubernetes.io~csi/pv-1/mount", "local": "kubernetes.io~local-volume/pv-1", "NFS": "kubernetes.io~nfs/pv-1",
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.mkdir(n.carried("volumes/kubernetes.io~empty-dir/hotplug-disks"), n.carried("volumes/kubernetes.io~projected/token"))
			if _, err := n.Plug(guest, volume("data")); !errors.Is(err, domain.ErrNotReady) {
				t.Fatalf("before the volume is there: %v", err)
			}
			n.mkdir(n.carried("volumes", dir))
			if _, err := n.Plug(guest, volume("data")); !errors.Is(err, domain.ErrNotReady) {
				t.Fatalf("before its file system is mounted: %v", err)
			}
			disk := n.write(n.carried("volumes", dir, "disk.img"), "disk")
			got, err := n.Plug(guest, volume("data"))
			if err != nil || got.Path != filepath.Join(n.folder("hotplug-disks"), "data.img") {
				t.Fatalf("%+v, %v", got, err)
			}
			if err := os.WriteFile(got.Path, []byte("written by the guest"), 0o600); err != nil {
				t.Fatal(err)
			}
			n.reads(disk, "written by the guest")
			if again, err := n.Plug(guest, volume("data")); err != nil || again != got || len(n.mounted()) != 1 {
				t.Errorf("again: %+v, %v, mounted %v", again, err, n.mounted())
			}
			for range 2 {
				if err := n.Unplug(guest, volume("data")); err != nil {
					t.Fatal(err)
				}
			}
			if left := n.mounted(); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
			n.reads(disk, "written by the guest")
		})
	}
}

func TestPlug_S8BlockVolume(t *testing.T) {
	n := newNode(t)
	dev := filepath.Join(t.TempDir(), "sdx")
	mknod := func(minor uint32) {
		t.Helper()
		_ = os.Remove(dev)
		if err := unix.Mknod(dev, unix.S_IFBLK|0o600, int(unix.Mkdev(7, minor))); err != nil {
			t.Fatal(err)
		}
	}
	mknod(3)
	v := volume("data")
	v.Block = true
	if _, err := n.Plug(guest, v); !errors.Is(err, domain.ErrNotReady) {
		t.Fatalf("before the volume is there: %v", err)
	}
	n.mkdir(n.carried("volumeDevices/kubernetes.io~csi"))
	link := n.carried("volumeDevices/kubernetes.io~csi/pv-1")
	if err := os.Symlink(dev, link); err != nil {
		t.Fatal(err)
	}
	g := guest
	g.User, g.Group = 107, 107
	for _, minor := range []uint32{3, 3, 4} { // twice, and after the volume has changed its device
		mknod(minor)
		got, err := n.Plug(g, v)
		want := mounts.Plugged{Path: filepath.Join(n.folder("hotplug-disks"), "data"), Major: 7, Minor: minor}
		if err != nil || got != want {
			t.Fatalf("%+v, %v; want %+v", got, err, want)
		}
		st, err := os.Lstat(got.Path)
		if err != nil {
			t.Fatal(err)
		}
		sys, _ := st.Sys().(*syscall.Stat_t)
		if st.Mode()&os.ModeDevice == 0 || sys.Rdev != unix.Mkdev(7, minor) || sys.Uid != 107 || sys.Gid != 107 {
			t.Errorf("%v, %+v", st.Mode(), sys)
		}
	}
	if err := n.Release(guestUID, 0); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(n.folder("hotplug-disks")); err != nil || len(left) != 0 {
		t.Errorf("not removed: %v, %v", left, err)
	}
	if _, err := os.Lstat(dev); err != nil {
		t.Errorf("the device of the node: %v", err)
	}
}

// TestPlug_VolumeOfNode: an agent in a container finds what only the node has, where the kubelet's directories of the Pod have nothing
// of a hostPath volume, and link to a device that a storage driver has published elsewhere.
func TestPlug_VolumeOfNode(t *testing.T) {
	n := newNode(t)
	root := t.TempDir()
	disk := n.write(filepath.Join(root, "data/disk.img"), "disk")
	n.write(filepath.Join(root, "file/disk.img/x"), "")
	n.mkdir(filepath.Join(root, "link"), filepath.Join(root, "plugins"))
	if err := errors.Join(os.Symlink("../data/disk.img", filepath.Join(root, "link/disk.img")),
		unix.Mknod(filepath.Join(root, "plugins/sdx"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 3)))); err != nil {
		t.Fatal(err)
	}
	machine := startContainer(t, root)
	n.NodePID = machine.cmd.Process.Pid
	v := volume("data")
	for folder, want := range map[string]error{"/none": domain.ErrNotReady, "/link": domain.ErrInvalid, "/file": domain.ErrInvalid, "/data/../none": domain.ErrNotReady} {
		v.HostPath = folder
		if _, err := n.Plug(guest, v); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", folder, err, want)
		}
	}
	v.HostPath = "/data"
	got, err := n.Plug(guest, v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(got.Path, []byte("written by the guest"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.reads(disk, "written by the guest")
	v = mounts.Volume{Name: "block", Carrier: carrier, Block: true}
	n.mkdir(n.carried("volumeDevices/kubernetes.io~csi"))
	if err := os.Symlink("/plugins/sdx", n.carried("volumeDevices/kubernetes.io~csi/pv-1")); err != nil {
		t.Fatal(err)
	}
	if got, err := n.Plug(guest, v); err != nil || got.Major != 7 || got.Minor != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := n.Release(guestUID, 0); err != nil || len(n.mounted()) > 0 {
		t.Errorf("%v, left %v", err, n.mounted())
	}
}

func TestPlug_AmbiguousVolume(t *testing.T) {
	n := newNode(t)
	n.write(n.carried("volumes/kubernetes.io~csi/pv-1/mount/disk.img"), "one")
	n.write(n.carried("volumes/kubernetes.io~csi/pv-2/mount/disk.img"), "two")
	if _, err := n.Plug(guest, volume("data")); !errors.Is(err, domain.ErrInvalid) || !strings.Contains(err.Error(), "2 volumes") {
		t.Fatalf("%v", err)
	}
	v := volume("data")
	v.PersistentVolume = "pv-2"
	got, err := n.Plug(guest, v)
	if err != nil {
		t.Fatal(err)
	}
	n.reads(got.Path, "two")
	v.Name, v.PersistentVolume = "other", "pv-3"
	if _, err := n.Plug(guest, v); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("missing volume: %v", err)
	}
}

func TestPlug_NotADisk(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		block bool
		lay   func(path string) error
	}{
		"a link":                   {false, func(p string) error { return os.Symlink(secret, p) }},
		"a link upwards":           {false, func(p string) error { return os.Symlink("../../../../../.."+secret, p) }},
		"a folder":                 {false, func(p string) error { return os.Mkdir(p, 0o700) }},
		"a pipe":                   {false, func(p string) error { return unix.Mkfifo(p, 0o600) }},
		"a device":                 {false, func(p string) error { return unix.Mknod(p, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))) }},
		"a file as a device":       {true, func(p string) error { return os.WriteFile(p, nil, 0o600) }},
		"a character device":       {true, func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1))) }},
		"a link to no device":      {true, func(p string) error { return os.Symlink(secret, p) }},
		"a link to a magic device": {true, func(p string) error { return os.Symlink("/proc/self/fd/0", p) }},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.mkdir(n.carried("volumes/kubernetes.io~csi/pv/mount"), n.carried("volumeDevices/kubernetes.io~csi"))
			path := n.carried("volumes/kubernetes.io~csi/pv/mount/disk.img")
			v := volume("data")
			if v.Block = tt.block; v.Block {
				path = n.carried("volumeDevices/kubernetes.io~csi/pv")
			}
			if err := tt.lay(path); err != nil {
				t.Fatal(err)
			}
			if got, err := n.Plug(guest, v); !errors.Is(err, domain.ErrInvalid) {
				t.Errorf("%+v, %v", got, err)
			}
			if left, err := os.ReadDir(n.folder("hotplug-disks")); err != nil || len(left) != 0 || len(n.mounted()) != 0 {
				t.Errorf("left: %v, %v, mounted %v", left, err, n.mounted())
			}
		})
	}
}

func TestPlug_InvalidNames(t *testing.T) {
	n := newNode(t)
	n.write(n.carried("volumes/kubernetes.io~csi/pv/mount/disk.img"), "disk")
	for name, change := range map[string]func(*mounts.Guest, *mounts.Volume){
		"volume upwards":      func(_ *mounts.Guest, v *mounts.Volume) { v.Name = "../x" },
		"volume a path":       func(_ *mounts.Guest, v *mounts.Volume) { v.Name = "a/b" },
		"volume empty":        func(_ *mounts.Guest, v *mounts.Volume) { v.Name = "" },
		"volume dots":         func(_ *mounts.Guest, v *mounts.Volume) { v.Name = ".." },
		"volume zero":         func(_ *mounts.Guest, v *mounts.Volume) { v.Name = "a\x00" },
		"volume long":         func(_ *mounts.Guest, v *mounts.Volume) { v.Name = strings.Repeat("v", 300) },
		"carrier upwards":     func(_ *mounts.Guest, v *mounts.Volume) { v.Carrier = "../" + carrier },
		"carrier empty":       func(_ *mounts.Guest, v *mounts.Volume) { v.Carrier = "" },
		"Pod upwards":         func(g *mounts.Guest, _ *mounts.Volume) { g.Pod = ".." },
		"Pod empty":           func(g *mounts.Guest, _ *mounts.Volume) { g.Pod = "" },
		"guest a path":        func(g *mounts.Guest, _ *mounts.Volume) { g.UID = "a/../b" },
		"guest long":          func(g *mounts.Guest, _ *mounts.Volume) { g.UID = types.UID(strings.Repeat("u", 100)) },
		"PersistentVolume up": func(_ *mounts.Guest, v *mounts.Volume) { v.PersistentVolume = "../pv" },
	} {
		t.Run(name, func(t *testing.T) {
			g, v := guest, volume("data")
			change(&g, &v)
			if got, err := n.Plug(g, v); !errors.Is(err, domain.ErrInvalid) || len(n.mounted()) != 0 {
				t.Errorf("%+v, %v, mounted %v", got, err, n.mounted())
			}
		})
	}
}
