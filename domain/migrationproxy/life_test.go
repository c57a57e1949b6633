// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrationproxy"
	"github.com/virtloom/virtloom/domain/transport"
)

func TestClose_EndsStreamsSocketsAndGoroutines(t *testing.T) {
	for mode, change := range modes {
		for _, which := range []string{"source", "target"} {
			t.Run(mode+": at the "+which, func(t *testing.T) {
				ca := newAuthority(t)
				before := runtime.NumGoroutine()
				source, target := newNode(t, "node-a", ca, change), newNode(t, "node-b", ca, change)
				target.hypervisor(transport.ChannelMemory, echo)
				uri := connect(t, source, target).MigrateURI
				c := dial(t, uri)
				go func() { _, _ = io.Copy(c, endless{}) }() // fails when the stream is closed
				if _, err := io.ReadFull(c, make([]byte, 1<<20)); err != nil {
					t.Fatal(err)
				}
				closed, other := source, target
				if which == "target" {
					closed, other = target, source
				}
				closed.proxy.Close(tunnel("").Key)
				if s := closed.proxy.Stats(); len(s) != 0 {
					t.Errorf("%+v is left", s)
				}
				_, _ = io.Copy(io.Discard, c) // ends
				eventually(t, "the other end has noticed", func() bool { return other.total().Streams == 0 })
				other.proxy.Close(tunnel("").Key)
				closed.proxy.Close(tunnel("").Key) // nothing happens
				c.Close()
				if _, err := os.Lstat(socketOf(uri)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the socket is left: %v", err)
				}
				eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+1 }) // the hypervisor listens
			})
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestListen_Again(t *testing.T) {
	target := newNode(t, "node-b", newAuthority(t), func(o *migrationproxy.Options) {
		// No other program is given a port of this range when the proxy closes it.
		o.Ports = migrationproxy.PortRange{First: 20000, Last: 29999}
	})
	at, err := target.proxy.Listen(t.Context(), tunnel("node-a"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*transport.Tunnel)
		same   bool
	}{
		"the same migration":              {change: func(*transport.Tunnel) {}, same: true},
		"another migration":               {change: func(p *transport.Tunnel) { p.Migration = "m2" }},
		"another peer":                    {change: func(p *transport.Tunnel) { p.Peer = "node-c" }},
		"disks travel too":                {change: func(p *transport.Tunnel) { p.CopyDisks = true }},
		"another guest's is beside it":    {change: func(p *transport.Tunnel) { p.Key = "other" }},
		"the first migration comes again": {change: func(*transport.Tunnel) {}, same: true},
	} {
		t.Run(name, func(t *testing.T) {
			if at, err = target.proxy.Listen(t.Context(), tunnel("node-a")); err != nil {
				t.Fatal(err)
			}
			p := tunnel("node-a")
			tc.change(&p)
			again, err := target.proxy.Listen(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			if err := again.Check(p.Channels()...); err != nil || len(again.Ports) != len(p.Channels()) {
				t.Errorf("%+v does not lead to channels %v: %v", again, p.Channels(), err)
			}
			for port := range at.Ports {
				_, still := again.Ports[port]
				if still != tc.same {
					t.Errorf("ports %v, then %v", at.Ports, again.Ports)
				}
				c, err := net.Dial("tcp", net.JoinHostPort(at.Address, port))
				if open := tc.same || p.Key != tunnel("").Key; (err == nil) != open {
					t.Errorf("port %s: %v, want open %t", port, err, open)
				}
				if err == nil {
					c.Close()
				}
			}
			target.proxy.Close("other")
		})
	}
}

func TestListen_ResultIsCallers(t *testing.T) {
	target := newNode(t, "node-b", newAuthority(t))
	at, err := target.proxy.Listen(t.Context(), tunnel("node-a"))
	if err != nil {
		t.Fatal(err)
	}
	clear(at.Ports)
	if at, err = target.proxy.Listen(t.Context(), tunnel("node-a")); err != nil || len(at.Ports) != 2 {
		t.Errorf("ports %v, error %v", at.Ports, err)
	}
}

func TestListen_PortRange(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken := uint16(l.Addr().(*net.TCPAddr).Port)
	target := newNode(t, "node-b", newAuthority(t), func(o *migrationproxy.Options) {
		o.Ports = migrationproxy.PortRange{First: taken, Last: taken}
	})
	if _, err := target.proxy.Listen(t.Context(), tunnel("node-a")); err == nil || !strings.Contains(err.Error(), "Options.Ports") {
		t.Errorf("error %v, want one that names the option", err)
	}
	l.Close()
	if _, err := target.proxy.Listen(t.Context(), tunnel("node-a")); err == nil {
		t.Error("two channels share one port")
	}
	target.options.Ports.Last = min(taken, 65435) + 100
	target.options.Ports.First = min(taken, 65435)
	target.restart()
	at, err := target.proxy.Listen(t.Context(), tunnel("node-a"))
	if err != nil {
		t.Fatal(err)
	}
	for port := range at.Ports {
		if n, _ := strconv.Atoi(port); n < int(target.options.Ports.First) || n > int(target.options.Ports.Last) {
			t.Errorf("port %s is not in %+v", port, target.options.Ports)
		}
	}
}

// TestStream_PeerVanishes has a peer that receives no more, as an unresponsive node.
func TestStream_PeerVanishes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close() // not before the test ends
		}
	}()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	at := transport.Endpoint{Address: "127.0.0.1", Ports: map[string]int{port: transport.ChannelControl, "1": transport.ChannelMemory}}
	for name, tc := range map[string]struct {
		change   func(*migrationproxy.Options)
		uri      func(transport.Route) string
		refused  bool
		complain string
	}{
		"while a stream flows": {
			change: func(o *migrationproxy.Options) {
				insecure(o)
				o.DeadAfter = time.Second
			},
			uri: func(r transport.Route) string { return r.DestinationURI }, complain: "timed out",
		},
		"before the handshake": {
			change:  func(o *migrationproxy.Options) { o.HandshakeTimeout = 50 * time.Millisecond },
			uri:     func(r transport.Route) string { return r.DestinationURI },
			refused: true, complain: `node "node-b" at 127.0.0.1:` + port,
		},
		"before the connection": {
			change:  func(*migrationproxy.Options) {},
			uri:     func(r transport.Route) string { return r.MigrateURI },
			refused: true, complain: "connection refused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			source := newNode(t, "node-a", newAuthority(t), tc.change)
			route, err := source.proxy.Dial(t.Context(), tunnel("node-b"), at)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(dial(t, tc.uri(route)), endless{}); err == nil {
				t.Error("the hypervisor's writes end without an error")
			}
			eventually(t, "the stream has ended", func() bool {
				s := source.total()
				return s.Streams == 0 && s.Refused+s.Broken == 1 && (s.Refused == 1) == tc.refused
			})
			if got := source.total().Trouble; !strings.Contains(got, tc.complain) {
				t.Errorf("it says %q, want %q", got, tc.complain)
			}
		})
	}
}

