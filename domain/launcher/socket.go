// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/virtloom/virtloom/domain"
)

// The socket's names in its folder, which are KubeVirt's.
const (
	// BootingSocket is its name while the launcher is not ready.
	BootingSocket = "launcher-init-sock"
	// ReadySocket is its name from then on.
	ReadySocket = "launcher-sock"
)

// Listener is the socket of a launcher.
type Listener struct {
	net.Listener
	dir *os.File
}

// Listen opens the socket in the folder, with BootingSocket as its name and accessible to the
// launcher's own user and root only. It replaces the sockets of an earlier launcher.
func Listen(ctx context.Context, dir string) (*Listener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("launcher: listen: %w", err)
	}
	for _, name := range []string{BootingSocket, ReadySocket} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("launcher: listen: %w", err), d.Close())
		}
	}
	// The mode of a socket before it is bound is that of its file; and the path through the
	// folder's descriptor fits into an address however long its own is.
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failed)
	}}
	l, err := private.Listen(ctx, "unix", below(d, BootingSocket))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("launcher: listen in %s: %w", dir, err), d.Close())
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // it may have another name by then
	}
	return &Listener{Listener: l, dir: d}, nil
}

// Ready renames the socket to ReadySocket, which agents connect to.
func (l *Listener) Ready() error {
	if err := unix.Renameat(int(l.dir.Fd()), BootingSocket, int(l.dir.Fd()), ReadySocket); err != nil {
		return fmt.Errorf("launcher: rename the socket: %w", err)
	}
	return nil
}

// Close ends listening and removes the socket.
func (l *Listener) Close() error {
	err := l.Listener.Close()
	for _, name := range []string{BootingSocket, ReadySocket} {
		_ = unix.Unlinkat(int(l.dir.Fd()), name, 0) // one of them is not there
	}
	_ = l.dir.Close()
	return err
}

// below is a path through an open folder, whatever its own path has become.
func below(d *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name)
}

// openBelow opens a path below a folder without following any symbolic link on the way; the result
// can only be used as a location (O_PATH).
func openBelow(root, path string) (*os.File, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: root, Err: err}
	}
	at := root
	for part := range strings.SplitSeq(filepath.Clean(path), string(filepath.Separator)) {
		if part == ".." || part == "" {
			_ = unix.Close(fd)
			return nil, fmt.Errorf("%q is not below %s: %w", path, root, domain.ErrInvalid)
		}
		at = filepath.Join(at, part)
		next, err := unix.Openat(fd, part, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		_ = unix.Close(fd)
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: at, Err: err}
		}
		fd = next
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			_ = unix.Close(fd)
			return nil, &fs.PathError{Op: "stat", Path: at, Err: err}
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			_ = unix.Close(fd)
			return nil, fmt.Errorf("%s is a symbolic link, which is not allowed there: %w", at, domain.ErrInvalid)
		}
	}
	return os.NewFile(uintptr(fd), at), nil
}

// connect opens a connection to the socket at a path below root. The folder is returned open as
// well, for the files beside the socket.
func connect(ctx context.Context, root, path string) (c net.Conn, dir *os.File, err error) {
	if dir, err = openBelow(root, filepath.Dir(path)); err != nil {
		return nil, nil, notReady(err)
	}
	defer func() {
		if err != nil {
			_ = dir.Close()
		}
	}()
	sock, err := openBelow(below(dir, ""), filepath.Base(path))
	if err != nil {
		return nil, nil, notReady(err)
	}
	defer sock.Close()
	if info, err := sock.Stat(); err != nil || info.Mode().Type() != fs.ModeSocket {
		return nil, nil, fmt.Errorf("%s is not a socket: %w", filepath.Join(root, path), errors.Join(domain.ErrInvalid, err))
	}
	var d net.Dialer
	if c, err = d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", sock.Fd())); err != nil {
		return nil, nil, notReady(fmt.Errorf("connect to %s: %w", filepath.Join(root, path), err))
	}
	return c, dir, nil
}

// launcherPeerPID returns the process at the other end of a connection, 0 if it is unknown.
func launcherPeerPID(c net.Conn) int {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0
	}
	var who *unix.Ucred
	asked := raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if asked != nil || err != nil {
		return 0
	}
	return int(who.Pid)
}

// notReady adds domain.ErrNotReady to the error of a socket that does not exist, or has no
// listener.
func notReady(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: %w", domain.ErrNotReady, err)
	}
	return err
}
