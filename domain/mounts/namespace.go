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

// namespace is a mount namespace, and the root of a process in it.
type namespace struct {
	ns, root *os.File
	// id is the number of the namespace, own says that it is this process's.
	id  uint64
	own bool
}

// namespaceOf opens that of a process; zero is this one, whose root is given.
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

// namespaceBehind opens that of a process that is known by pidfd, too: the number
// alone may be another's by now.
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

// do runs f where mounts are made and looked up in the namespace, with paths from
// [fdPath].
func (n *namespace) do(f func() error) error {
	done := make(chan error, 1)
	go n.onThread(f, done)
	return <-done
}

// onThread runs f on a thread that cannot share its place in the file system with
// others again, and ends with the goroutine.
func (n *namespace) onThread(f func() error, done chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// What /proc/self says is where the first thread is, and that one never ends:
		// it waits here while another works.
		defer runtime.UnlockOSThread()
		done <- n.do(f)
		return
	}
	done <- n.enter(f)
}

func (n *namespace) enter(f func() error) error {
	fds, err := os.Open("/proc/thread-self/fd") // in a container there may be no /proc, or another
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
		return fmt.Errorf("enter the mount namespace: %w", err)
	}
	return f()
}

// reaches makes sure that a launcher sees at its place what is at a path of its Pod's
// folders.
func reaches(pid int, path string) error {
	ns, err := namespaceOf(pid, "")
	if err != nil {
		return err
	}
	defer ns.close()
	f, err := follow(ns.root, inside(path), unix.O_PATH)
	if err != nil {
		return err
	}
	defer f.Close()
	var here, there unix.Stat_t
	if err := errors.Join(unix.Lstat(path, &here), unix.Fstat(int(f.Fd()), &there)); err != nil {
		return err
	}
	if here.Dev != there.Dev || here.Ino != there.Ino {
		return fmt.Errorf("its launcher does not see what is mounted at %s: the node's folder of Pods has to be a shared mount, "+
			"the Pod's volume to have mountPropagation HostToContainer: %w", path, domain.ErrInvalid)
	}
	return nil
}

// peer is the process that listens on a socket. It is called where this process is,
// wherever the socket is.
func peer(socket *os.File) (*namespace, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// This is the socket that was opened, whatever has its name by now.
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
		return nil, fmt.Errorf("%s: its process is gone: %w: %w", socket.Name(), domain.ErrNotReady, err)
	}
	defer unix.Close(pidfd)
	n, err := namespaceBehind(int(who.Pid), pidfd)
	if err == nil && n.own {
		n.close()
		err = fmt.Errorf("%s belongs to no container but to a process of the node: %w", socket.Name(), domain.ErrInvalid)
	}
	return n, err
}

// fdPath is a path of an open file for calls that know paths only, where do runs what
// it is given.
func fdPath(f *os.File) string { return strconv.Itoa(int(f.Fd())) }

// errOldKernel says that mounts cannot be made by open files here.
var errOldKernel = errors.New("the kernel has no mount_setattr")
