// SPDX-License-Identifier: Apache-2.0

package mounts_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/mounts"
)

func TestContainerDisk_S8MountedReadOnly(t *testing.T) {
	n := newNode(t)
	if _, err := n.ContainerDisk(guest, mounts.ContainerDisk{Index: 1}); !errors.Is(err, domain.ErrNotReady) {
		t.Fatalf("before the container is up: %v", err)
	}
	c := n.sidecar(1, map[string]string{"disk/os.img": "image"})
	path, err := n.ContainerDisk(guest, mounts.ContainerDisk{Index: 1})
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(n.folder("container-disks"), "disk_1.img"); path != want {
		t.Errorf("path %s, want %s", path, want)
	}
	n.reads(path, "image")
	if err := os.WriteFile(path, []byte("x"), 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing: %v", err)
	}
	c.end() // the mount outlives the container
	if again, err := n.ContainerDisk(guest, mounts.ContainerDisk{Index: 1}); err != nil || again != path {
		t.Errorf("again: %q, %v", again, err)
	}
	if got := n.mounted(); len(got) != 1 {
		t.Errorf("mounts: %v", got)
	}
	n.reads(path, "image")
	fresh := &mounts.Mounter{Pods: n.Pods, Records: n.Records} // a restarted agent
	if err := fresh.Release(guestUID, 0); err != nil {
		t.Fatal(err)
	}
	if got := n.mounted(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file still exists: %v", err)
	}
	if err := fresh.Release(guestUID, 0); err != nil {
		t.Error(err)
	}
}

func TestContainerDisk_ImagePath(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		path  string
		want  string
		err   error
		says  string
	}{
		"by name":      {files: map[string]string{"disk/a": "a", "images/b": "b"}, path: "/images/b", want: "b"},
		"only one":     {files: map[string]string{"disk/a": "a"}, want: "a"},
		"two":          {files: map[string]string{"disk/a": "a", "disk/b": "b"}, err: domain.ErrInvalid, says: "has 2 files"},
		"none":         {files: map[string]string{"other": "a"}, err: domain.ErrNotReady, says: "/disk"},
		"missing":      {files: map[string]string{"disk/a": "a"}, path: "/disk/b", err: domain.ErrNotReady, says: "/disk/b"},
		"upwards":      {files: map[string]string{"disk/a": "a"}, path: "/disk/../../../etc/passwd", err: domain.ErrInvalid, says: "plain names"},
		"dots":         {files: map[string]string{"disk/a": "a"}, path: "..", err: domain.ErrInvalid},
		"a folder":     {files: map[string]string{"disk/a": "a"}, path: "/disk", err: domain.ErrInvalid, says: "directory"},
		"a long name":  {files: map[string]string{"disk/a": "a"}, path: "/disk/" + strings.Repeat("n", 300), err: domain.ErrInvalid},
		"a long path":  {files: map[string]string{"disk/a": "a"}, path: strings.Repeat("/nn", 2000), err: domain.ErrInvalid},
		"a zero":       {files: map[string]string{"disk/a": "a"}, path: "/disk/a\x00b", err: domain.ErrInvalid},
		"its own root": {files: map[string]string{"disk/a": "a"}, path: "/", err: domain.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.sidecar(0, tt.files)
			path, err := n.ContainerDisk(guest, mounts.ContainerDisk{Path: tt.path})
			if tt.err == nil {
				if err != nil {
					t.Fatal(err)
				}
				n.reads(path, tt.want)
				return
			}
			if !errors.Is(err, tt.err) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want %v with %q", err, tt.err, tt.says)
			}
			if got := n.mounted(); len(got) != 0 {
				t.Errorf("mounted: %v", got)
			}
		})
	}
}

func TestContainerDisk_ImageIsNotRegularFile(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, lay := range map[string]func(root string) error{
		"a link":          func(root string) error { return os.Symlink(secret, filepath.Join(root, "disk/os.img")) },
		"a relative link": func(root string) error { return os.Symlink("../../../.."+secret, filepath.Join(root, "disk/os.img")) },
		"a link to a folder": func(root string) error {
			return errors.Join(os.Remove(filepath.Join(root, "disk")), os.Symlink(filepath.Dir(secret), filepath.Join(root, "disk")))
		},
		"a magic link": func(root string) error { return os.Symlink("/proc/self/exe", filepath.Join(root, "disk/os.img")) },
		"a pipe":       func(root string) error { return unix.Mkfifo(filepath.Join(root, "disk/os.img"), 0o600) },
		"a device": func(root string) error {
			return unix.Mknod(filepath.Join(root, "disk/os.img"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5)))
		},
		"a disk of the node": func(root string) error {
			return unix.Mknod(filepath.Join(root, "disk/os.img"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0)))
		},
		"a folder": func(root string) error { return os.Mkdir(filepath.Join(root, "disk/os.img"), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			c := n.sidecar(0, map[string]string{"disk/x": ""})
			if err := errors.Join(os.Remove(filepath.Join(c.root, "disk/x")), lay(c.root)); err != nil {
				t.Fatal(err)
			}
			path, err := n.ContainerDisk(guest, mounts.ContainerDisk{})
			if !errors.Is(err, domain.ErrInvalid) || len(n.mounted()) != 0 {
				t.Fatalf("%q, %v, mounted %v", path, err, n.mounted())
			}
		})
	}
}

