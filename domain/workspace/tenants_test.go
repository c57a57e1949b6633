// SPDX-License-Identifier: Apache-2.0

package workspace_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/internal/domainfixture"
)

// swapped exchanges two names over and over until the test has ended, as a tenant may in a claim,
// and counts the exchanges.
func swapped(t *testing.T, a, b string) *atomic.Int64 {
	t.Helper()
	var (
		n    atomic.Int64
		stop atomic.Bool
	)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			if unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) == nil {
				n.Add(1)
			}
		}
	}()
	t.Cleanup(func() {
		stop.Store(true)
		<-done
	})
	return &n
}

// TestTenantFile_SwappedWithALink: while root prepares a disk its tenant puts a link to a file of
// the node in its place, and back. No file outside the claim is grown, or opened.
func TestTenantFile_SwappedWithALink(t *testing.T) {
	needQemuImg(t)
	const rounds, mebi = 500, 1 << 20
	ephemeral := v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
	}}}
	for name, row := range map[string]struct {
		volume v1.Volume
		check  func(t *testing.T, path string)
	}{
		"a disk that grows": {volume: claimed("c")},
		"a disk below an overlay": {volume: ephemeral, check: func(t *testing.T, path string) {
			head := make([]byte, 32)
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.ReadAt(head, 0); err != nil {
				t.Fatal(err)
			}
			if n := binary.BigEndian.Uint64(head[24:]); n != mebi {
				t.Fatalf("the overlay is %d bytes large: another file was looked at", n)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w, dir, outside := newWorkspace(t), t.TempDir(), blank(t, filepath.Join(t.TempDir(), "file"), 3*mebi)
			disk, link := blank(t, filepath.Join(dir, "disk.img"), mebi), filepath.Join(dir, "link")
			domainfixture.Must(t, os.Symlink(outside, link))
			w.Claims = claims{"c": {Path: dir, Bytes: 8 * mebi}}
			swaps, prepared := swapped(t, disk, link), 0
			for i := range rounds {
				uid := types.UID("uid-" + strconv.Itoa(i))
				f, err := w.Prepare(t.Context(), guest(uid, row.volume), kvmHost)
				if n := size(t, outside); n != 3*mebi {
					t.Fatalf("round %d: a file outside the claim has %d bytes now", i, n)
				}
				if err != nil {
					continue
				}
				prepared++
				if row.check != nil {
					row.check(t, f.Disks["data"].Path)
				}
				for _, path := range []string{disk, link} { // whichever is the disk by now
					if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
						domainfixture.Must(t, unix.Ftruncate(fd, mebi))
						domainfixture.Must(t, unix.Close(fd))
					}
				}
			}
			if prepared == 0 || swaps.Load() == 0 {
				t.Errorf("%d of %d rounds prepared, with %d swaps: nothing is shown", prepared, rounds, swaps.Load())
			}
		})
	}
}

// TestTenantFile_NoDisk: a file that a tenant puts in the place of a disk neither blocks the agent
// nor is used.
func TestTenantFile_NoDisk(t *testing.T) {
	for name, lay := range map[string]func(path string) error{
		"a pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"a link":   func(path string) error { return os.Symlink("/proc/self/mem", path) },
		"a socket": func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			w, dir := newWorkspace(t), t.TempDir()
			domainfixture.Must(t, lay(filepath.Join(dir, "disk.img")))
			w.Claims = claims{"c": {Path: dir, Bytes: 8 << 20}}
			_, err := w.Prepare(t.Context(), guest("uid-1", claimed("c")), kvmHost)
			domainfixture.Says(t, err, "ns/guest", "persistentVolumeClaim.claimName", "is not a regular file")
		})
	}
}

// TestTenantFile_MadeBesideALink: a file that a tenant has put at the temporary name of a disk is
// not written to.
func TestTenantFile_MadeBesideALink(t *testing.T) {
	w, dir, outside := newWorkspace(t), t.TempDir(), blank(t, filepath.Join(t.TempDir(), "file"), 1)
	domainfixture.Must(t, os.Symlink(outside, filepath.Join(dir, ".new-disk-uid-1")))
	w.Claims = claims{"c": {Path: dir, Bytes: 8 << 20}}
	prepare(t, w, guest("uid-1", claimed("c")))
	st, err := os.Lstat(filepath.Join(dir, "disk.img"))
	if err != nil || !st.Mode().IsRegular() || st.Size() != 8<<20 || size(t, outside) != 1 {
		t.Errorf("the disk is %v (%v), the file outside has %d bytes", st, err, size(t, outside))
	}
}
