// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestRecords_Durable(t *testing.T) {
	r := records{filepath.Join(t.TempDir(), "a/b")}
	one, two := place{Folder: "p/volumes/x", Name: "one"}, place{Folder: "var/run", Name: "two", Namespace: 7}
	for _, p := range []place{one, two, one} {
		if err := r.add("uid", p); err != nil {
			t.Fatal(err)
		}
	}
	got, err := records{r.dir}.read("uid")
	if diff := cmp.Diff([]place{one, two}, got); err != nil || diff != "" {
		t.Fatalf("%v (-want +got):\n%s", err, diff)
	}
	if err := errors.Join(r.drop("uid", one), r.drop("uid", one), r.drop("uid", two), r.drop("other", two)); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(r.dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestRecords_DamagedIsKept(t *testing.T) {
	for name, content := range map[string]string{
		"half":           `{"version":1,"gue`,
		"empty":          ``,
		"another guest":  `{"version":1,"guest":"other","places":[]}`,
		"another format": `{"version":2,"guest":"uid","places":[]}`,
		"upwards":        `{"version":1,"guest":"uid","places":[{"folder":"../../etc","name":"passwd"}]}`,
		"a path":         `{"version":1,"guest":"uid","places":[{"folder":"a","name":"../b"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			r := records{t.TempDir()}
			if err := os.WriteFile(r.path("uid"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			err := r.add("uid", place{Folder: "a", Name: "b"})
			if err == nil || !strings.Contains(err.Error(), r.path("uid")) {
				t.Errorf("%v", err)
			}
			m := &Mounter{Records: r.dir, Pods: t.TempDir()}
			if err := m.Release("uid", 0); err == nil {
				t.Error("the release returned no error")
			}
			if b, err := os.ReadFile(r.path("uid")); err != nil || string(b) != content {
				t.Errorf("it became %q, %v", b, err)
			}
		})
	}
}

// An agent that ends between record and mount, or between mount and return, is followed by one that
// finds both.
func TestRecords_WrittenBeforeMount(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root: run it without -short")
	}
	dir := t.TempDir()
	m := &Mounter{Pods: filepath.Join(dir, "pods"), Records: filepath.Join(dir, "records")}
	g := Guest{UID: "uid", Pod: "pod"}
	if err := os.MkdirAll(filepath.Join(m.Pods, "pod", emptyDirs, hotplugDisks), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := m.open(g, hotplugDisks)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	crash := errors.New("the agent ends here")
	if _, err := m.mount(g, f, "a.img", func() (*source, error) { return nil, crash }); !errors.Is(err, crash) {
		t.Fatal(err)
	}
	if got, err := m.records().read("uid"); err != nil || len(got) != 0 {
		t.Errorf("a mount that was not begun is recorded: %v, %v", got, err)
	}
	img := filepath.Join(dir, "disk.img")
	if err := os.WriteFile(img, []byte("disk"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() (*source, error) {
		file, err := os.OpenFile(img, unix.O_PATH, 0)
		if err != nil {
			return nil, err
		}
		return newSource(file, true)
	}
	if err := os.Mkdir(filepath.Join(m.Pods, "pod", emptyDirs, hotplugDisks, "b.img"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := m.mount(g, f, "b.img", open); err == nil {
		t.Fatal("a directory was hidden by a mount")
	}
	if got, err := m.records().read("uid"); err != nil || len(got) != 1 || got[0].Name != "b.img" {
		t.Errorf("a mount that was begun is not recorded: %v, %v", got, err)
	}
}

func TestBindByName_OlderKernels(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root: run it without -short")
	}
	dir, err := os.OpenFile(t.TempDir(), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	own, err := namespaceOf(0, "/")
	if err != nil {
		t.Fatal(err)
	}
	defer own.close()
	img := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(img, []byte("disk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, readOnly := range map[string]bool{"a.img": true, "b.img": false} {
		file, err := os.OpenFile(img, unix.O_PATH, 0)
		if err != nil {
			t.Fatal(err)
		}
		s, err := newSource(file, readOnly)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.tree.Close()
		s.tree = nil // like a kernel without detached mounts
		if err := own.do(func() error { return mountSource(dir, name, s) }); err != nil {
			t.Fatal(err)
		}
		s.close()
		now, err := lookEntry(dir, name)
		if err != nil || !now.mounted || now.readOnly != readOnly {
			t.Errorf("%+v, %v", now, err)
		}
		for _, n := range []string{name, name, "none"} {
			if err := own.do(func() error { return unmount(dir, n) }); err != nil {
				t.Error(err)
			}
		}
		if now, err := lookEntry(dir, name); err != nil || now.mounted {
			t.Errorf("after unmounting: %+v, %v", now, err)
		}
	}
}
