// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
)

// namespace is a mount namespace, with the root of a process in it.
type namespace struct {
	ns, root *os.File
	// id is the number of the namespace; own says that it is that of this process.
	id  uint64
	own bool
}

// namespaceOf opens the namespace of a process. Zero is this process, with the given root.
func namespaceOf(pid int, root string) (*namespace, error) {
	if pid == 0 {
		return ownNamespace(root)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w: %w", pid, domain.ErrNotReady, err)
	}
	defer unix.Close(fd)
	return namespaceBehind(pid, fd)
}

// namespaceBehind opens the namespace of a process that is also identified by a pidfd, since its
// PID may have been reused.
func namespaceBehind(pid, pidfd int) (*namespace, error) {
	n, err := openNamespace(filepath.Join("/proc", strconv.Itoa(pid)))
	if err == nil {
		if err = unix.PidfdSendSignal(pidfd, 0, nil, 0); err != nil {
			n.close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("mount namespace of process %d: %w: %w", pid, domain.ErrNotReady, err)
	}
	own, err := ownNamespace("/")
	if err != nil {
		n.close()
		return nil, err
	}
	defer own.close()
	n.own = n.id == own.id
	return n, nil
}

func ownNamespace(root string) (*namespace, error) {
	n, err := openNamespace("/proc/self")
	if err != nil {
		return nil, err
	}
	n.own = true
	n.root.Close()
	if n.root, err = os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		n.ns.Close()
		return nil, err
	}
	return n, nil
}

func openNamespace(proc string) (*namespace, error) {
	ns, err := os.Open(filepath.Join(proc, "ns/mnt"))
	if err != nil {
		return nil, err
	}
	root, err := os.OpenFile(filepath.Join(proc, "root"), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		ns.Close()
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &st); err != nil {
		ns.Close()
		root.Close()
		return nil, err
	}
	return &namespace{ns: ns, root: root, id: st.Ino}, nil
}

func (n *namespace) close() {
	n.ns.Close()
	n.root.Close()
}

// do runs f in the namespace, where mounts are made and looked up with paths from [fdPath].
func (n *namespace) do(f func() error) error {
	done := make(chan error, 1)
	go n.onThread(f, done)
	return <-done
}

// onThread runs f on a thread that no longer shares its file system state with others, and ends
// with the goroutine.
func (n *namespace) onThread(f func() error, done chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The main thread must not be changed, since /proc/self reflects it and it never ends: if
		// this is the main thread, it waits while another one works.
		defer runtime.UnlockOSThread()
		done <- n.do(f)
		return
	}
	done <- n.enter(f)
}

func (n *namespace) enter(f func() error) error {
	fds, err := os.Open("/proc/thread-self/fd") // a container may have no /proc, or a different one
	if err != nil {
		return err
	}
	defer fds.Close()
	if err = unix.Unshare(unix.CLONE_FS); err == nil && !n.own {
		err = unix.Setns(int(n.ns.Fd()), unix.CLONE_NEWNS)
	}
	if err == nil {
		err = unix.Fchdir(int(fds.Fd()))
	}
	if err != nil {
		return fmt.Errorf("entering the mount namespace: %w", err)
	}
	return f()
}

// reaches verifies that a launcher sees at path, within its directories, the content of that path
// on the node.
func reaches(pid int, path string) error {
	ns, err := namespaceOf(pid, "")
	if err != nil {
		return err
	}
	defer ns.close()
	f, err := openFollowing(ns.root, inside(path), unix.O_PATH)
	if err != nil {
		return err
	}
	defer f.Close()
	var here, there unix.Stat_t
	if err := errors.Join(unix.Lstat(path, &here), unix.Fstat(int(f.Fd()), &there)); err != nil {
		return err
	}
	if here.Dev != there.Dev || here.Ino != there.Ino {
		return fmt.Errorf("mounts at %s do not propagate to the launcher: the kubelet's directory of Pods must be a shared mount, "+
			"and the volume of the Pod must have mountPropagation HostToContainer: %w", path, domain.ErrInvalid)
	}
	return nil
}

// peer returns the namespace of the process that listens on a socket. It must be called in the
// namespace of this process, wherever the socket is.
func peer(socket *os.File) (*namespace, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// Connect to the socket that was opened, whatever has its path by now.
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: "/proc/thread-self/fd/" + fdPath(socket)}); err != nil {
		return nil, fmt.Errorf("%s does not answer: %w: %w", socket.Name(), domain.ErrNotReady, err)
	}
	who, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, err
	}
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil { // before Linux 6.5
		pidfd, err = unix.PidfdOpen(int(who.Pid), 0)
	}
	if err != nil {
		return nil, fmt.Errorf("the process that serves %s has ended: %w: %w", socket.Name(), domain.ErrNotReady, err)
	}
	defer unix.Close(pidfd)
	n, err := namespaceBehind(int(who.Pid), pidfd)
	if err == nil && n.own {
		n.close()
		err = fmt.Errorf("%s is served by a process of the node, not of a container: %w", socket.Name(), domain.ErrInvalid)
	}
	return n, err
}

// fdPath returns the path of an open file for system calls that only accept paths. It is valid
// within do.
func fdPath(f *os.File) string { return strconv.Itoa(int(f.Fd())) }

// errOldKernel says that this kernel cannot mount open files.
var errOldKernel = errors.New("the kernel does not support mount_setattr")
