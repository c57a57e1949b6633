// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
)

// controller is the controller of cgroup v1 that filters devices, and the directory where a node
// mounts its hierarchy.
const controller = "devices"

// Hierarchy is the cgroup hierarchy of a node in which devices are filtered, as seen by this
// process. The zero value is detected automatically.
type Hierarchy struct {
	// Mount is where the node's cgroups are mounted: the cgroup v2 hierarchy, or the directory with
	// those of v1. Defaults to the hierarchy of the devices controller of v1, as container runtimes
	// use it if there is one, and to the first cgroup2 mount otherwise. An agent in a container sets
	// that of the node: /proc/1/root/sys/fs/cgroup.
	Mount string
	// Namespace is the file of the cgroup namespace with Mount as its root. Defaults to that of
	// this process. An agent in a container sets that of the node: /proc/1/ns/cgroup.
	Namespace string
}

// Supported reports whether the node has cgroups there that can filter devices, of either version.
func (h Hierarchy) Supported() (bool, error) {
	_, err := h.mount()
	if errors.Is(err, domain.ErrUnsupported) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cgroup: version of the hierarchy: %w", err)
	}
	return true, nil
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
	path, err := mount.pathOf(pid, h.Namespace)
	if err != nil {
		return "", err
	}
	own, err := mount.pathOf(os.Getpid(), h.Namespace)
	if err != nil {
		return "", err
	}
	base, err := mount.container(pid, path)
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
	return cgroupPath(mount.dir, base), nil
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

// mounted is a mounted hierarchy of either version.
type mounted struct {
	dir string
	v1  bool
}

// mount returns the hierarchy in which devices are filtered.
func (h Hierarchy) mount() (mounted, error) {
	if h.Mount == "" {
		return detect()
	}
	for dir, magic := range map[string]int64{h.Mount: unix.CGROUP2_SUPER_MAGIC, filepath.Join(h.Mount, controller): unix.CGROUP_SUPER_MAGIC} {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err != nil && (dir == h.Mount || !errors.Is(err, os.ErrNotExist)) {
			return mounted{}, fmt.Errorf("%s: %w", dir, err)
		}
		if err == nil && int64(st.Type) == magic { //nolint:unconvert // 32 bits on some architectures
			return mounted{dir: dir, v1: magic == unix.CGROUP_SUPER_MAGIC}, nil
		}
	}
	return mounted{}, fmt.Errorf("%s has neither cgroup v2 nor the devices controller of v1: %w", h.Mount, domain.ErrUnsupported)
}

// detect looks for the hierarchy in the mounts of this process.
func detect() (mounted, error) {
	var v1, v2 []*mountinfo.Info
	_, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		switch {
		case i.FSType == "cgroup" && slices.Contains(strings.Split(i.VFSOptions, ","), controller):
			v1 = append(v1, i)
		case i.FSType == "cgroup2":
			v2 = append(v2, i)
		}
		return true, false
	})
	switch {
	case err != nil:
		return mounted{}, fmt.Errorf("looking up the cgroup mount: %w", err)
	case len(v1) > 0:
		return mounted{dir: v1[0].Mountpoint, v1: true}, nil
	case len(v2) > 0:
		return mounted{dir: v2[0].Mountpoint}, nil
	}
	return mounted{}, fmt.Errorf("neither cgroup v2 nor the devices controller of v1 is mounted: %w", domain.ErrUnsupported)
}

// container returns the part of the path of a process's cgroup that leads to its container: without
// the part that is visible inside of it.
func (m mounted) container(pid int, path string) (string, error) {
	theirs := filepath.Join("/proc", strconv.Itoa(pid), "ns/cgroup")
	seen, err := m.pathOf(pid, theirs)
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
func (m mounted) pathOf(pid int, namespace string) (path string, err error) {
	if namespace == "" {
		return m.readPath(pid)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		path, err = m.pathIn(pid, namespace)
	}()
	<-done
	return path, err
}

// pathIn switches the thread to the namespace and back. A thread that cannot switch back ends with
// its goroutine.
func (m mounted) pathIn(pid int, namespace string) (path string, err error) {
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
	path, err = m.readPath(pid)
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWCGROUP); back == nil {
		runtime.UnlockOSThread()
	}
	return path, err
}

func (m mounted) readPath(pid int) (string, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", errors.Join(domain.ErrNotFound, err)
	}
	return m.parse(string(b))
}

// parse returns the path in the hierarchy from /proc/<pid>/cgroup: number, controllers, path.
func (m mounted) parse(lines string) (string, error) {
	for line := range strings.Lines(lines) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3) //nolint:mnd // as above
		if len(fields) < 3 || !m.has(fields[0], fields[1]) {
			continue
		}
		switch path := fields[2]; {
		case strings.HasSuffix(path, " (deleted)"):
			return "", fmt.Errorf("cgroup %s: %w", path, domain.ErrNotFound)
		case !strings.HasPrefix(path, "/"):
			return "", fmt.Errorf("cgroup %q is not a path: %w", path, domain.ErrInvalid)
		default:
			return path, nil
		}
	}
	return "", fmt.Errorf("the process has no cgroup in %s: %w", m.dir, domain.ErrUnsupported)
}

// has reports whether a line of /proc/<pid>/cgroup is about this hierarchy.
func (m mounted) has(number, controllers string) bool {
	if m.v1 {
		return slices.Contains(strings.Split(controllers, ","), controller)
	}
	return number == "0" && controllers == ""
}
