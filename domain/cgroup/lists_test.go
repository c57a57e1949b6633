// SPDX-License-Identifier: Apache-2.0

package cgroup_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/cgroup"
)

// listOf returns what a cgroup of version 1 allows.
func listOf(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "devices.list"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// put writes a line to a file of a cgroup.
func put(t *testing.T, dir, file, line string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The lists of a container runtime have rules that end here, and one that is wider.
func TestSet_ListsOfRuntime(t *testing.T) {
	dir := containerV1(t)
	for _, rule := range []string{"c *:* m", "b *:* m", "c 1:3 rwm", "c 1:5 r", "c 5:1 rwm"} {
		if listOf(t, dir) == "a *:* rwm" {
			put(t, dir, "devices.deny", "a")
		}
		put(t, dir, "devices.allow", rule)
	}
	block := cgroup.Rule{Kind: cgroup.Block, Major: 7, Minor: 250, Access: cgroup.All}
	read := cgroup.Rule{Kind: cgroup.Char, Major: 1, Minor: 3, Access: cgroup.Read}
	if !set(t, dir, read, char(1, 5), block, char(136, cgroup.Any)) {
		t.Error("nothing was changed")
	}
	lines := strings.Split(listOf(t, dir), "\n")
	if want := []string{"b 7:250 rwm", "c 136:* rwm", "c 1:3 r", "c 1:5 rwm"}; !sameLines(lines, want) {
		t.Errorf("it allows %q, want %q", lines, want)
	}
}

func sameLines(got, want []string) bool {
	left := map[string]int{}
	for _, l := range got {
		left[l]++
	}
	for _, l := range want {
		left[l]--
	}
	for _, n := range left {
		if n != 0 {
			return false
		}
	}
	return true
}

// While devices are hotplugged, what both lists allow is always allowed, and what neither allows never is.
func TestSet_ListsKeepWhatBothAllow(t *testing.T) { replaceMeanwhile(t, containerV1(t)) }

func TestSet_ListsInvalid(t *testing.T) {
	dir := containerV1(t)
	set(t, dir, char(1, 5))
	inner := below(t, dir, "compute")
	other, err := os.MkdirTemp("/sys/fs/cgroup/pids", "virtloom-test-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeCgroups(t, other) })
	for name, tt := range map[string]struct {
		dir  string
		want error
	}{
		"the root of the hierarchy":      {devicesV1, domain.ErrInvalid},
		"another controller's":           {other, domain.ErrUnsupported},
		"none":                           {filepath.Join(dir, "none"), domain.ErrNotFound},
		"more than the one above allows": {inner, unix.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := cgroup.Set(tt.dir, []cgroup.Rule{char(1, 3)}); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
	if _, err := cgroup.Set(dir, []cgroup.Rule{char(1, 3), {}}); !errors.Is(err, domain.ErrInvalid) || listOf(t, dir) != "c 1:5 rwm" {
		t.Errorf("a list that is refused left %q, %v", listOf(t, dir), err)
	}
}

// Without a hierarchy that is named, that of version 1 counts where both are mounted: it is the one of container runtimes.
func TestHierarchy_V1(t *testing.T) {
	dir := containerV1(t)
	g := startGuest(t, dir, 0)
	for name, h := range map[string]cgroup.Hierarchy{"detected": {}, "given": {Mount: filepath.Dir(devicesV1)}} {
		t.Run(name, func(t *testing.T) {
			able, err := h.Supported()
			got, findErr := h.Of(g.cmd.Process.Pid)
			if err := errors.Join(err, findErr); err != nil || !able || got != dir {
				t.Errorf("%q, %t, %v; want %q", got, able, err, dir)
			}
		})
	}
	f := cgroup.Filter{PID: found(g.cmd.Process.Pid, nil)}
	if err := f.Allow(t.Context(), &v1.VirtualMachineInstance{}); err != nil {
		t.Fatal(err)
	}
	g.is(map[string]bool{"/dev/null": true, "/dev/loop0": false})
	none := t.TempDir()
	if able, err := (cgroup.Hierarchy{Mount: none}).Supported(); able || err != nil {
		t.Errorf("a folder without cgroups: %t, %v", able, err)
	}
	if _, err := (cgroup.Hierarchy{Mount: none}).Of(g.cmd.Process.Pid); !errors.Is(err, domain.ErrUnsupported) {
		t.Errorf("a folder without cgroups: %v", err)
	}
}
