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
	"strconv"
	"syscall"
	"time"
)

// Values of Linux's headers that package syscall leaves out.
const (
	openPath       = 0x200000 // O_PATH: a handle that can be looked up from, not read
	tcpUserTimeout = 18       // TCP_USER_TIMEOUT, in milliseconds
	tcpMaxRTO      = 44       // TCP_RTO_MAX_MS, since Linux 6.15
)

// maxRTO is how long TCP waits at most until it tries a dead link again, where the
// kernel lets that be set; else it is up to two minutes.
const maxRTO = 5 * time.Second

// openFolder does not follow a link that is the folder itself, unless it is one of this
// process's own descriptors.
func openFolder(path string) (*folder, error) {
	follow := syscall.O_NOFOLLOW
	if filepath.Dir(path) == "/proc/self/fd" {
		follow = 0
	}
	fd, err := syscall.Open(path, openPath|syscall.O_DIRECTORY|follow|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open the folder of sockets", Path: path, Err: err}
	}
	return &folder{path: path, dir: os.NewFile(uintptr(fd), path)}, nil
}

// in names a file of the folder by the folder's descriptor.
func (f *folder) in(name string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(f.dir.Fd())) + "/" + name
}

// dial connects to a socket of the folder. It is opened first, so that what was looked
// at is what is connected to.
func (f *folder) dial(ctx context.Context, name string) (half, error) {
	fd, err := syscall.Open(f.in(name), openPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, f.failed("connect to", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	found, err := file.Stat()
	if err != nil {
		return nil, f.failed("connect to", name, err)
	}
	if found.Mode().Type() != fs.ModeSocket {
		return nil, f.failed("connect to", name, errSymlink)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(fd))
	if err != nil {
		return nil, f.failed("connect to", name, err)
	}
	return unixHalf(c)
}

// keepaliveProbes is how many go unanswered before a silent peer is dead.
const keepaliveProbes = 3

// tune makes a connection end if its peer has been out of reach for that long.
func tune(c *net.TCPConn, dead time.Duration) error {
	every := max(dead/(keepaliveProbes+1), time.Second)
	if err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: keepaliveProbes}); err != nil {
		return fmt.Errorf("set up the connection: %w", err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("set up the connection: %w", err)
	}
	outer := raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(dead.Milliseconds()))
		if e := syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpMaxRTO, int(maxRTO.Milliseconds())); e != nil && !errors.Is(e, syscall.ENOPROTOOPT) {
			err = errors.Join(err, e)
		}
	})
	if err := errors.Join(outer, err); err != nil {
		return fmt.Errorf("set up the connection: %w", err)
	}
	return nil
}
