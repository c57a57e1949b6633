// SPDX-License-Identifier: Apache-2.0

package mounts_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// swap exchanges two names repeatedly until the test has ended. It returns the number of exchanges.
func swap(t *testing.T, a, b string) *atomic.Int64 {
	t.Helper()
	var (
		n    atomic.Int64
		stop atomic.Bool
		done = make(chan struct{})
	)
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
		if n.Load()%2 == 0 {
			return
		}
		// Mounts are released by name, which may be missing at that moment.
		if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil && !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	})
	return &n
}

// The owner of a directory repeatedly replaces an entry with a symbolic link, and back: only the
// disk may be mounted, never a file of the node, and nothing may be mounted over files of the node.
func TestMount_RenameRace(t *testing.T) {
	const tries = 100
	for name, lay := range map[string]func(t *testing.T, n node, node string) *atomic.Int64{
		"the image": func(t *testing.T, n node, host string) *atomic.Int64 {
			dir := n.carried("volumes/kubernetes.io~csi/pv/mount")
			link(t, filepath.Join(host, "disk.img"), filepath.Join(dir, "link"))
			return swap(t, filepath.Join(dir, "disk.img"), filepath.Join(dir, "link"))
		},
		"the folder of the image": func(t *testing.T, n node, host string) *atomic.Int64 {
			dir := n.carried("volumes/kubernetes.io~csi/pv")
			link(t, host, filepath.Join(dir, "link"))
			return swap(t, filepath.Join(dir, "mount"), filepath.Join(dir, "link"))
		},
		"the target": func(t *testing.T, n node, host string) *atomic.Int64 {
			dir := n.folder("hotplug-disks")
			n.write(filepath.Join(dir, "data.img"), "")
			link(t, filepath.Join(host, "disk.img"), filepath.Join(dir, "link"))
			return swap(t, filepath.Join(dir, "data.img"), filepath.Join(dir, "link"))
		},
		"the folder of the target": func(t *testing.T, n node, host string) *atomic.Int64 {
			dir := filepath.Dir(n.folder("hotplug-disks"))
			link(t, host, filepath.Join(dir, "link"))
			return swap(t, filepath.Join(dir, "hotplug-disks"), filepath.Join(dir, "link"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, host := newNode(t), t.TempDir()
			n.write(filepath.Join(host, "disk.img"), "secret")
			n.write(filepath.Join(host, "data.img"), "precious")
			n.write(n.carried("volumes/kubernetes.io~csi/pv/mount/disk.img"), "disk")
			swaps := lay(t, n, host)
			mounted := 0
			for range tries {
				if got, err := n.Plug(guest, volume("data")); err == nil {
					mounted++
					// Read the mount points, not a name that is being exchanged.
					for _, m := range n.mounted() {
						if b, err := os.ReadFile(n.Pods + m); err == nil && string(b) == "secret" && !strings.HasSuffix(m, "link") {
							t.Fatalf("%s, of %+v, holds %q", m, got, b)
						}
					}
				}
				if b, err := os.ReadFile(filepath.Join(host, "disk.img")); err != nil || string(b) != "secret" {
					t.Fatalf("a mount hides a file of the node: %q, %v", b, err)
				}
				if b, err := os.ReadFile(filepath.Join(host, "data.img")); err != nil || string(b) != "precious" {
					t.Fatalf("a file of the node is hidden or removed: %q, %v", b, err)
				}
				_ = n.Unplug(guest, volume("data"))
			}
			if mounted == 0 || swaps.Load() == 0 {
				t.Errorf("%d of %d mounted with %d swaps: the test is inconclusive", mounted, tries, swaps.Load())
			}
		})
	}
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}
