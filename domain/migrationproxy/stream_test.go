// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/virtloom/virtloom/domain/migrationproxy"
	"github.com/virtloom/virtloom/domain/transport"
)

// modes are the two transports of a stream.
var modes = map[string]func(*migrationproxy.Options){"TLS": func(*migrationproxy.Options) {}, "plain": insecure}

func TestStream_EitherSideEndsFirst(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 1<<16)
	for mode, change := range modes {
		t.Run(mode+": the target finishes first", func(t *testing.T) {
			ca := newAuthority(t)
			source, target := newNode(t, "node-a", ca, change), newNode(t, "node-b", ca, change)
			got := make(chan string, 1)
			target.hypervisor(transport.ChannelControl, func(c *net.UnixConn) {
				_, _ = io.WriteString(c, big)
				_ = c.CloseWrite()
				all, _ := io.ReadAll(c)
				got <- string(all)
			})
			c := dial(t, connect(t, source, target).DestinationURI)
			if all, err := io.ReadAll(c); err != nil || string(all) != big {
				t.Fatalf("read %d bytes, error %v", len(all), err)
			}
			if _, err := io.WriteString(c, big); err != nil {
				t.Fatal(err)
			}
			_ = c.CloseWrite()
			if all := <-got; all != big {
				t.Errorf("the target read %d bytes of %d", len(all), len(big))
			}
			eventually(t, "the stream has ended", func() bool { return source.total().Streams+target.total().Streams == 0 })
			if broken := source.total().Broken + target.total().Broken; broken != 0 {
				t.Errorf("%d ends broke: %s %s", broken, source.total().Trouble, target.total().Trouble)
			}
		})
		t.Run(mode+": the source finishes first", func(t *testing.T) {
			ca := newAuthority(t)
			source, target := newNode(t, "node-a", ca, change), newNode(t, "node-b", ca, change)
			target.hypervisor(transport.ChannelControl, func(c *net.UnixConn) {
				all, _ := io.ReadAll(c) // answers only after the end
				_, _ = c.Write(all)
				_ = c.CloseWrite()
			})
			c := dial(t, connect(t, source, target).DestinationURI)
			go func() {
				_, _ = io.WriteString(c, big)
				_ = c.CloseWrite()
			}()
			if all, err := io.ReadAll(c); err != nil || string(all) != big {
				t.Errorf("read %d bytes of %d, error %v", len(all), len(big), err)
			}
		})
	}
}

// TestStream_SlowReader sends to a hypervisor that does not read until the writer blocks, which has
// to happen once the buffers on the way are full.
func TestStream_SlowReader(t *testing.T) {
	const bound = 64 << 20 // the kernel's buffers of three connections may grow to a few MiB each
	for mode, change := range modes {
		t.Run(mode, func(t *testing.T) {
			ca := newAuthority(t)
			source, target := newNode(t, "node-a", ca, change), newNode(t, "node-b", ca, change)
			read := make(chan struct{})
			target.hypervisor(transport.ChannelControl, func(c *net.UnixConn) {
				<-read
				echo(c)
			})
			c := dial(t, connect(t, source, target).DestinationURI)
			piece := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
			sent := 0
			for sent < 4*bound {
				_ = c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
				n, err := c.Write(piece[sent%len(piece):])
				sent += n
				if errors.Is(err, os.ErrDeadlineExceeded) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if sent > bound {
				t.Errorf("%d bytes were taken from the writer though nobody reads", sent)
			}
			close(read)
			_ = c.SetWriteDeadline(time.Time{})
			_ = c.CloseWrite()
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, bytes.Repeat(piece, sent/len(piece)+1)[:sent]) {
				t.Errorf("%d bytes came back of %d, error %v", len(got), sent, err)
			}
		})
	}
}

