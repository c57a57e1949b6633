// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
)

// Hierarchy is the cgroup v2 hierarchy of a node, as seen by this process. The zero value is
// detected automatically.
type Hierarchy struct {
	// Mount is its mount point. Defaults to the first cgroup2 mount. An agent in a container sets
	// that of the node: /proc/1/root/sys/fs/cgroup.
	Mount string
	// Namespace is the file of the cgroup namespace with Mount as its root. Defaults to that of
	// this process. An agent in a container sets that of the node: /proc/1/ns/cgroup.
	Namespace string
}

// Supported reports whether the node has cgroup v2 there, without which there are no filters.
func (h Hierarchy) Supported() (bool, error) {
	dir, err := h.mount()
	if errors.Is(err, domain.ErrUnsupported) {
		return false, nil
	}
	var st unix.Statfs_t
	if err == nil {
		err = unix.Statfs(dir, &st)
	}
	if err != nil {
		return false, fmt.Errorf("cgroup: version of the hierarchy: %w", err)
	}
	return st.Type == unix.CGROUP2_SUPER_MAGIC, nil
}

// Of returns the cgroup directory of the container of the process: the root of its cgroup
// namespace, or, if it has no namespace of its own, its own cgroup. A filter there applies to all
// processes of the container, including those in child cgroups. The root of the hierarchy, and any
// cgroup that contains this process, are errors that wrap [domain.ErrInvalid].
func (h Hierarchy) Of(pid int) (string, error) {
	dir, err := h.of(pid)
	if err != nil {
		return "", fmt.Errorf("cgroup: looking up the cgroup of process %d: %w", pid, err)
	}
	return dir, nil
}

func (h Hierarchy) of(pid int) (string, error) {
	if pid < 1 {
		return "", fmt.Errorf("invalid process ID: %w", domain.ErrInvalid)
	}
	alive, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return "", errors.Join(domain.ErrNotFound, err)
	}
	defer unix.Close(alive)
	mount, err := h.mount()
	if err != nil {
		return "", err
	}
	path, err := pathOf(pid, h.Namespace)
	if err != nil {
		return "", err
	}
	own, err := pathOf(os.Getpid(), h.Namespace)
	if err != nil {
		return "", err
	}
	base, err := container(pid, path)
	if err != nil {
		return "", err
	}
	// The PID may have been reused meanwhile.
	if err := unix.PidfdSendSignal(alive, 0, nil, 0); err != nil {
		return "", errors.Join(domain.ErrNotFound, err)
	}
	if err := separate(base, own); err != nil {
		return "", err
	}
	return clean(mount, base), nil
}

// separate checks that a cgroup belongs to one container, and not to this process.
func separate(base, own string) error {
	switch {
	case strings.HasPrefix(base, "/..") || strings.HasPrefix(own, "/.."):
		return fmt.Errorf("cgroup %s is outside the cgroup namespace of this process; set Mount and Namespace to those of the node: %w", base, domain.ErrInvalid)
	case base == "/":
		return fmt.Errorf("the process is in the root of the hierarchy, together with processes of the node: %w", domain.ErrInvalid)
	case own == base || strings.HasPrefix(own, base+"/"):
		return fmt.Errorf("cgroup %s also contains this process: %w", base, domain.ErrInvalid)
	}
	return nil
}

// mount returns the mount point of the hierarchy.
func (h Hierarchy) mount() (string, error) {
	if h.Mount != "" {
		return h.Mount, nil
	}
	found, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return i.FSType != "cgroup2", i.FSType == "cgroup2"
	})
	if err != nil {
		return "", fmt.Errorf("looking up the cgroup mount: %w", err)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("cgroup v2 is not mounted: %w", domain.ErrUnsupported)
	}
	return found[0].Mountpoint, nil
}

// container returns the part of the path of a process's cgroup that leads to its container: without
// the part that is visible inside of it.
func container(pid int, path string) (string, error) {
	theirs := filepath.Join("/proc", strconv.Itoa(pid), "ns/cgroup")
	seen, err := pathOf(pid, theirs)
	if err != nil {
		return "", err
	}
	if seen == "/" || seen == path {
		return path, nil
	}
	base, inside := strings.CutSuffix(path, seen)
	if !inside || base == "" {
		return path, nil
	}
	return base, nil
}

// pathOf returns the cgroup of a process as seen in a namespace; empty means that of this process.
func pathOf(pid int, namespace string) (path string, err error) {
	if namespace == "" {
		return readPath(pid)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		path, err = pathIn(pid, namespace)
	}()
	<-done
	return path, err
}

// pathIn switches the thread to the namespace and back. A thread that cannot switch back ends with
// its goroutine.
func pathIn(pid int, namespace string) (path string, err error) {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/cgroup")
	if err != nil {
		runtime.UnlockOSThread()
		return "", err
	}
	defer own.Close()
	ns, err := os.Open(namespace)
	if err == nil {
		defer ns.Close()
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWCGROUP)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return "", fmt.Errorf("entering cgroup namespace %s: %w", namespace, err)
	}
	path, err = readPath(pid)
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWCGROUP); back == nil {
		runtime.UnlockOSThread()
	}
	return path, err
}

func readPath(pid int) (string, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", errors.Join(domain.ErrNotFound, err)
	}
	return parse(string(b))
}

// parse returns the cgroup v2 path in /proc/<pid>/cgroup.
func parse(lines string) (string, error) {
	for line := range strings.Lines(lines) {
		path, v2 := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		switch {
		case !v2:
			continue
		case strings.HasSuffix(path, " (deleted)"):
			return "", fmt.Errorf("cgroup %s: %w", path, domain.ErrNotFound)
		case !strings.HasPrefix(path, "/"):
			return "", fmt.Errorf("cgroup %q is not a path: %w", path, domain.ErrInvalid)
		}
		return path, nil
	}
	return "", fmt.Errorf("the process has no v2 cgroup: %w", domain.ErrUnsupported)
}
