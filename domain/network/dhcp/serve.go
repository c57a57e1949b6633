// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

const (
	// Port is the lowest port that is served, which package network lets processes without
	// privileges bind.
	Port = 67
	// portV6 is that of DHCPv6.
	portV6 = 547
	// firstRetry and lastRetry are the delays after the first failure and after many.
	firstRetry, lastRetry = 200 * time.Millisecond, 10 * time.Second
	// perSecond and burst limit the answers to a guest; what exceeds them waits in the kernel's
	// queue, which is bounded.
	perSecond, burst = 20, 50
	// maxMessage is the size of a message that is read whole.
	maxMessage = 4096
)

// Options are the options of Serve. The zero value is complete.
type Options struct {
	// Log receives servers that begin and fail. Default: nothing.
	Log logr.Logger
	// ResolvConf is the file with the Pod's name servers and search domains. Default
	// /etc/resolv.conf.
	ResolvConf string
	// HostName is that of the guest. Default: that of the Pod, which is the VMI's.
	HostName string
}

// Serve answers the guests of this network namespace until ctx ends. It follows changes of the
// bridges, and retries whatever fails, with back-off, so that it returns no error.
func Serve(ctx context.Context, o Options) {
	s := &servers{Options: o, running: map[bridge]*server{}, failed: make(chan struct{}, 1)}
	if s.Log.GetSink() == nil {
		s.Log = logr.Discard()
	}
	s.ResolvConf = cmp.Or(s.ResolvConf, "/etc/resolv.conf")
	if s.HostName == "" {
		s.HostName, _ = os.Hostname() // without one, guests get none
	}
	retry := firstRetry
	for ctx.Err() == nil {
		s.served = false
		err := s.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if s.served {
			retry = firstRetry
		}
		s.report(err)
		if !pause(ctx, retry) {
			return
		}
		retry = min(2*retry, lastRetry)
	}
}

// pause reports whether the time has passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// servers are those of all bridges.
type servers struct {
	Options
	running  map[bridge]*server
	failed   chan struct{} // a server has ended
	reported string
	served   bool // a server has begun since the last failure
}

// report logs an error, unless it is the same as before.
func (s *servers) report(err error) {
	if text := fmt.Sprint(err); text != s.reported {
		s.reported = text
		s.Log.Error(err, "Serving DHCP failed, retrying")
	}
}

// follow keeps a server for every bridge, until one fails.
func (s *servers) follow(ctx context.Context) error {
	links, err := openLinkWatch()
	if err != nil {
		return err
	}
	defer links.Close()
	defer s.keep(nil)
	wake := make(chan struct{}, 1)
	go changes(links, wake)
	for {
		found, err := bridges()
		if err != nil {
			return err
		}
		s.keep(found)
		if err := s.begin(ctx, found); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.failed:
			if err := s.ended(); err != nil {
				return err
			}
		case _, open := <-wake:
			if !open {
				return errors.New("the watch of links has ended")
			}
		}
	}
}

// keep ends the servers of other bridges.
func (s *servers) keep(found []bridge) {
	there := map[bridge]bool{}
	for _, b := range found {
		there[b] = true
	}
	for b, one := range s.running {
		if !there[b] {
			one.stop()
			delete(s.running, b)
		}
	}
}

// begin starts the servers that do not run.
func (s *servers) begin(ctx context.Context, found []bridge) error {
	for _, b := range found {
		if s.running[b] != nil || !b.v4.IsValid() && !b.v6.IsValid() {
			continue
		}
		one, err := s.start(ctx, b)
		if err != nil {
			return fmt.Errorf("bridge %s: %w", b.name, err)
		}
		s.running[b], s.reported, s.served = one, "", true
		s.Log.Info("Serving DHCP", "bridge", b.name, "gateway", b.v4.String(), "gateway6", b.v6.String())
	}
	return nil
}

// ended returns the error of a server that has ended by itself.
func (s *servers) ended() error {
	for b, one := range s.running {
		select {
		case err := <-one.err:
			return fmt.Errorf("bridge %s: %w", b.name, err)
		default:
		}
	}
	return nil
}

// server is that of one bridge.
type server struct {
	bridge
	resolver string
	hostName string
	limit    *rate.Limiter
	err      chan error // the first
	cancel   context.CancelFunc
	sockets  []net.PacketConn
	done     sync.WaitGroup
}

func (s *servers) start(ctx context.Context, b bridge) (*server, error) {
	ctx, cancel := context.WithCancel(ctx)
	one := &server{
		bridge: b, resolver: s.ResolvConf, hostName: s.HostName, limit: rate.NewLimiter(perSecond, burst), err: make(chan error, 1), cancel: cancel,
	}
	for _, family := range []struct {
		serve   bool
		network string
		port    int
		answer  func([]byte, net.Addr) ([]byte, net.Addr)
	}{{b.v4.IsValid(), "udp4", Port, one.answerV4}, {b.v6.IsValid(), "udp6", portV6, one.answerV6}} {
		if !family.serve {
			continue
		}
		conn, err := b.listen(ctx, family.network, family.port)
		if err != nil {
			one.stop()
			return nil, err
		}
		one.sockets = append(one.sockets, conn)
		one.done.Go(func() {
			err := one.loop(ctx, conn, family.answer)
			if ctx.Err() != nil {
				return
			}
			select {
			case one.err <- err:
			default:
			}
			select {
			case s.failed <- struct{}{}:
			default:
			}
		})
	}
	return one, nil
}

// stop ends the server, and returns when it has.
func (s *server) stop() {
	s.cancel()
	for _, c := range s.sockets {
		_ = c.Close() // nothing is pending
	}
	s.done.Wait()
}

// loop answers what arrives. A message that cannot be answered is not a failure of the server.
func (s *server) loop(ctx context.Context, conn net.PacketConn, answer func([]byte, net.Addr) ([]byte, net.Addr)) error {
	buf := make([]byte, maxMessage)
	for {
		if err := s.limit.Wait(ctx); err != nil {
			return err
		}
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		out, to := answer(buf[:n], from)
		if out == nil {
			continue
		}
		if _, err := conn.WriteTo(out, to); err != nil && !passing(err) {
			return fmt.Errorf("send: %w", err)
		}
	}
}

// passing reports whether an error is that of one message: the guest asks again.
func passing(err error) bool {
	for _, e := range []error{unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ENETDOWN, unix.ENOBUFS, unix.EAGAIN, unix.EPERM, unix.ECONNREFUSED, unix.EMSGSIZE, unix.EACCES, unix.EINVAL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// listen opens a socket for messages that arrive at the bridge.
func (b bridge) listen(ctx context.Context, network string, port int) (net.PacketConn, error) {
	l := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		outer := c.Control(func(fd uintptr) { err = b.options(int(fd), network) })
		return errors.Join(outer, err)
	}}
	return l.ListenPacket(ctx, network, fmt.Sprintf(":%d", port))
}

func (b bridge) options(fd int, network string) error {
	errs := []error{unix.BindToDevice(fd, b.name), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)}
	if network == "udp6" {
		// ff02::1:2, all DHCP agents and servers
		group := &unix.IPv6Mreq{Multiaddr: [16]byte{0: 0xff, 1: 2, 13: 1, 15: 2}, Interface: uint32(b.index)} //nolint:gosec // not negative
		return errors.Join(append(errs, unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, group))...)
	}
	// The sum of a message that does not leave the machine is left to network cards, and clients that
	// read raw packets would find it wrong. IPv4 allows none.
	return errors.Join(append(errs, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1))...)
}
