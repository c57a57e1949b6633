// SPDX-License-Identifier: Apache-2.0

// Command containerdisk is /usr/bin/container-disk of the launcher's image. It runs inside the images of containerDisks and in
// Pods that carry plugged volumes, where there may be nothing else, so it is static and needs no other file:
//
//	container-disk --no-op           ends at once: the kubelet has pulled the image by then
//	container-disk --copy-path PATH  listens at PATH.sock until SIGTERM
//
// The socket is the message: the node's agent finds the container by its listener, and the image in the container's file
// system. Nothing is said over a connection, which is closed as soon as it is there.
package main

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if err := run(os.Args[1:], signals); err != nil {
		_, _ = os.Stderr.WriteString("container-disk: " + err.Error() + "\n")
		os.Exit(1)
	}
}

// run returns when there is nothing to do, or after a signal, with the socket removed.
func run(args []string, signals <-chan os.Signal) error {
	path, err := parse(args)
	if err != nil || path == "" {
		return err
	}
	l, err := listen(path + ".sock")
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- l.answer() }()
	select {
	case err = <-failed:
	case <-signals:
	}
	return errors.Join(err, os.Remove(l.path))
}

// parse returns the path of --copy-path; empty for --no-op.
func parse(args []string) (path string, err error) {
	none := false
	for len(args) > 0 {
		name, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		switch {
		case name == "--no-op" && !joined:
			none = true
		case name == "--copy-path" && joined:
			path = value
		case name == "--copy-path" && len(args) > 0:
			path, args = args[0], args[1:]
		default:
			return "", errors.New("unknown argument " + name + "; usage: container-disk --no-op | --copy-path PATH")
		}
	}
	switch {
	case none && path == "":
		return "", nil
	case none || !filepath.IsAbs(path):
		return "", errors.New("usage: container-disk --no-op | --copy-path PATH, an absolute path")
	}
	return path, nil
}

// listener is a socket with its path.
type listener struct {
	fd   int
	path string
}

// listen opens the socket in the place of one that an earlier container has left. The path of a socket is limited to 107
// bytes, which a folder with a UID in its name exceeds easily, so the address is relative to the folder.
func listen(path string) (*listener, error) {
	if err := os.Chdir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	l := &listener{fd: fd, path: path}
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: filepath.Base(path)}); err != nil {
		return nil, errors.Join(&os.PathError{Op: "bind", Path: path, Err: err}, syscall.Close(fd))
	}
	if err := syscall.Listen(fd, 1); err != nil {
		return nil, errors.Join(&os.PathError{Op: "listen", Path: path, Err: err}, syscall.Close(fd), os.Remove(path))
	}
	return l, nil
}

// answer closes connections, so that no client can fill the queue, until taking them fails.
func (l *listener) answer() error {
	for {
		fd, _, err := syscall.Accept4(l.fd, syscall.SOCK_CLOEXEC)
		switch {
		case errors.Is(err, syscall.EINTR) || errors.Is(err, syscall.ECONNABORTED):
		case err != nil:
			return os.NewSyscallError("accept", err)
		default:
			_ = syscall.Close(fd) // nothing was written
		}
	}
}
