// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupRoot is where a machine has its control groups.
const cgroupRoot = "/sys/fs/cgroup"

// cgroupTree is the part of the control groups of the machine that is a node's: a group of the same name in each hierarchy.
type cgroupTree struct {
	root    string // cgroupRoot, but in tests
	name    string
	unified bool // version 2, with one hierarchy; else version 1 with any number, and possibly one of version 2 that has no controller
}

// newCgroupTree finds out which version the machine has.
func newCgroupTree(root, name string) (cgroupTree, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return cgroupTree{}, fmt.Errorf("control groups in %s: %w", root, err)
	}
	return cgroupTree{root: root, name: name, unified: fs.Type == unix.CGROUP2_SUPER_MAGIC}, nil
}

// groups are the paths of the node's group in each hierarchy.
func (c cgroupTree) groups() ([]string, error) {
	if c.unified {
		return []string{filepath.Join(c.root, c.name)}, nil
	}
	entries, err := os.ReadDir(c.root)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		// A link names the same hierarchy once more: cpu for cpu,cpuacct.
		if e.IsDir() {
			found = append(found, filepath.Join(c.root, e.Name(), c.name))
		}
	}
	return found, nil
}

// make makes the groups.
func (c cgroupTree) make() error {
	groups, err := c.groups()
	if err != nil {
		return err
	}
	if c.unified {
		c.delegate()
	}
	for _, group := range groups {
		if err := os.Mkdir(group, 0o755); err != nil {
			return err
		}
		if filepath.Base(filepath.Dir(group)) != "cpuset" {
			continue
		}
		// A new group of this controller has no processor, and takes no process before it has one.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			all, err := os.ReadFile(filepath.Join(filepath.Dir(group), file))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(group, file), all, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate lets groups have the controllers that the root has, as far as that can be. What a kubelet then misses it names itself.
func (c cgroupTree) delegate() {
	have, err := os.ReadFile(filepath.Join(c.root, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, controller := range strings.Fields(string(have)) {
		_ = os.WriteFile(filepath.Join(c.root, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
	}
}

// remove removes the groups with all that are in them, when their processes are gone.
func (c cgroupTree) remove(ctx context.Context) error {
	groups, err := c.groups()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, goneTimeout, fmt.Errorf("still in use after %v", goneTimeout))
	defer cancel()
	for {
		var left error
		for _, group := range groups {
			left = errors.Join(left, removeGroups(group))
		}
		if left == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", left, context.Cause(ctx))
		case <-time.After(probeInterval):
		}
	}
}

// removeGroups removes a group and those in it. Their files go with them, and cannot be removed.
func removeGroups(group string) error {
	entries, err := os.ReadDir(group)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := removeGroups(filepath.Join(group, e.Name())); err != nil {
			return err
		}
	}
	if err := unix.Rmdir(group); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("control group %s: %w (its processes: %s)", group, err, processesIn(group))
	}
	return nil
}

// processesIn are the numbers of the processes of a group, for a message.
func processesIn(group string) []byte {
	pids, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.ReplaceAll(bytes.TrimSpace(pids), []byte("\n"), []byte(" "))
}