// The user of the launcher owns the directory that it shares with the agent.
func TestContainerDisk_MaliciousLauncher(t *testing.T) {
	outside := t.TempDir()
	precious := filepath.Join(outside, "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	listener := startContainer(t, t.TempDir(), outside+":/x")
	listener.do("listen", "/x/host.sock")
	for name, tt := range map[string]struct {
		lay func(n node, folder string) error
		err error
	}{
		"a link to a socket of the node": {func(_ node, f string) error {
			return os.Symlink(filepath.Join(outside, "host.sock"), filepath.Join(f, "disk_0.sock"))
		}, domain.ErrInvalid},
		"a file as the socket": {func(n node, f string) error { n.write(filepath.Join(f, "disk_0.sock"), ""); return nil }, domain.ErrInvalid},
		"a socket nobody serves": {func(_ node, f string) error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Bind(fd, &unix.SockaddrUnix{Name: short(t, f, "disk_0.sock")})
		}, domain.ErrNotReady},
		"a socket of the agent itself": {func(_ node, f string) error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err == nil {
				t.Cleanup(func() { _ = unix.Close(fd) })
				err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: short(t, f, "disk_0.sock")}), unix.Listen(fd, 1))
			}
			return err
		}, domain.ErrInvalid},
		"a link as the target": {func(n node, f string) error {
			n.sidecar(0, map[string]string{"disk/a": "image"})
			return os.Symlink(precious, filepath.Join(f, "disk_0.img"))
		}, domain.ErrInvalid},
		"a pipe as the target": {func(n node, f string) error {
			n.sidecar(0, map[string]string{"disk/a": "image"})
			return unix.Mkfifo(filepath.Join(f, "disk_0.img"), 0o600)
		}, domain.ErrInvalid},
		"a link as the folder": {func(_ node, f string) error {
			return errors.Join(os.Remove(f), os.Symlink(outside, f))
		}, domain.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			if err := tt.lay(n, n.folder("container-disks")); err != nil {
				t.Fatal(err)
			}
			path, err := n.ContainerDisk(guest, mounts.ContainerDisk{})
			if !errors.Is(err, tt.err) {
				t.Fatalf("%q, %v; want %v", path, err, tt.err)
			}
			n.reads(precious, "precious")
			if err := n.Release(guestUID, 0); err != nil && !errors.Is(err, domain.ErrInvalid) {
				t.Error(err)
			}
			n.reads(precious, "precious")
		})
	}
}

// short returns a socket path that is short enough for the kernel.
func short(t *testing.T, dir, name string) string {
	t.Helper()
	link := filepath.Join(os.TempDir(), "vl-"+filepath.Base(t.TempDir()))
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(link) })
	return filepath.Join(link, name)
}

func TestContainerDisk_VisibleInLauncher(t *testing.T) {
	for name, own := range map[string]bool{"by propagation": true, "in its own namespace": false} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.sidecar(0, map[string]string{"disk/a": "image"})
			launcher := startContainer(t, t.TempDir(), n.folder("container-disks")+":/var/run/kubevirt/container-disks")
			g, pid := guest, launcher.cmd.Process.Pid
			if !own {
				g.PID = pid
			}
			path, err := n.ContainerDisk(g, mounts.ContainerDisk{})
			if err != nil {
				t.Fatal(err)
			}
			const there = "/var/run/kubevirt/container-disks/disk_0.img"
			if !own && path != there {
				t.Errorf("path %s, want %s", path, there)
			}
			if got := launcher.do("read", there); got != `"image" <nil>` {
				t.Errorf("the launcher reads %s", got)
			}
			if got := launcher.do("write", there); !strings.Contains(got, "read-only") {
				t.Errorf("the launcher writes: %s", got)
			}
			if got := len(n.mounted()); (got > 0) != own {
				t.Errorf("%d mounts in the agent's namespace", got)
			}
			if again, err := n.ContainerDisk(g, mounts.ContainerDisk{}); err != nil || again != path {
				t.Errorf("again: %q, %v", again, err)
			}
			if err := n.Release(guestUID, pid); err != nil {
				t.Fatal(err)
			}
			if got := launcher.do("read", there); !strings.Contains(got, "no such file") {
				t.Errorf("after the release the launcher reads %s", got)
			}
		})
	}
}

func TestRelease_LauncherEnded(t *testing.T) {
	n := newNode(t)
	n.sidecar(0, map[string]string{"disk/a": "image"})
	launcher := startContainer(t, t.TempDir(), n.folder("container-disks")+":/var/run/kubevirt/container-disks")
	g := guest
	g.PID = launcher.cmd.Process.Pid
	if _, err := n.ContainerDisk(g, mounts.ContainerDisk{}); err != nil {
		t.Fatal(err)
	}
	launcher.end()
	if _, err := n.ContainerDisk(g, mounts.ContainerDisk{Index: 1}); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("after the launcher ended: %v", err)
	}
	if err := n.Release(guestUID, g.PID); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(n.Records); err != nil || len(left) != 0 {
		t.Errorf("records %v, %v", left, err)
	}
}
