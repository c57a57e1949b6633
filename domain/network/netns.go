// SPDX-License-Identifier: Apache-2.0

package network

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
)

const (
	tunNode      = "/dev/net/tun"
	bridgeDriver = "bridge"
	tunDriver    = "tun"
	// tapHash is the length of the hash in a name: the kernel limits names to 15 characters.
	tapHash = 12
)

// TapName returns the name of the tap device of a VMI for a network.
func TapName(uid types.UID, network string) string {
	sum := sha256.Sum256([]byte(string(uid) + "/" + network))
	return "tap" + hex.EncodeToString(sum[:])[:tapHash]
}

// space is a network namespace. Requests through its open files apply to the namespace, on
// whichever thread they are made.
type space struct{ ns, sock, route *os.File }

// openSpace opens a namespace. Defaults to that of this process.
func openSpace(namespace string) (*space, error) {
	if namespace == "" {
		return newSpace()
	}
	ns, err := os.Open(namespace)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.Join(domain.ErrNotReady, err)
		}
		return nil, fmt.Errorf("network: opening the namespace: %w", err)
	}
	var out *space
	if err := inNamespace(ns, func() (err error) { out, err = newSpace(); return err }); err != nil {
		ns.Close()
		return nil, err
	}
	out.ns = ns
	return out, nil
}

// inNamespace runs f in the namespace; nil is that of this process.
func inNamespace(ns *os.File, f func() error) error {
	if ns == nil {
		return f()
	}
	done := make(chan error, 1)
	go func() { done <- inside(ns, f) }()
	return <-done
}

// inside switches the thread to the namespace and back. A thread that cannot switch back ends with
// its goroutine.
func inside(ns *os.File, f func() error) error {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err == nil {
		defer own.Close()
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("network: entering namespace %s: %w", ns.Name(), err)
	}
	err = f()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back == nil {
		runtime.UnlockOSThread()
	}
	return err
}

func newSpace() (*space, error) {
	sock, err := socket(unix.AF_INET, 0)
	if err != nil {
		return nil, err
	}
	route, err := socket(unix.AF_NETLINK, unix.NETLINK_ROUTE)
	if err != nil {
		sock.Close()
		return nil, err
	}
	return &space{sock: sock, route: route}, nil
}

func socket(family, protocol int) (*os.File, error) {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("network: opening a socket: %w", err)
	}
	return os.NewFile(uintptr(fd), "socket"), nil
}

func (s *space) close() {
	s.sock.Close()
	s.route.Close()
	if s.ns != nil {
		s.ns.Close()
	}
}

// bridge checks that a bridge with the given name exists and is up.
func (s *space) bridge(name string) error {
	driver, err := s.driver(name)
	if err != nil {
		return err
	}
	if driver != bridgeDriver {
		return fmt.Errorf("link %s is a %s, not a bridge: %w", name, driver, domain.ErrInvalid)
	}
	flags, err := s.flags(name)
	if err == nil && flags&unix.IFF_UP == 0 {
		err = fmt.Errorf("bridge %s is down: %w", name, domain.ErrNotReady)
	}
	return err
}

// driver returns the driver of a link.
func (s *space) driver(name string) (string, error) {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return "", fmt.Errorf("invalid link name %.40q: %w", name, domain.ErrInvalid)
	}
	if _, err := s.flags(name); err != nil {
		return "", err
	}
	info, err := unix.IoctlGetEthtoolDrvinfo(int(s.sock.Fd()), name)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return "link without a driver", nil
	}
	if err != nil {
		return "", fmt.Errorf("link %s: %w", name, err)
	}
	return unix.ByteSliceToString(info.Driver[:]), nil
}

func (s *space) ask(name string, what uint) (*unix.Ifreq, error) {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("link %.40q: %w: %w", name, domain.ErrInvalid, err)
	}
	if err := unix.IoctlIfreq(int(s.sock.Fd()), what, r); err != nil {
		if errors.Is(err, unix.ENODEV) {
			err = fmt.Errorf("not found: %w", domain.ErrNotReady)
		}
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	return r, nil
}

func (s *space) flags(name string) (uint16, error) {
	r, err := s.ask(name, unix.SIOCGIFFLAGS)
	if err != nil {
		return 0, err
	}
	return r.Uint16(), nil
}

