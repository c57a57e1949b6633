// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/cgroup"
)

// below creates nested cgroups.
func below(t *testing.T, dir string, names ...string) string {
	t.Helper()
	dir = filepath.Join(append([]string{dir}, names...)...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestHierarchy_ContainerCgroup(t *testing.T) {
	dir := container(t)
	pod := below(t, dir, "kubepods", "pod1", "compute")
	plain := startGuest(t, pod, 0)
	own := startGuest(t, pod, syscall.CLONE_NEWCGROUP)
	for name, pid := range map[string]int{"without a namespace": plain.cmd.Process.Pid, "with its own": own.cmd.Process.Pid} {
		t.Run(name, func(t *testing.T) {
			got, err := cgroup.Hierarchy{Mount: hierarchy(t)}.Of(pid)
			if err != nil || got != pod {
				t.Errorf("%q, %v; want %q", got, err, pod)
			}
		})
	}
	// libvirt, or a shell for the emulator's own threads, makes cgroups in the container.
	inner := below(t, pod, "machine", "qemu-1")
	if err := os.WriteFile(filepath.Join(inner, "cgroup.procs"), []byte(pid(own)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("in a cgroup of the container's own", func(t *testing.T) {
		got, err := cgroup.Hierarchy{Mount: hierarchy(t)}.Of(own.cmd.Process.Pid)
		if err != nil || got != pod {
			t.Errorf("%q, %v; want %q, where a filter holds for all of the container", got, err, pod)
		}
	})
	t.Run("seen from a namespace that is given", func(t *testing.T) {
		got, err := cgroup.Hierarchy{Mount: "/proc/self/root" + hierarchy(t), Namespace: "/proc/self/ns/cgroup"}.Of(plain.cmd.Process.Pid)
		if want := "/proc/self/root" + hierarchy(t) + strings.TrimPrefix(pod, hierarchy(t)); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	})
	t.Run("outside of the namespace that is given", func(t *testing.T) {
		got, err := cgroup.Hierarchy{Mount: hierarchy(t), Namespace: filepath.Join("/proc", pid(own), "ns/cgroup")}.Of(os.Getpid())
		if !errors.Is(err, domain.ErrInvalid) {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func pid(g *guest) string { return strconv.Itoa(g.cmd.Process.Pid) }

func TestHierarchy_SharedCgroup(t *testing.T) {
	container(t)
	gone := startGuest(t, container(t), 0)
	gone.end()
	for name, tt := range map[string]struct {
		pid  int
		want error
	}{
		"#10409: this process, in the root": {os.Getpid(), domain.ErrInvalid},
		"none":                              {0, domain.ErrInvalid},
		"negative":                          {-1, domain.ErrInvalid},
		"a process that is gone":            {gone.cmd.Process.Pid, domain.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := (cgroup.Hierarchy{}).Of(tt.pid); !errors.Is(err, tt.want) || got != "" {
				t.Errorf("%q, %v; want %v", got, err, tt.want)
			}
		})
	}
}
