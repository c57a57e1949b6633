// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/cgroup"
)

// found returns the given process and error.
func found(pid int, err error) func(*v1.VirtualMachineInstance) (int, error) {
	return func(*v1.VirtualMachineInstance) (int, error) { return pid, err }
}

func TestFilter_S8BlockVolume(t *testing.T) {
	dir := container(t)
	g := startGuest(t, dir, 0)
	device := filepath.Join(t.TempDir(), "data")
	if err := unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 250))); err != nil {
		t.Fatal(err)
	}
	f := cgroup.Filter{Hierarchy: cgroup.Hierarchy{Mount: hierarchy(t)}, PID: found(g.cmd.Process.Pid, nil)}
	plain, with := parsed(t, "<devices/>"), parsed(t, "<devices>"+disk(device)+"</devices>")
	vmi := &v1.VirtualMachineInstance{}
	for _, step := range []struct {
		name          string
		live, desired *libvirtxml.Domain
		allowed       bool
	}{
		{"before the guest has it", nil, plain, false},
		{"to be plugged", plain, with, true},
		{"plugged", with, with, true},
		{"to be unplugged", with, plain, true},
		{"unplugged", plain, plain, false},
	} {
		if err := f.Allow(t.Context(), vmi, step.live, step.desired); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		// The device need not exist: the filter is recognized by its error.
		if got := g.open(device); (got != unix.EPERM) != step.allowed {
			t.Errorf("%s: %v, want allowed: %t", step.name, got, step.allowed)
		}
		g.is(map[string]bool{"/dev/null": true})
	}
	if err := os.Remove(device); err != nil {
		t.Fatal(err)
	}
	if err := f.Allow(t.Context(), vmi, plain, with); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("missing device node: %v", err)
	}
}

func TestFilter_InvalidLauncher(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root: run it without -short")
	}
	gone := errors.New("no launcher")
	for name, tt := range map[string]struct {
		pid  int
		err  error
		want error
	}{
		"no launcher":        {0, gone, gone},
		"one that is unseen": {0, nil, domain.ErrInvalid},
		"one that has ended": {1 << 22, nil, domain.ErrNotReady},
		"this process":       {os.Getpid(), nil, domain.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			f := cgroup.Filter{Hierarchy: cgroup.Hierarchy{Mount: hierarchy(t)}, PID: found(tt.pid, tt.err)}
			if err := f.Allow(t.Context(), &v1.VirtualMachineInstance{}); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}