// plug creates the tap device, attaches it to the bridge, sets it up, and returns its MTU.
func (s *space) plug(w wish, user, group int) (uint, error) {
	mtu, err := s.ask(w.bridge, unix.SIOCGIFMTU)
	if err != nil {
		return 0, err
	}
	fail := func(what string, err error) (uint, error) {
		return 0, fmt.Errorf("tap device %s: %s: %w", w.tap, what, err)
	}
	// A tap device of an earlier, failed setup has no record.
	if err := s.remove(w.tap); err != nil {
		return 0, err
	}
	if err := s.tap(w, user, group); err != nil {
		return fail("creating it", err)
	}
	set, err := unix.NewIfreq(w.tap)
	if err != nil {
		return fail("name", err)
	}
	set.SetUint32(mtu.Uint32())
	if err := unix.IoctlIfreq(int(s.sock.Fd()), unix.SIOCSIFMTU, set); err != nil {
		return fail("setting its MTU", err)
	}
	index, err := s.ask(w.tap, unix.SIOCGIFINDEX)
	if err != nil {
		return 0, err
	}
	master, err := unix.NewIfreq(w.bridge)
	if err != nil {
		return fail("bridge", err)
	}
	master.SetUint32(index.Uint32())
	if err := unix.IoctlIfreq(int(s.sock.Fd()), unix.SIOCBRADDIF, master); err != nil {
		return fail("attaching it to bridge "+w.bridge, err)
	}
	flags, err := s.flags(w.tap)
	if err != nil {
		return 0, err
	}
	set.SetUint16(flags | unix.IFF_UP)
	if err := unix.IoctlIfreq(int(s.sock.Fd()), unix.SIOCSIFFLAGS, set); err != nil {
		return fail("setting it up", err)
	}
	return uint(mtu.Uint32()), nil
}

// tap creates a tap device that outlives its open file.
func (s *space) tap(w wish, user, group int) error {
	r, err := unix.NewIfreq(w.tap)
	if err != nil {
		return err
	}
	flags := unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL
	if w.multiqueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	r.SetUint16(uint16(flags)) //nolint:gosec // flags have 16 bits
	var tun *os.File
	// The device belongs to the namespace of the thread that opens it.
	err = inNamespace(s.ns, func() (err error) {
		tun, err = os.OpenFile(tunNode, os.O_RDWR, 0)
		return err
	})
	if err != nil {
		return errors.Join(domain.ErrUnsupported, err)
	}
	defer tun.Close()
	fd := int(tun.Fd())
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
	for _, set := range []struct {
		what  uint
		value int
	}{{unix.TUNSETOWNER, user}, {unix.TUNSETGROUP, group}, {unix.TUNSETPERSIST, 1}} {
		if err == nil {
			err = unix.IoctlSetInt(fd, set.what, set.value)
		}
	}
	return err
}

// remove removes a tap device, even if it is open. It does not touch links of other kinds.
func (s *space) remove(tap string) error {
	if tap == "" {
		return nil
	}
	driver, err := s.driver(tap)
	switch {
	case errors.Is(err, domain.ErrNotReady):
		return nil
	case err != nil:
		return err
	case driver != tunDriver:
		return fmt.Errorf("link %s is a %s, not a tap device: %w", tap, driver, domain.ErrInvalid)
	}
	index, err := s.ask(tap, unix.SIOCGIFINDEX)
	if errors.Is(err, domain.ErrNotReady) {
		return nil
	}
	if err == nil {
		err = s.deleteLink(index.Uint32())
	}
	if err != nil {
		return fmt.Errorf("removing tap device %s: %w", tap, err)
	}
	return nil
}

// deleteLink deletes a link (rtnetlink: RTM_DELLINK).
func (s *space) deleteLink(index uint32) error {
	order := binary.NativeEndian
	const size = unix.SizeofNlMsghdr + unix.SizeofIfInfomsg
	req := order.AppendUint32(nil, size)
	req = order.AppendUint16(req, unix.RTM_DELLINK)
	req = order.AppendUint16(req, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	req = append(req, make([]byte, size-len(req))...)
	order.PutUint32(req[unix.SizeofNlMsghdr+4:], index) // after family and type
	if err := unix.Sendto(int(s.route.Fd()), req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(int(s.route.Fd()), answer, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || order.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("the answer of the kernel cannot be parsed")
	}
	if errno := unix.Errno(-int32(order.Uint32(answer[unix.SizeofNlMsghdr:]))); errno != 0 && errno != unix.ENODEV { //nolint:gosec // negative error number
		return errno
	}
	return nil
}
