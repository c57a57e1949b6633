// SPDX-License-Identifier: Apache-2.0

package migrationproxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/virtloom/virtloom/domain"
)

// maxSocketPath is the longest name of a unix socket: sun_path without the zero at its end.
const maxSocketPath = 107

// folder holds sockets. It is kept open, and all names are looked up in it: a user with write
// access to a folder above it cannot redirect these lookups, and its own path may be longer than a
// socket's may be.
type folder struct {
	path string
	dir  *os.File
}

// socket is a socket made by this process.
type socket struct {
	folder   *folder
	name     string
	listener *net.UnixListener
	made     os.FileInfo // the file that remove may remove
}

// close is a no-op on nil.
func (f *folder) close() {
	if f != nil {
		f.dir.Close()
	}
}

// lasts reports whether the folder is still the one at its path.
func (f *folder) lasts() bool {
	now, err := os.Stat(f.path)
	if err != nil {
		return false
	}
	was, err := f.dir.Stat()
	return err == nil && os.SameFile(now, was)
}

// errSymlink refuses files that are not sockets.
var errSymlink = errors.New("is not a socket; links and files of other kinds are neither used nor removed here")

// listen makes a socket for the folder's owner alone, and replaces one of the same name that was
// left there.
func (f *folder) listen(ctx context.Context, name string) (*socket, error) {
	if err := f.vacate(name); err != nil {
		return nil, err
	}
	c := net.ListenConfig{Control: restrict}
	l, err := c.Listen(ctx, "unix", f.in(name))
	if err != nil {
		return nil, f.failed("make", name, err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("make the socket %s: unexpected listener type %T", name, l)
	}
	u.SetUnlinkOnClose(false) // the name may have been taken by another one until then
	s := &socket{folder: f, name: name, listener: u}
	if err := s.give(); err != nil {
		l.Close()
		return nil, f.failed("make", name, errors.Join(err, s.remove()))
	}
	return s, nil
}

// restrict restricts a socket's permissions to its owner before it has a name.
func restrict(_, _ string, c syscall.RawConn) error {
	var err error
	if outer := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); outer != nil {
		return outer
	}
	return err
}

// vacate removes a socket that was left there.
func (f *folder) vacate(name string) error {
	found, err := os.Lstat(f.in(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return f.failed("inspect", name, err)
	}
	if found.Mode().Type() != fs.ModeSocket {
		return f.failed("replace", name, errSymlink)
	}
	if err := os.Remove(f.in(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f.failed("replace", name, err)
	}
	return nil
}

// remove removes the socket, if its name is still its own.
func (s *socket) remove() error {
	if s.made == nil {
		return nil
	}
	found, err := os.Lstat(s.folder.in(s.name))
	if err != nil || !os.SameFile(found, s.made) {
		return nil //nolint:nilerr // it is gone already
	}
	if err := os.Remove(s.folder.in(s.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.folder.failed("remove", s.name, err)
	}
	return nil
}

func (f *folder) failed(what, name string, err error) error {
	return fmt.Errorf("%s the socket %s: %w", what, filepath.Join(f.path, name), err)
}

func unixHalf(c net.Conn) (half, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("a connection of type %T is not a unix socket: %w", c, domain.ErrInvalid)
	}
	return u, nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
