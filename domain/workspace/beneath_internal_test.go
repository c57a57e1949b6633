// SPDX-License-Identifier: Apache-2.0

package workspace

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain/convert"
)

// TestOpenDisk_Leased: whoever owns a disk cannot keep the agent busy by a lease on it.
func TestOpenDisk_Leased(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	holder, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if _, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatalf("a lease: %v", err)
	}
	// The signal of the lease's end would end this process.
	signal.Ignore(unix.SIGIO)
	defer signal.Reset(unix.SIGIO)
	if f, err := (volume{}).open(t.Context(), &convert.DiskSource{Path: path}); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("%v, %v, want EAGAIN", f, err)
	}
	if _, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	f, err := (volume{}).open(t.Context(), &convert.DiskSource{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}
