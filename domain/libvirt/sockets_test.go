// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/virtloom/virtloom/domain"
)

func TestControlSocket_OfConnection(t *testing.T) {
	for name, tt := range map[string]struct {
		uri, want string
		err       error
	}{
		"named":                   {"qemu+unix:///system?socket=/proc/7/root/run/libvirt/libvirt-sock", "/proc/7/root/run/libvirt/libvirt-sock", nil},
		"named, of a user":        {"qemu+unix:///session?socket=/run/user/7/virtqemud-sock", "/run/user/7/virtqemud-sock", nil},
		"of a user, not named":    {"qemu:///session", "", domain.ErrUnsupported},
		"of another node":         {"qemu+tcp://192.0.2.7/system", "", domain.ErrUnsupported},
		"of another node by host": {"qemu+unix://node/system?socket=/x", "", domain.ErrUnsupported},
		"of the test driver":      {"test:///default", "", domain.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			d := migrator{&connection{uri: tt.uri}}
			if got, err := d.controlSocket(); got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%q, %v, want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

func TestMigrationSockets_FolderMode(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "run/kubevirt/m")
	for range 2 { // it may exist already
		if err := makeFolder(path, nil); err != nil {
			t.Fatal(err)
		}
	}
	found, err := os.Stat(path)
	if err != nil || found.Mode().Perm() != 0o700 {
		t.Errorf("it is %v, %v", found.Mode(), err)
	}
	if os.Geteuid() == 0 {
		return // root may give folders away
	}
	if err := makeFolder(filepath.Join(root, "other"), &struct{ uid, gid int }{0, 0}); err == nil {
		t.Error("it was given to root")
	}
	if _, err := os.Stat(filepath.Join(root, "other")); !os.IsNotExist(err) {
		t.Errorf("what cannot be finished is there: %v", err)
	}
}

func TestMigrationSockets_BelowDaemonRoot(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"run/m", "var"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// As on most systems; followed directly it leads to this process's own folder.
	if err := os.Symlink("/run", filepath.Join(root, "var/run")); err != nil {
		t.Fatal(err)
	}
	d := migrator{&connection{uri: "qemu+unix:///system?socket=/s", opts: Options{Root: root, MigrationDir: "/var/run/m"}}}
	got, err := d.MigrationSockets(t.Context(), "guest")
	if want := (domain.Sockets{Control: "/s", Outside: filepath.Join(root, "run/m"), Inside: "/var/run/m"}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if err := os.WriteFile(filepath.Join(root, "run/file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	d.opts.MigrationDir = "/var/run/file"
	if _, err := d.MigrationSockets(t.Context(), "guest"); !errors.Is(err, domain.ErrInvalid) || !strings.Contains(err.Error(), "not a folder") {
		t.Errorf("a file instead: %v", err)
	}
}
