// SPDX-License-Identifier: Apache-2.0

package refcluster

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLeftovers_Each runs once more in a network and with mounts of its own, which the machine does not see.
func TestLeftovers_Each(t *testing.T) {
	const inside = "VIRTLOOM_TEST_LEFTOVERS"
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("it needs root")
	}
	if os.Getenv(inside) == "" {
		cmd := exec.CommandContext(t.Context(), "unshare", "--net", "--mount", "--", os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	dir, err := os.MkdirTemp(t.TempDir(), "virtloom-rig-") // the name is that of its control group as well
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	group := filepath.Base(dir) + "-node"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err != nil {
		group = filepath.Join("cpu", group)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(dir, 0), os.Remove(filepath.Join("/sys/fs/cgroup", group))); err != nil {
			t.Error(err)
		}
	})
	if left, err := Leftovers(dir); err != nil || len(left) > 0 {
		t.Fatalf("of nothing: %q, %v", left, err)
	}
	for _, step := range []struct{ script, want string }{
		{`mkdir "$0"`, "folder "}, {`mount -t tmpfs x "$0"`, "mount "}, {`mkdir "/sys/fs/cgroup/$1"`, "control group "},
		{"ip link add left-behind type bridge", "interface left-behind"},
		{"mount -t tmpfs x /run; ip netns add left-behind", "network namespace left-behind"},
	} {
		if out, err := exec.CommandContext(t.Context(), "sh", "-c", step.script, dir, group).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", step.script, err, out)
		}
		left, err := Leftovers(dir)
		if err != nil || !slices.ContainsFunc(left, func(l string) bool { return strings.HasPrefix(l, step.want) }) {
			t.Errorf("%s: %q, %v; want %s", step.script, left, err, step.want)
		}
	}
	sleep := exec.CommandContext(t.Context(), "sleep", "infinity")
	sleep.Env = []string{"VIRTLOOM_RIG=" + dir}
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	left, err := Leftovers(dir)
	if err != nil || !slices.ContainsFunc(left, func(l string) bool { return strings.HasPrefix(l, "process ") }) {
		t.Errorf("a process: %q, %v", left, err)
	}
}
