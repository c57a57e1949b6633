// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"
)

// probeWithin is the timeout for an answer of another server on the plugin's socket.
const probeWithin = time.Second

// socket is the plugin's socket together with its file, which another process may have replaced
// since.
type socket struct {
	net.Listener
	path string
	file os.FileInfo
}

// listen creates the socket. It removes a socket of an earlier process at the same path, but
// neither a file of another type nor a socket with an active server.
func listen(ctx context.Context, path string) (*socket, error) {
	if err := removeStaleSocket(ctx, path); err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("deviceplugin: creating the socket: %w", err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // it may belong to another process by then
	}
	s := &socket{Listener: l, path: path}
	if s.file, err = os.Lstat(path); err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("deviceplugin: the socket was removed while it was created: %w", err), l.Close())
	}
	return s, nil
}

func removeStaleSocket(ctx context.Context, path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("deviceplugin: inspecting the socket: %w", err)
	case st.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("deviceplugin: %s is a %s, not a socket; remove it", path, st.Mode().Type())
	}
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("deviceplugin: another process serves on %s; stop it, or wait until it ends", path), c.Close())
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("deviceplugin: removing the socket of an earlier process: %w", err)
	}
	return nil
}

// ours reports whether the file at the path still is the socket.
func (s *socket) ours() bool {
	st, err := os.Lstat(s.path)
	return err == nil && sameSocket(st, s.file)
}

// sameSocket reports whether both are the same file. The inode number of a removed file may be reused.
func sameSocket(a, b os.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }

// remove removes the file if it belongs to the socket.
func (s *socket) remove() error {
	if !s.ours() {
		return nil
	}
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("deviceplugin: removing the socket: %w", err)
	}
	return nil
}
