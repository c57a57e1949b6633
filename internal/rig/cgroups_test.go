// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// write makes files with their folders.
func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCgroupTree_OfVersion1(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"cpu,cpuacct/cgroup.procs": "1\n", "memory/cgroup.procs": "1\n",
		"cpuset/cpuset.cpus": "0-3\n", "cpuset/cpuset.mems": "0\n", "unified/cgroup.procs": "1\n",
	})
	if err := os.Symlink("cpu,cpuacct", filepath.Join(root, "cpu")); err != nil {
		t.Fatal(err)
	}
	c, err := newCgroupTree(root, "node")
	if err != nil || c.unified {
		t.Fatalf("%+v, %v: no version 2 of control groups is mounted there", c, err)
	}
	if err := c.make(); err != nil {
		t.Fatal(err)
	}
	got, err := filepath.Glob(filepath.Join(root, "*", "node"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"cpu,cpuacct", "cpu", "cpuset", "memory", "unified"} // cpu by its link
	for i := range want {
		want[i] = filepath.Join(root, want[i], "node")
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("groups %v, want %v", got, want)
	}
	if cpus, err := os.ReadFile(filepath.Join(root, "cpuset/node/cpuset.cpus")); err != nil || string(cpus) != "0-3\n" {
		t.Errorf("processors %q, %v", cpus, err)
	}
	if err := c.make(); !os.IsExist(err) {
		t.Errorf("made again: %v, as groups of another node would be taken", err)
	}
}

func TestCgroupTree_OfVersion2(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{"cgroup.controllers": "cpu memory\n", "system.slice/cgroup.procs": "1\n"})
	c := cgroupTree{root: root, name: "node", unified: true}
	if err := c.make(); err != nil {
		t.Fatal(err)
	}
	if groups, err := c.groups(); err != nil || !slices.Equal(groups, []string{filepath.Join(root, "node")}) {
		t.Errorf("groups %v, %v", groups, err)
	}
	if control, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control")); err != nil || len(control) == 0 {
		t.Errorf("controllers passed on: %q, %v", control, err)
	}
	write(t, root, map[string]string{"node/kubepods/pod/nothing": ""})
	if err := os.Remove(filepath.Join(root, "node/kubepods/pod/nothing")); err != nil {
		t.Fatal(err)
	}
	if err := c.remove(t.Context()); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(root, "node*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := c.remove(t.Context()); err != nil {
		t.Errorf("removed again: %v", err)
	}
}

func TestCgroupTree_InUse(t *testing.T) {
	root := t.TempDir()
	// A file is what keeps a folder, as a process does a group.
	write(t, root, map[string]string{"node/kubepods/cgroup.procs": "17\n18\n"})
	c := cgroupTree{root: root, name: "node", unified: true}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := c.remove(ctx)
	if err == nil {
		t.Fatal("removed with what is in it")
	}
	if got := string(processesIn(filepath.Join(root, "node/kubepods"))); got != "17 18" {
		t.Errorf("processes %q of the error %v", got, err)
	}
}
