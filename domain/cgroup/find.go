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

// Hierarchy is the cgroup v2 hierarchy of a node, as this process sees it. The zero
// value is found by itself.
type Hierarchy struct {
	// Mount is where it is mounted; empty means the first mount of cgroup2. An agent
	// in a container gives the node's: /proc/1/root/sys/fs/cgroup.
	Mount string
	// Namespace is a file of the cgroup namespace in which Mount is the root; empty
	// means the one of this process. An agent in a container gives the node's:
	// /proc/1/ns/cgroup.
	Namespace string
}

// Of returns the directory of the cgroup of the container the process is in: the
// root of its cgroup namespace, or, if it has none of its own, the process's own
// cgroup. What is set there holds for all the container's processes, in whichever
// cgroups below they are. The root of the hierarchy, and a cgroup this process
// itself is in, are errors that wrap [domain.ErrInvalid].
func (h Hierarchy) Of(pid int) (string, error) {
	dir, err := h.of(pid)
	if err != nil {
		return "", fmt.Errorf("cgroup: of process %d: %w", pid, err)
	}
	return dir, nil
}

func (h Hierarchy) of(pid int) (string, error) {
	if pid < 1 {
		return "", fmt.Errorf("that is no process: %w", domain.ErrInvalid)
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
	// The number may have been given to another process meanwhile.
	if err := unix.PidfdSendSignal(alive, 0, nil, 0); err != nil {
		return "", errors.Join(domain.ErrNotFound, err)
	}
	if err := separate(base, own); err != nil {
		return "", err
	}
	return clean(mount, base), nil
}

// separate makes sure that a cgroup is that of one container, and not this process's.
func separate(base, own string) error {
	switch {
	case strings.HasPrefix(base, "/..") || strings.HasPrefix(own, "/.."):
		return fmt.Errorf("its cgroup %s is outside of this process's cgroup namespace; give the node's: %w", base, domain.ErrInvalid)
	case base == "/":
		return fmt.Errorf("it is in the root of the hierarchy, with processes that are no guest's: %w", domain.ErrInvalid)
	case own == base || strings.HasPrefix(own, base+"/"):
		return fmt.Errorf("its cgroup %s is this process's, too: %w", base, domain.ErrInvalid)
	}
	return nil
}

// mount is where the hierarchy is.
func (h Hierarchy) mount() (string, error) {
	if h.Mount != "" {
		return h.Mount, nil
	}
	found, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return i.FSType != "cgroup2", i.FSType == "cgroup2"
	})
	if err != nil {
		return "", fmt.Errorf("look for the hierarchy: %w", err)
	}
	if len(found) == 0 {
		return "", fmt.Errorf("cgroup v2 is not mounted: %w", domain.ErrUnsupported)
	}
	return found[0].Mountpoint, nil
}

// container is the part of a process's path that is its container's: without what it
// sees of the path itself.
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

// pathOf is the cgroup of a process as it is seen in a namespace; empty means this
// process's.
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

// pathIn takes the thread into the namespace and back. One that cannot go back ends
// with its goroutine.
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
		return "", fmt.Errorf("enter the cgroup namespace %s: %w", namespace, err)
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

// parse takes the path in cgroup v2 out of /proc/<pid>/cgroup.
func parse(lines string) (string, error) {
	for line := range strings.Lines(lines) {
		path, v2 := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		switch {
		case !v2:
			continue
		case strings.HasSuffix(path, " (deleted)"):
			return "", fmt.Errorf("its cgroup %s: %w", path, domain.ErrNotFound)
		case !strings.HasPrefix(path, "/"):
			return "", fmt.Errorf("its cgroup %q is no path: %w", path, domain.ErrInvalid)
		}
		return path, nil
	}
	return "", fmt.Errorf("it is in no cgroup of version 2: %w", domain.ErrUnsupported)
}