func TestTarget_HypervisorIsLate(t *testing.T) {
	ca := newAuthority(t)
	source, target := newNode(t, "node-a", ca), newNode(t, "node-b", ca)
	at, err := target.proxy.Listen(t.Context(), withDisks(tunnel("node-a")))
	if err != nil {
		t.Fatal(err)
	}
	route, err := source.proxy.Dial(t.Context(), withDisks(tunnel("node-b")), at)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, route.DisksURI)
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stream has come to the target", func() bool { return source.total().Sent == 5 })
	target.hypervisor(transport.ChannelDisks, echo)
	_ = c.CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != "hello" {
		t.Errorf("read %q, error %v", got, err)
	}
	t.Run("but not for ever", func(t *testing.T) {
		target.options.SocketTimeout = 50 * time.Millisecond
		target.proxy.Close(tunnel("").Key)
		target.restart()
		if got, err := io.ReadAll(dial(t, connect(t, source, target).DestinationURI)); len(got) != 0 {
			t.Errorf("read %q, error %v", got, err)
		}
		eventually(t, "the stream was refused", func() bool { return target.total().Refused == 1 })
		if got := target.total().Trouble; !strings.Contains(got, "timed out waiting 50ms for the hypervisor's socket") {
			t.Errorf("it says %q", got)
		}
	})
}

func TestStream_LingerLimit(t *testing.T) {
	ca := newAuthority(t)
	source := newNode(t, "node-a", ca, func(o *migrationproxy.Options) { o.Linger = 50 * time.Millisecond })
	target := newNode(t, "node-b", ca)
	hung := make(chan struct{})
	t.Cleanup(func() { close(hung) })
	target.hypervisor(transport.ChannelControl, func(*net.UnixConn) { <-hung })
	c := dial(t, connect(t, source, target).DestinationURI)
	_ = c.CloseWrite()
	if _, err := io.ReadAll(c); err != nil {
		t.Error(err)
	}
	eventually(t, "the stream was given up", func() bool { return source.total().Broken == 1 })
	if got := source.total().Trouble; !strings.Contains(got, "after one direction had ended") {
		t.Errorf("it says %q", got)
	}
}

