// SPDX-License-Identifier: Apache-2.0

package mounts_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/mounts"
)

const (
	qemu    = 107
	private = "/var/run/kubevirt-private"
	scratch = "/var/run/kubevirt-ephemeral-disks"
)

// launcher is the launcher Pod of a VMI on a node.
type launcher struct {
	node
	mounts.Pods
	vmi *v1.VirtualMachineInstance
	*container
}

// newLauncher starts a launcher whose container has the volumes of a Pod, and more binds.
func newLauncher(t *testing.T, binds ...string) *launcher {
	t.Helper()
	n := newNode(t)
	n.mkdir(n.folder("private"), n.folder("ephemeral-disks"))
	l := &launcher{node: n, vmi: &v1.VirtualMachineInstance{}}
	l.vmi.UID = guestUID
	l.container = startContainer(t, t.TempDir(), append([]string{n.folder("private") + ":" + private, n.folder("ephemeral-disks") + ":" + scratch}, binds...)...)
	l.Pods = mounts.Pods{
		Mounter: n.Mounter, User: qemu, Group: qemu,
		Pod: func(*v1.VirtualMachineInstance) (types.UID, error) { return podUID, nil },
		PID: func(*v1.VirtualMachineInstance) (int, error) { return l.cmd.Process.Pid, nil },
	}
	return l
}

// open opens a folder of the launcher, which closes with the test.
func (l *launcher) open(dir string) (*os.File, error) {
	f, err := l.Folder(l.node.t.Context(), l.vmi, dir)
	if err == nil {
		l.node.t.Cleanup(func() { _ = f.Close() })
	}
	return f, err
}

func stat(t *testing.T, path string) (st unix.Stat_t) {
	t.Helper()
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return st
}

func same(t *testing.T, f *os.File, path string) bool {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	other := stat(t, path)
	return st.Dev == other.Dev && st.Ino == other.Ino
}

