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
	tcpNotSent     = 25       // TCP_NOTSENT_LOWAT, in bytes
	tcpMaxRTO      = 44       // TCP_RTO_MAX_MS, since Linux 6.15
)

// maxRTO is the longest pause between TCP's retransmissions on a dead link, where the kernel lets
// that be set; else it is up to two minutes.
const maxRTO = 5 * time.Second

// notSent is how much TCP accepts beyond what its window allows to send. More would wait in the
// kernel until it has left the CPU's caches, which costs a twentieth to a tenth of a stream's CPU
// time; data in flight is not limited by it.
const notSent = 256 << 10

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
	return itself(f.dir) + "/" + name
}

// find opens a socket of the folder, so that the checked file is the used one.
func (f *folder) find(name string) (*os.File, os.FileInfo, error) {
	fd, err := syscall.Open(f.in(name), openPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	found, err := file.Stat()
	if err == nil && found.Mode().Type() != fs.ModeSocket {
		err = errSymlink
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, found, nil
}

// itself names an open file by its descriptor, whatever its name leads to by now.
func itself(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// dial connects to a socket of the folder.
func (f *folder) dial(ctx context.Context, name string) (half, error) {
	file, _, err := f.find(name)
	if err != nil {
		return nil, f.failed("connect to", name, err)
	}
	defer file.Close()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", itself(file))
	if err != nil {
		return nil, f.failed("connect to", name, err)
	}
	return unixHalf(c)
}

// give makes the folder's owner own a new socket. Until then it belongs to this process; a file
// that the owner has put in its place meanwhile is not given away.
func (s *socket) give() error {
	file, found, err := s.folder.find(s.name)
	if err != nil {
		return err
	}
	defer file.Close()
	folder, err := s.folder.dir.Stat()
	if err != nil {
		return err
	}
	is, to := found.Sys().(*syscall.Stat_t), folder.Sys().(*syscall.Stat_t)
	if int(is.Uid) != os.Geteuid() || is.Nlink != 1 {
		return errors.New("it was replaced meanwhile")
	}
	s.made = found
	if is.Uid == to.Uid && is.Gid == to.Gid {
		return nil
	}
	if err := os.Chown(itself(file), int(to.Uid), int(to.Gid)); err != nil {
		return fmt.Errorf("give it to the owner of its folder: %w", err)
	}
	return nil
}

// keepaliveProbes is the number of unanswered probes after which a peer is dead.
const keepaliveProbes = 3

// tune makes a connection fail if its peer has been unreachable for that long.
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
		for option, value := range map[int]int{tcpMaxRTO: int(maxRTO.Milliseconds()), tcpNotSent: notSent} {
			if e := syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, option, value); e != nil && !errors.Is(e, syscall.ENOPROTOOPT) {
				err = errors.Join(err, e)
			}
		}
	})
	if err := errors.Join(outer, err); err != nil {
		return fmt.Errorf("set up the connection: %w", err)
	}
	return nil
}
