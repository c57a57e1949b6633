// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package migrationproxy

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Hypervisors of KubeVirt run on Linux. Elsewhere the package serves tests: links in the path of
// the folder are followed, and only keepalives detect a dead peer.

func openFolder(path string) (*folder, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the folder of sockets: %w", err)
	}
	return &folder{path: path, dir: dir}, nil
}

func (f *folder) in(name string) string { return filepath.Join(f.path, name) }

func (f *folder) dial(ctx context.Context, name string) (half, error) {
	found, err := os.Lstat(f.in(name))
	if err != nil {
		return nil, f.failed("connect to", name, err)
	}
	if found.Mode().Type() != fs.ModeSocket {
		return nil, f.failed("connect to", name, errSymlink)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", f.in(name))
	if err != nil {
		return nil, f.failed("connect to", name, err)
	}
	return unixHalf(c)
}

// give leaves the socket this process's own.
func (s *socket) give() (err error) {
	s.made, err = os.Lstat(s.folder.in(s.name))
	return err
}

const keepaliveProbes = 3

func tune(c *net.TCPConn, dead time.Duration) error {
	every := max(dead/(keepaliveProbes+1), time.Second)
	return c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: keepaliveProbes})
}