func TestFolder_MadeForHypervisorAlone(t *testing.T) {
	l := newLauncher(t)
	dir := filepath.Join(l.folder("private"), "uid-1", "sub")
	for _, before := range []func(){
		func() {},
		func() {}, // it is there
		func() { // a crash has left it with its maker's owner, or another one has made it for all
			if err := errors.Join(os.Chown(dir, 0, 0), os.Chmod(dir, 0o777)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		before()
		f, err := l.open(private + "/uid-1/sub")
		if err != nil {
			t.Fatal(err)
		}
		if st := stat(t, dir); !same(t, f, dir) || st.Uid != qemu || st.Gid != qemu || st.Mode&0o7777 != 0o700 {
			t.Errorf("mode %o of user %d, group %d", st.Mode, st.Uid, st.Gid)
		}
	}
	if f, err := l.open(scratch); err != nil || !same(t, f, l.folder("ephemeral-disks")) {
		t.Errorf("the volume itself: %v", err)
	}
}

func TestFolder_NotMadeByOthers(t *testing.T) {
	l := newLauncher(t)
	outside := t.TempDir()
	before := stat(t, outside)
	if err := errors.Join(os.Symlink(outside, filepath.Join(l.folder("private"), "link")), os.Symlink(outside, filepath.Join(l.folder("ephemeral-disks"), "a")),
		unix.Mkfifo(filepath.Join(l.folder("private"), "pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{private + "/link", private + "/link/x", private + "/pipe", scratch + "/a/b", private + "/../x", private + "//x", private + "/./x"} {
		if f, err := l.open(dir); !errors.Is(err, domain.ErrInvalid) {
			t.Errorf("%s: %v, %v", dir, f, err)
		}
	}
	if after := stat(t, outside); after.Uid != before.Uid || after.Mode != before.Mode {
		t.Errorf("a folder outside of the Pod has changed: %+v", after)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
		t.Errorf("outside of the Pod there is %v, %v", entries, err)
	}
}

func TestFolder_ClaimIsMount(t *testing.T) {
	claim, image := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(image, "disk"), 0o755); err != nil {
		t.Fatal(err)
	}
	l := newLauncher(t, claim+":"+private+"/vmi-disks/data", image+":/var/run/kubevirt-image-volume/disk_0")
	for dir, want := range map[string]string{
		private + "/vmi-disks/data":                  claim,
		"/var/run/kubevirt-image-volume/disk_0":      image,
		"/var/run/kubevirt-image-volume/disk_0/disk": filepath.Join(image, "disk"),
	} {
		if f, err := l.open(dir); err != nil || !same(t, f, want) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if f, err := l.open(private + "/vmi-disks/none"); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("a claim that the Pod does not have: %v, %v", f, err)
	}
	// What else is there, made by a process of the Pod.
	disks := filepath.Join(l.folder("private"), "vmi-disks")
	if err := errors.Join(os.Mkdir(filepath.Join(disks, "forged"), 0o755), os.Symlink("/etc", filepath.Join(disks, "link"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"forged", "link", "..", ""} {
		if f, err := l.open(private + "/vmi-disks/" + name); !errors.Is(err, domain.ErrInvalid) {
			t.Errorf("%q: %v, %v", name, f, err)
		}
	}
	// The folders of claims are in a volume of the Pod: their names are its processes'.
	if err := errors.Join(os.Rename(disks, disks+".away"), os.Symlink("../../../etc", disks)); err != nil {
		t.Fatal(err)
	}
	if f, err := l.open(private + "/vmi-disks/data"); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("behind a link: %v, %v", f, err)
	}
}

func TestFolder_LauncherReplaced(t *testing.T) {
	l := newLauncher(t)
	pids := []int{l.cmd.Process.Pid, 1 << 30}
	l.PID = func(*v1.VirtualMachineInstance) (int, error) {
		pid := pids[0]
		pids = append(pids[1:], pid)
		return pid, nil
	}
	for range 2 {
		if f, err := l.open(scratch); !errors.Is(err, domain.ErrNotReady) {
			t.Errorf("%v, %v", f, err)
		}
	}
	l.PID = func(*v1.VirtualMachineInstance) (int, error) { return os.Getpid(), nil }
	if f, err := l.open(scratch); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("a process of the node: %v, %v", f, err)
	}
	l.PID = func(*v1.VirtualMachineInstance) (int, error) { return 0, nil }
	if f, err := l.open(scratch); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("an invisible process: %v, %v", f, err)
	}
}

func TestGive_FilesAndDirectoriesOnly(t *testing.T) {
	l := newLauncher(t)
	path := l.write(filepath.Join(t.TempDir(), "disk.img"), "data")
	if err := os.Chmod(path, 0o4444); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 2 {
		if err := l.Give(f); err != nil {
			t.Fatal(err)
		}
		if st := stat(t, path); st.Uid != qemu || st.Gid != qemu || st.Mode&0o7777 != 0o644 {
			t.Errorf("mode %o of user %d, group %d", st.Mode, st.Uid, st.Gid)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := l.Give(null); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("a device: %v", err)
	}
}

// imageOf is the content of an image with a kernel, and with what leads elsewhere.
func imageOf(t *testing.T, root string) {
	t.Helper()
	err := errors.Join(os.MkdirAll(filepath.Join(root, "boot"), 0o755), os.WriteFile(filepath.Join(root, "boot/kernel"), []byte("kernel"), 0o600),
		os.Symlink("/boot/kernel", filepath.Join(root, "vmlinuz")), os.Symlink("../../../../../../etc/passwd", filepath.Join(root, "passwd")),
		os.Symlink("/proc/kmsg", filepath.Join(root, "kmsg")), unix.Mkfifo(filepath.Join(root, "pipe"), 0o600),
		unix.Mknod(filepath.Join(root, "console"), unix.S_IFCHR|0o600, int(unix.Mkdev(5, 1))))
	if err != nil {
		t.Fatal(err)
	}
}

// readsKernel reads what of the image is the image's, and nothing else.
func (l *launcher) readsKernel() {
	t := l.node.t
	t.Helper()
	for file, want := range map[string]error{
		"/boot/kernel": nil, "boot/kernel": nil, "/vmlinuz": nil,
		"/boot/none": domain.ErrNotFound, "/passwd": domain.ErrNotFound,
		"/proc/kmsg": domain.ErrInvalid, "/kmsg": domain.ErrInvalid, "/proc/1/root/etc/passwd": domain.ErrInvalid, "/proc/self/exe": domain.ErrInvalid,
		"/pipe": domain.ErrInvalid, "/console": nil, "/boot": domain.ErrInvalid, "/boot/../boot/kernel": domain.ErrInvalid, "": domain.ErrInvalid,
	} {
		f, err := l.Kernel(t.Context(), l.vmi, file)
		if file == "/console" { // refused before or after it is opened: mounts are without devices or not
			if err == nil {
				t.Error("a device is a kernel")
			}
			continue
		}
		if want != nil {
			if !errors.Is(err, want) {
				t.Errorf("%q: %v, %v, want %v", file, f, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", file, err)
			continue
		}
		if b, err := io.ReadAll(f); err != nil || string(b) != "kernel" {
			t.Errorf("%q has %q, %v", file, b, err)
		}
		_ = f.Close()
	}
}

func TestKernel_OfContainer(t *testing.T) {
	l := newLauncher(t)
	if f, err := l.Kernel(t.Context(), l.vmi, "/boot/kernel"); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("before its container is there: %v, %v", f, err)
	}
	root := t.TempDir()
	imageOf(t, root)
	c := startContainer(t, root, l.folder("container-disks")+":/copy", "/proc:/proc")
	if f, err := l.Kernel(t.Context(), l.vmi, "/boot/kernel"); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("before it listens: %v, %v", f, err)
	}
	if got := c.do("listen", "/copy/kernel-boot.sock"); got != "ok" {
		t.Fatal(got)
	}
	l.readsKernel()
}

func TestKernel_SocketOfOthers(t *testing.T) {
	l := newLauncher(t)
	socket := filepath.Join(l.folder("container-disks"), "kernel-boot.sock")
	for name, put := range map[string]func() error{
		"a file": func() error { return os.WriteFile(socket, nil, 0o600) },
		"a link": func() error { return os.Symlink("/run/systemd/private", socket) },
		"a pipe": func() error { return unix.Mkfifo(socket, 0o600) },
	} {
		if err := put(); err != nil {
			t.Fatal(err)
		}
		if f, err := l.Kernel(t.Context(), l.vmi, "/boot/kernel"); !errors.Is(err, domain.ErrInvalid) {
			t.Errorf("%s: %v, %v", name, f, err)
		}
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKernel_OfImageVolume(t *testing.T) {
	image := t.TempDir()
	imageOf(t, image)
	if err := os.Mkdir(filepath.Join(image, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	l := newLauncher(t, image+":/var/run/kubevirt-kernel-boot", "/proc:/var/run/kubevirt-kernel-boot/proc")
	l.readsKernel()
}

// nodes makes device nodes in a folder.
func nodes(t *testing.T, dir string, all map[string]uint64) {
	t.Helper()
	for name, dev := range all {
		kind := uint32(unix.S_IFCHR)
		if unix.Major(dev) == 7 {
			kind = unix.S_IFBLK
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), unix.Mknod(filepath.Join(dir, name), kind|0o600, int(dev))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOwnDevices_AllocatedOnly(t *testing.T) {
	dev, ofNode := t.TempDir(), t.TempDir()
	nodes(t, dev, map[string]uint64{
		"kvm": unix.Mkdev(10, 232), "net/tun": unix.Mkdev(10, 200), "vhost-net": unix.Mkdev(1, 3), // a number that is not its own
		"data": unix.Mkdev(7, 250), "other": unix.Mkdev(7, 251), "char": unix.Mkdev(1, 5), "mounted": unix.Mkdev(7, 252),
		"vfio/vfio": unix.Mkdev(10, 196), "vfio/12": unix.Mkdev(511, 0), "vfio/block": unix.Mkdev(7, 249), "vfio/devices/vfio0": unix.Mkdev(510, 0),
		"bus/usb/001/002": unix.Mkdev(189, 1), "bus/usb/002/001": unix.Mkdev(10, 229), "bus/usb/stray": unix.Mkdev(189, 5),
	})
	nodes(t, ofNode, map[string]uint64{"disk": unix.Mkdev(7, 253), "vsock": unix.Mkdev(10, 241), "001": unix.Mkdev(189, 2)})
	if err := errors.Join(os.Symlink(filepath.Join(ofNode, "disk"), filepath.Join(dev, "link")), os.Symlink(filepath.Join(ofNode, "vsock"), filepath.Join(dev, "vhost-vsock")),
		os.Symlink(ofNode, filepath.Join(dev, "bus/usb/003")), os.Symlink(filepath.Join(ofNode, "vsock"), filepath.Join(dev, "vfio/13")),
		os.WriteFile(filepath.Join(dev, "file"), nil, 0o600), os.Mkdir(filepath.Join(dev, "bus/usb/004"), 0o755)); err != nil {
		t.Fatal(err)
	}
	l := newLauncher(t, dev+":/dev", filepath.Join(dev, "other")+":/dev/mounted", ofNode+":/dev/bus/usb/004")
	inside := filepath.Join("/proc", strconv.Itoa(l.cmd.Process.Pid), "root/dev")
	for _, name := range []string{"data", "char", "link", "file", "mounted", "none", "net", "../dev/other"} {
		v := v1.Volume{Name: name}
		v.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{}
		v.PersistentVolumeClaim.ClaimName = "c"
		l.vmi.Spec.Volumes = append(l.vmi.Spec.Volumes, v)
	}
	l.vmi.Spec.Volumes = append(l.vmi.Spec.Volumes, v1.Volume{Name: "other"}) // not of a claim
	for range 2 {
		if err := l.OwnDevices(t.Context(), l.vmi); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]uint32{
		inside + "/kvm": qemu, inside + "/net/tun": qemu, inside + "/data": qemu,
		inside + "/vhost-net": 0, inside + "/other": 0, inside + "/char": 0, inside + "/file": 0, inside + "/net": 0, inside + "/mounted": 0,
		ofNode + "/disk": 0, ofNode + "/vsock": 0, ofNode + "/001": 0,
		inside + "/vfio/vfio": qemu, inside + "/vfio/12": qemu, inside + "/vfio/block": 0, inside + "/vfio/devices": 0, inside + "/vfio/devices/vfio0": 0,
		inside + "/bus/usb/001/002": qemu, inside + "/bus/usb/002/001": 0, inside + "/bus/usb/stray": 0, inside + "/bus/usb/001": 0,
	} {
		if st := stat(t, path); st.Uid != want {
			t.Errorf("%s is user %d's, want %d", path, st.Uid, want)
		}
	}
}
