// SPDX-License-Identifier: Apache-2.0

package migrationproxy_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/virtloom/virtloom/domain/migrationproxy"
	"github.com/virtloom/virtloom/domain/transport"
)

// roll is a hypervisor's list of its connections in the order in which it accepted them, each named
// by its first byte, which need not arrive in that order.
type roll struct {
	t  *testing.T
	l  *net.UnixListener
	mu sync.Mutex
	by []*byte
}

// call makes the roll of a node's hypervisor for a number of streams, that it closes.
func call(t *testing.T, n *node, streams int) *roll {
	t.Helper()
	r := &roll{t: t, l: n.listen(transport.ChannelMemory)}
	go func() {
		for range streams {
			c, err := r.l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			name := new(byte)
			r.mu.Lock()
			r.by = append(r.by, name)
			r.mu.Unlock()
			go func() {
				b := make([]byte, 1)
				if _, err := io.ReadFull(c, b); err == nil {
					r.mu.Lock()
					*name = b[0]
					r.mu.Unlock()
				}
			}()
		}
		<-t.Context().Done()
	}()
	return r
}

// want waits until all streams are named and compares their order.
func (r *roll) want(order string) {
	r.t.Helper()
	names := func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		var all strings.Builder
		for _, name := range r.by {
			all.WriteByte(*name)
		}
		return all.String()
	}
	eventually(r.t, "all streams have reached the hypervisor", func() bool {
		all := names()
		return len(all) == len(order) && !strings.ContainsRune(all, 0)
	})
	if got := names(); got != order {
		r.t.Errorf("streams reached the hypervisor in the order %q, want %q", got, order)
	}
}

// TestOrder_Target has handshakes that complete in another order than that of the connections, or
// fail.
func TestOrder_Target(t *testing.T) {
	fail := func(c net.Conn) { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\n\r\n") }
	for name, tc := range map[string]struct {
		streams string           // a letter for each connection
		shake   string           // the order of those that shake hands
		others  func(c net.Conn) // what the others do
		change  func(*migrationproxy.Options)
	}{
		"the last is ready first":         {streams: "abc", shake: "cba"},
		"one that fails holds up nobody":  {streams: "abc", shake: "cb", others: fail},
		"one that fails lets nobody past": {streams: "abcd", shake: "dca", others: fail},
		"several that fail":               {streams: "abcdef", shake: "fc", others: fail},
		"one that hangs up":               {streams: "abc", shake: "cb", others: func(c net.Conn) { c.Close() }},
		"one that is silent has its deadline": {
			streams: "abcd", shake: "ca", others: func(net.Conn) {},
			change: func(o *migrationproxy.Options) { o.HandshakeTimeout = 2 * time.Second },
		},
	} {
		t.Run(name, func(t *testing.T) {
			ca := newAuthority(t)
			target := newNode(t, "node-b", ca, func(o *migrationproxy.Options) {
				if tc.change != nil {
					tc.change(o)
				}
			})
			r := call(t, target, len(tc.shake))
			at, err := target.proxy.Listen(t.Context(), tunnel("node-a"))
			if err != nil {
				t.Fatal(err)
			}
			config := stockConfig(t, ca, "node-a")
			open := map[rune]net.Conn{}
			for _, stream := range tc.streams {
				open[stream] = dialTCP(t, at, transport.ChannelMemory)
			}
			refused := uint64(0)
			for _, stream := range tc.streams {
				if !strings.ContainsRune(tc.shake, stream) {
					tc.others(open[stream])
					refused++
				}
			}
			for _, stream := range tc.shake {
				if _, err := tls.Client(open[stream], config).Write([]byte(string(stream))); err != nil {
					t.Fatal(err)
				}
			}
			order := []rune(tc.shake)
			slices.Sort(order)
			r.want(string(order))
			eventually(t, "the others were refused", func() bool { return target.total().Refused == refused })
		})
	}
}

// TestOrder_SourceConnectsSequentially checks at the target that no connection begins while a
// handshake is not complete.
func TestOrder_SourceConnectsSequentially(t *testing.T) {
	ca := newAuthority(t)
	source := newNode(t, "node-a", ca)
	config := stockConfig(t, ca, "node-b")
	var shaking, overtook atomic.Int64
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		shaking.Add(-1)
		return nil, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	const streams = 40
	done := make(chan struct{}, streams)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if shaking.Add(1) > 1 {
				overtook.Add(1)
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(io.Discard, tls.Server(c, config))
				done <- struct{}{}
			}()
		}
	}()
	route, err := source.proxy.Dial(t.Context(), tunnel("node-b"), listeningAt(l))
	if err != nil {
		t.Fatal(err)
	}
	for range streams {
		_ = dial(t, route.MigrateURI).CloseWrite()
	}
	for range streams {
		<-done
	}
	if n := overtook.Load(); n > 0 {
		t.Errorf("%d connections were made before the handshake of the one before was complete", n)
	}
}

// TestTarget_FullBacklog has a hypervisor that accepts connections late, from a queue with room for
// fewer.
func TestTarget_FullBacklog(t *testing.T) {
	ca := newAuthority(t)
	source, target := newNode(t, "node-a", ca), newNode(t, "node-b", ca)
	path := target.socket(transport.ChannelMemory)
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	uri := connect(t, source, target).MigrateURI
	for range 3 {
		dial(t, uri)
	}
	eventually(t, "the source has sent all on", func() bool { return source.total().Streams == 3 })
	for range 3 {
		c, _, err := syscall.Accept(fd)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(c)
	}
	eventually(t, "all streams flow", func() bool { return target.total().Streams == 3 })
}
