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

// swap exchanges two names over and over until the test has ended; it says how often
// it has.
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
		// What is mounted is released by its name, unless that is gone already.
		if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil && !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	})
	return &n
}

// Who owns a folder puts a link in the place of something in it, and back, all the
// time: what is mounted is the guest's disk and never a file of the node, and nothing
// of the node is mounted over.
func TestARaceNeverMountsAFileOfTheNode(t *testing.T) {
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
					// Read where it was mounted, not by a name that is swapped.
					for _, m := range n.mounted() {
						if b, err := os.ReadFile(n.Pods + m); err == nil && string(b) == "secret" && !strings.HasSuffix(m, "link") {
							t.Fatalf("%s, of %+v, holds %q", m, got, b)
						}
					}
				}
				if b, err := os.ReadFile(filepath.Join(host, "disk.img")); err != nil || string(b) != "secret" {
					t.Fatalf("a file of the node was mounted over: %q, %v", b, err)
				}
				if b, err := os.ReadFile(filepath.Join(host, "data.img")); err != nil || string(b) != "precious" {
					t.Fatalf("a file of the node was mounted over, or removed: %q, %v", b, err)
				}
				_ = n.Unplug(guest, volume("data"))
			}
			if mounted == 0 || swaps.Load() == 0 {
				t.Errorf("%d of %d mounted with %d swaps: nothing was proved", mounted, tries, swaps.Load())
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
