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

// probeWithin is how long another server on the plugin's socket may take to answer.
const probeWithin = time.Second

// socket is the plugin's socket, and which file it is: another process may have put
// its own under the same name since.
type socket struct {
	net.Listener
	path string
	file os.FileInfo
}

// listen makes the socket. What an earlier process left under its name is removed;
// a file of another kind, or a socket on which somebody answers, is not.
func listen(ctx context.Context, path string) (*socket, error) {
	if err := clear(ctx, path); err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("deviceplugin: make the socket: %w", err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // it may be another's by then
	}
	s := &socket{Listener: l, path: path}
	if s.file, err = os.Lstat(path); err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("deviceplugin: the socket was taken away while it was made: %w", err), l.Close())
	}
	return s, nil
}

func clear(ctx context.Context, path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("deviceplugin: look at the socket: %w", err)
	case st.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("deviceplugin: %s is a %s, not a socket; remove it", path, st.Mode().Type())
	}
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("deviceplugin: another process serves on %s; end it, or wait for it to end", path), c.Close())
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("deviceplugin: remove the socket of an earlier process: %w", err)
	}
	return nil
}

// ours tells whether the file of that name still is the socket.
func (s *socket) ours() bool {
	st, err := os.Lstat(s.path)
	return err == nil && same(st, s.file)
}

// same tells whether it is the same file: the number of one that is gone may be given
// to the next.
func same(a, b os.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }

// remove takes the file away if it is the socket's.
func (s *socket) remove() error {
	if !s.ours() {
		return nil
	}
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("deviceplugin: remove the socket: %w", err)
	}
	return nil
}
