// SPDX-License-Identifier: Apache-2.0

package migrationproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/transport"
)

// tunnel is one end of a migration: its listeners and their streams.
type tunnel struct {
	transport.Tunnel
	proxy *Proxy
	log   logr.Logger

	ctx    context.Context // ends with the tunnel
	cancel context.CancelFunc
	all    sync.WaitGroup // of the goroutines
	slots  chan struct{}  // one for each stream that may be open
	greet  chan struct{}  // one for each stream that may be incomplete

	sent, received, refused, broken atomic.Uint64
	streams                         atomic.Int64
	trouble                         atomic.Pointer[string]
}

// maxGreetings limits the connections that wait for their handshake or their other half.
const maxGreetings = 64

// checkTunnel refuses a tunnel without a key and a domain, or whose key is not a file name.
func checkTunnel(d transport.Tunnel) error {
	if d.Key == "" || d.Domain == "" || strings.ContainsAny(string(d.Key), "/\x00") {
		return fmt.Errorf("key %q and domain %q do not name a migration: %w", d.Key, d.Domain, domain.ErrInvalid)
	}
	return nil
}

func (p *Proxy) tunnel(ctx context.Context, d transport.Tunnel, role string) *tunnel {
	e := &tunnel{
		Tunnel: d, proxy: p,
		log:   p.o.Log.WithValues("role", role, "domain", d.Domain, "migration", string(d.Migration), "peer", d.Peer),
		slots: make(chan struct{}, p.o.MaxStreams), greet: make(chan struct{}, maxGreetings),
	}
	e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return e
}

func (e *tunnel) stats(target bool) Stats {
	s := Stats{
		Key: e.Key, Domain: e.Domain, Peer: e.Peer, Target: target,
		Sent: e.sent.Load(), Received: e.received.Load(), Streams: int(e.streams.Load()), Refused: e.refused.Load(), Broken: e.broken.Load(),
	}
	if t := e.trouble.Load(); t != nil {
		s.Trouble = *t
	}
	return s
}

// completer makes the other half of a channel's connection, which remains its caller's to close if
// there is none.
type completer func(c net.Conn, channel int, its turn) (pair, error)

// serve accepts connections of a channel until the tunnel ends. Each gets its other half from
// complete. Streams of memory reach the other hypervisor in the order of arrival.
func (e *tunnel) serve(l net.Listener, channel int, complete completer) {
	stop := context.AfterFunc(e.ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	var order *line
	if channel == transport.ChannelMemory {
		order = &line{}
	}
	for {
		select {
		case e.greet <- struct{}{}:
		case <-e.ctx.Done():
			return
		}
		c, err := l.Accept()
		if err != nil {
			<-e.greet
			if !e.again(err, channel) {
				return
			}
			continue
		}
		its := order.join()
		e.all.Go(func() {
			halves, err := e.pair(c, func() (pair, error) { return complete(c, channel, its) })
			order.leave(its)
			e.carry(c, channel, halves, err)
		})
	}
}

// acceptAgain is the pause of a listener that cannot accept: most often there are too many open
// files.
const acceptAgain = 50 * time.Millisecond

func (e *tunnel) again(err error, channel int) bool {
	if e.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return false
	}
	e.log.Error(err, "Failed to accept connections of a migration", "channel", channel)
	select {
	case <-time.After(acceptAgain):
		return true
	case <-e.ctx.Done():
		return false
	}
}

// carry serves one connection from its other half, or its error, to its end. It releases one of the
// greet slots.
func (e *tunnel) carry(c net.Conn, channel int, halves pair, err error) {
	<-e.greet
	if err != nil {
		defer c.Close() // after the stream is counted
		if e.ctx.Err() == nil {
			e.refused.Add(1)
			e.note(err)
			e.log.Error(err, "Refused a stream of a migration", "channel", channel, "from", address(c))
		}
		return
	}
	defer func() { <-e.slots }()
	e.streams.Add(1)
	defer e.streams.Add(-1)
	if err := e.relay(halves); err != nil && e.ctx.Err() == nil {
		e.broken.Add(1)
		e.note(err)
		e.log.Info("Stream of a migration broke", "error", err.Error(), "channel", channel, "from", address(c))
	}
}

// pair makes the connection's other half, if there is a slot for it; else it is the caller's to
// close.
func (e *tunnel) pair(c net.Conn, complete func() (pair, error)) (pair, error) {
	select {
	case e.slots <- struct{}{}:
	default:
		return pair{}, fmt.Errorf("limit of %d streams reached (Options.MaxStreams)", cap(e.slots))
	}
	stop := context.AfterFunc(e.ctx, func() { c.Close() })
	defer stop()
	halves, err := complete()
	if err != nil {
		<-e.slots
	}
	return halves, err
}

func (e *tunnel) note(err error) {
	trouble := err.Error()
	e.trouble.Store(&trouble)
}

// address is the peer's address for logs, which a unix socket lacks.
func address(c net.Conn) string {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.String()
	}
	return ""
}

func (e *tunnel) close() {
	e.cancel()
	e.all.Wait()
}

// half is one connection of a stream.
type half interface {
	io.ReadWriteCloser
	// CloseWrite signals the end of the stream to the other end.
	CloseWrite() error
}

// pair is a stream's two connections: to the hypervisor here, and to the other node.
type pair struct{ local, remote half }
