// SPDX-License-Identifier: Apache-2.0

package workspace_test

import (
	"context"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/domainfixture"
	"github.com/virtloom/virtloom/domain/workspace"
)

// atOnce does not limit the rate.
func atOnce(context.Context, int) error { return nil }

// onImage returns a VMI with the disk at a path of its Pod, and its facts.
func onImage(path string) (*v1.VirtualMachineInstance, convert.Facts) {
	return guest("uid-1", containerDisk("img")), convert.Facts{Disks: map[string]convert.DiskSource{
		"root": {Path: "/overlay", Backing: &convert.DiskSource{Path: path, Inside: path, Format: "raw"}},
	}}
}

const podImage = "/var/run/kubevirt-image-volume/disk_0/disk"

func TestChecksums_OfImages(t *testing.T) {
	w, l := inLauncher(t)
	disk := strings.Repeat("content of a disk", 1<<17) // more than one piece
	mustWrite(t, l.path(podImage, "a.img"), disk)
	mustWrite(t, filepath.Join(l.kernel, "vmlinuz"), "kernel")
	vmi, f := onImage(podImage + "/a.img")
	vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{Container: &v1.KernelBootContainer{Image: "boot", KernelPath: "/vmlinuz", InitrdPath: "/initrd"}}}
	paced := 0
	got, err := w.Checksums(t.Context(), vmi, f, func(_ context.Context, n int) error {
		if n > workspace.ChecksumPiece {
			t.Errorf("%d bytes at once", n)
		}
		paced += n
		return nil
	})
	// What can be read has its checksum all the same.
	domainfixture.Says(t, err, "ns/guest", "the initrd")
	if got.Disks["root"] != crc32.ChecksumIEEE([]byte(disk)) || got.Kernel != crc32.ChecksumIEEE([]byte("kernel")) || got.Initrd != 0 {
		t.Errorf("%+v", got)
	}
	if paced != len(disk)+len("kernel") {
		t.Errorf("waited for %d bytes", paced)
	}
}

// TestChecksums_Hostile: whatever a tenant puts in the place of an image costs little, and gets no checksum.
func TestChecksums_Hostile(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "file")
	mustWrite(t, elsewhere, "of the node")
	for name, tt := range map[string]struct {
		put  func(path string) error
		says string
	}{
		"a link":   {func(path string) error { return os.Symlink(elsewhere, path) }, "regular file"},
		"a pipe":   {func(path string) error { return unix.Mkfifo(path, 0o600) }, "regular file"},
		"a folder": {func(path string) error { return os.Mkdir(path, 0o700) }, "regular file"},
		"nothing":  {func(string) error { return nil }, "no such file"},
		"a huge hole": {func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 64<<30+1))
		}, "larger than"},
		"an empty file": {func(path string) error { return os.WriteFile(path, nil, 0o600) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, l := inLauncher(t)
			path := l.path(podImage, "a.img")
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), tt.put(path)); err != nil {
				t.Fatal(err)
			}
			vmi, f := onImage(podImage + "/a.img")
			got, err := w.Checksums(t.Context(), vmi, f, func(context.Context, int) error {
				t.Error("it is read")
				return nil
			})
			if got.Disks["root"] != 0 || tt.says == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// TestChecksums_FileChanges: a file that changes while it is read has no checksum.
func TestChecksums_FileChanges(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"written":   func(path string) error { return errors.Join(os.WriteFile(path, make([]byte, 1<<22), 0o600)) },
		"cut":       func(path string) error { return os.Truncate(path, 5) },
		"it grows":  func(path string) error { return os.Truncate(path, 1<<23) },
		"it is cut": func(path string) error { return os.Truncate(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			w, l := inLauncher(t)
			mustWrite(t, l.path(podImage, "a.img"), strings.Repeat("a", 1<<22))
			vmi, f := onImage(podImage + "/a.img")
			got, err := w.Checksums(t.Context(), vmi, f, func(context.Context, int) error { return change(l.path(podImage, "a.img")) })
			if got.Disks["root"] != 0 || err == nil || !strings.Contains(err.Error(), "changed") {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// TestChecksums_Cancelled: the end of the context ends it before the next piece.
func TestChecksums_Cancelled(t *testing.T) {
	w, l := inLauncher(t)
	mustWrite(t, l.path(podImage, "a.img"), strings.Repeat("a", 1<<22))
	vmi, f := onImage(podImage + "/a.img")
	ctx, cancel := context.WithCancel(t.Context())
	pieces := 0
	got, err := w.Checksums(ctx, vmi, f, func(ctx context.Context, _ int) error {
		pieces++
		cancel()
		return ctx.Err()
	})
	if got.Disks["root"] != 0 || !errors.Is(err, context.Canceled) || pieces != 1 {
		t.Errorf("%+v, %v after %d pieces", got, err, pieces)
	}
}

// TestChecksums_OnNode: without Pods the files are those of the node.
func TestChecksums_OnNode(t *testing.T) {
	needQemuImg(t)
	w := newWorkspace(t)
	w.Images = images{"img": {"/disk/a.img": strings.Repeat("\x00", 1<<20)}, "boot": {"/k": "kernel"}}
	vmi := guest("uid-1", containerDisk("img"))
	vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{Container: &v1.KernelBootContainer{Image: "boot", KernelPath: "/k"}}}
	got, err := w.Checksums(t.Context(), vmi, prepare(t, w, vmi), atOnce)
	if err != nil || got.Disks["root"] != crc32.ChecksumIEEE(make([]byte, 1<<20)) || got.Kernel != crc32.ChecksumIEEE([]byte("kernel")) {
		t.Errorf("%+v, %v", got, err)
	}
}