func TestStream_Thousand(t *testing.T) {
	ca := newAuthority(t)
	// All of them shake hands at the same time, on however few CPUs.
	patient := func(o *migrationproxy.Options) { o.DialTimeout, o.HandshakeTimeout = 5*time.Minute, 5*time.Minute }
	source, target := newNode(t, "node-a", ca, patient), newNode(t, "node-b", ca, patient)
	target.hypervisor(transport.ChannelMemory, echo)
	uri := connect(t, source, target).MigrateURI
	var all sync.WaitGroup
	failed := make(chan error, 1000)
	for i := range cap(failed) {
		all.Go(func() {
			failed <- func() error {
				c, err := net.Dial("unix", socketOf(uri))
				if err != nil {
					return err
				}
				defer c.Close()
				text := strings.Repeat(fmt.Sprint("stream ", i, "; "), 1000)
				go func() {
					_, _ = io.WriteString(c, text)
					_ = c.(*net.UnixConn).CloseWrite()
				}()
				got, err := io.ReadAll(c)
				if string(got) != text {
					return errors.Join(err, fmt.Errorf("stream %d brought %d bytes of %d", i, len(got), len(text)))
				}
				return err
			}()
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestStream_MaxStreams(t *testing.T) {
	ca := newAuthority(t)
	source := newNode(t, "node-a", ca, func(o *migrationproxy.Options) { o.MaxStreams = 2 })
	target := newNode(t, "node-b", ca)
	target.hypervisor(transport.ChannelControl, echo)
	uri := connect(t, source, target).DestinationURI
	first, second := dial(t, uri), dial(t, uri)
	eventually(t, "both streams flow", func() bool { return source.total().Streams == 2 })
	if got, err := io.ReadAll(dial(t, uri)); len(got) != 0 {
		t.Errorf("the third stream brought %q, error %v", got, err)
	}
	eventually(t, "the refusal is counted, with the option that says so", func() bool {
		s := source.total()
		return s.Refused == 1 && strings.Contains(s.Trouble, "MaxStreams")
	})
	roundTrip(t, first, "first")
	roundTrip(t, second, "second")
	eventually(t, "the streams have ended", func() bool { return source.total().Streams == 0 })
	roundTrip(t, dial(t, uri), "there is room again")
}

// link is a network between the nodes that can stall and break.
type link struct {
	t    *testing.T
	to   string
	l    net.Listener
	mu   sync.Mutex
	held *sync.Cond
	stop bool
	open []net.Conn
}

// newLink inserts a link before a channel of the target's address.
func newLink(t *testing.T, at *transport.Endpoint, channel int) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port, _ := at.Port(channel)
	k := &link{t: t, to: net.JoinHostPort(at.Address, port), l: l}
	k.held = sync.NewCond(&k.mu)
	delete(at.Ports, port)
	at.Ports[strconv.Itoa(l.Addr().(*net.TCPAddr).Port)] = channel
	t.Cleanup(func() { k.stall(false); k.cut(); l.Close() })
	go k.serve()
	return k
}

func (k *link) serve() {
	for {
		near, err := k.l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", k.to)
		if err != nil {
			near.Close()
			continue
		}
		k.mu.Lock()
		k.open = append(k.open, near, far)
		k.mu.Unlock()
		go k.carry(near, far)
		go k.carry(far, near)
	}
}

func (k *link) carry(from, to net.Conn) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		k.mu.Lock()
		for k.stop {
			k.held.Wait()
		}
		k.mu.Unlock()
		if _, e := to.Write(b[:n]); e != nil {
			return
		}
		if err != nil {
			_ = to.(*net.TCPConn).CloseWrite()
			return
		}
	}
}

func (k *link) stall(stop bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stop = stop
	k.held.Broadcast()
}

// cut closes all connections, in order as TCP sees it.
func (k *link) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.open {
		c.Close()
	}
	k.open = nil
}

func TestStream_StalledLink(t *testing.T) {
	ca := newAuthority(t)
	source, target := newNode(t, "node-a", ca), newNode(t, "node-b", ca)
	target.hypervisor(transport.ChannelControl, echo)
	at, err := target.proxy.Listen(t.Context(), tunnel("node-a"))
	if err != nil {
		t.Fatal(err)
	}
	k := newLink(t, &at, transport.ChannelControl)
	route, err := source.proxy.Dial(t.Context(), tunnel("node-b"), at)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, route.DestinationURI)
	big := strings.Repeat("0123456789abcdef", 1<<18)
	k.stall(true)
	go func() {
		_, _ = io.WriteString(c, big)
		_ = c.CloseWrite()
	}()
	eventually(t, "some of it is on its way", func() bool { return len(source.proxy.Stats()) == 1 })
	k.stall(false)
	if got, err := io.ReadAll(c); err != nil || string(got) != big {
		t.Errorf("read %d bytes of %d, error %v", len(got), len(big), err)
	}
}

func TestStream_CutIsNotEnd(t *testing.T) {
	ca := newAuthority(t)
	source, target := newNode(t, "node-a", ca), newNode(t, "node-b", ca)
	target.hypervisor(transport.ChannelControl, echo)
	at, err := target.proxy.Listen(t.Context(), tunnel("node-a"))
	if err != nil {
		t.Fatal(err)
	}
	k := newLink(t, &at, transport.ChannelControl)
	route, err := source.proxy.Dial(t.Context(), tunnel("node-b"), at)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, route.DestinationURI)
	_, _ = io.WriteString(c, "hello")
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	k.cut()
	if got, _ := io.ReadAll(c); len(got) != 0 {
		t.Errorf("read %q", got)
	}
	for _, n := range []*node{source, target} {
		eventually(t, "the end has noticed", func() bool { return n.total().Broken == 1 && n.total().Streams == 0 })
	}
}