func TestStart_ProgramEnds(t *testing.T) {
	for name, drain := range map[string]time.Duration{"at once": 0, "after what flows has ended": time.Hour, "after a while": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			ca := newAuthority(t)
			source := newNode(t, "node-a", ca, func(o *migrationproxy.Options) { o.Drain = drain })
			target := newNode(t, "node-b", ca)
			target.hypervisor(transport.ChannelControl, echo)
			c := dial(t, connect(t, source, target).DestinationURI)
			eventually(t, "the stream flows", func() bool { return source.total().Streams == 1 && target.total().Streams == 1 })
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error)
			go func() { over <- source.proxy.Start(ctx) }()
			cancel()
			if drain == time.Hour {
				eventually(t, "nothing new is taken", func() bool {
					_, err := source.proxy.Listen(t.Context(), tunnel("node-b"))
					return errors.Is(err, migrationproxy.ErrEnded)
				})
				roundTrip(t, c, "to the end")
			}
			if err := <-over; err != nil {
				t.Error(err)
			}
			if s := source.proxy.Stats(); len(s) != 0 {
				t.Errorf("%+v is left", s)
			}
			at := transport.Endpoint{Address: "127.0.0.1", Ports: map[string]int{"1": 0, "2": transport.ChannelMemory}}
			if _, err := source.proxy.Dial(t.Context(), tunnel("node-b"), at); !errors.Is(err, migrationproxy.ErrEnded) {
				t.Errorf("Dial after the end: %v", err)
			}
		})
	}
}

func TestOptions_Invalid(t *testing.T) {
	ca := newAuthority(t)
	good := newNode(t, "node-a", ca).options
	for name, tc := range map[string]struct {
		change func(*migrationproxy.Options)
		want   string
	}{
		"no address":           {func(o *migrationproxy.Options) { o.Address = "" }, "Options.Address"},
		"a host name":          {func(o *migrationproxy.Options) { o.Address = "node-a" }, "Options.Address"},
		"any address":          {func(o *migrationproxy.Options) { o.Address = "0.0.0.0" }, "Options.Address"},
		"bound to a name":      {func(o *migrationproxy.Options) { o.Bind = "localhost" }, "Options.Bind"},
		"no node":              {func(o *migrationproxy.Options) { o.NodeName = "" }, "Options.NodeName"},
		"no sockets":           {func(o *migrationproxy.Options) { o.Sockets = nil }, "Options.Sockets"},
		"no certificates":      {func(o *migrationproxy.Options) { o.Certificates = nil }, "Options.Certificates"},
		"ports back to front":  {func(o *migrationproxy.Options) { o.Ports = migrationproxy.PortRange{First: 2, Last: 1} }, "Options.Ports"},
		"ports from zero":      {func(o *migrationproxy.Options) { o.Ports = migrationproxy.PortRange{Last: 1} }, "Options.Ports"},
		"a negative time":      {func(o *migrationproxy.Options) { o.DeadAfter = -1 }, "DeadAfter"},
		"fewer than no stream": {func(o *migrationproxy.Options) { o.MaxStreams = -1 }, "MaxStreams"},
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			tc.change(&o)
			p, err := migrationproxy.NewProxy(o)
			if p != nil || !errors.Is(err, domain.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one that names %s", err, tc.want)
			}
		})
	}
}

// TestListen_SharedHypervisor: a peer's stream does not reach the control socket of a hypervisor
// that all domains of a node share, unless an option allows it.
func TestListen_SharedHypervisor(t *testing.T) {
	ca := newAuthority(t)
	shared := func(o *migrationproxy.Options) {
		at := o.Sockets
		o.Sockets = func(ctx context.Context, name string) (domain.Sockets, error) {
			s, err := at(ctx, name)
			s.Own = false
			return s, err
		}
	}
	for asked, change := range map[bool]func(*migrationproxy.Options){
		false: shared,
		true: func(o *migrationproxy.Options) {
			shared(o)
			o.InsecureSharedHypervisor = true
		},
	} {
		n := newNode(t, "node-a", ca, change)
		at, err := n.proxy.Listen(t.Context(), tunnel("node-b"))
		switch {
		case asked && (err != nil || len(at.Ports) == 0):
			t.Errorf("asked for: ports %v, %v", at.Ports, err)
		case !asked && (!errors.Is(err, migrationproxy.ErrSharedHypervisor) || len(at.Ports) > 0):
			t.Errorf("not asked for: ports %v, %v", at.Ports, err)
		case !asked && !strings.Contains(err.Error(), "--launchers"):
			t.Errorf("%v: names no remedy", err)
		}
	}
}

func TestSockets_LookupFails(t *testing.T) {
	n := newNode(t, "node-a", newAuthority(t), func(o *migrationproxy.Options) {
		o.Sockets = func(context.Context, string) (domain.Sockets, error) { return domain.Sockets{}, domain.ErrNotReady }
	})
	if _, err := n.proxy.Listen(t.Context(), tunnel("node-b")); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("Listen: %v", err)
	}
	at := transport.Endpoint{Address: "127.0.0.1", Ports: map[string]int{"1": 0, "2": transport.ChannelMemory}}
	if _, err := n.proxy.Dial(t.Context(), tunnel("node-b"), at); !errors.Is(err, domain.ErrNotReady) {
		t.Errorf("Dial: %v", err)
	}
}
