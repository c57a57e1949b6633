// SPDX-License-Identifier: Apache-2.0

package migrationproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/transport"
)

// ErrSharedHypervisor refuses a migration to this node.
var ErrSharedHypervisor = errors.New("the hypervisor of this node is shared by all its domains, and a peer that migrates to it would reach its control socket, " +
	"and be root on this node; run each VMI in its launcher (refdaemon node --launchers), " +
	"or, in tests and where all nodes trust each other fully, set Options.InsecureSharedHypervisor (--insecure-shared-hypervisor)")

// target is the end of a migration at its target.
type target struct {
	*tunnel
	sockets domain.Sockets
	control *folder // of the hypervisor's own socket
	folder  *folder // of the migration's sockets
	at      transport.Endpoint
}

// Listen opens a TCP port for each channel of the tunnel. Ports that are open for the same tunnel
// remain; those of another migration under the same key, to another peer, or to folders that have
// been replaced, are closed first. The sockets are looked up in the folders as they are now: these
// cannot be replaced later, nor can a descriptor in their paths come to mean another folder.
func (p *Proxy) Listen(ctx context.Context, d transport.Tunnel) (transport.Endpoint, error) {
	at, err := p.listen(ctx, d)
	if err != nil {
		return transport.Endpoint{}, fmt.Errorf("receive %s: %w", d.Domain, err)
	}
	return at, nil
}

func (p *Proxy) listen(ctx context.Context, d transport.Tunnel) (transport.Endpoint, error) {
	if err := checkTunnel(d); err != nil {
		return transport.Endpoint{}, err
	}
	sockets, err := p.o.Sockets(ctx, d.Domain)
	if err != nil {
		return transport.Endpoint{}, err
	}
	if !sockets.Own && !p.o.InsecureSharedHypervisor {
		return transport.Endpoint{}, ErrSharedHypervisor
	}
	p.opening.Lock()
	defer p.opening.Unlock()
	p.mu.Lock()
	old, ended := p.targets[d.Key], p.ended
	p.mu.Unlock()
	switch {
	case ended:
		return transport.Endpoint{}, ErrEnded
	case old.serves(d, sockets):
		return old.listening(), nil
	}
	put(p, p.targets, d.Key, nil)
	old.close()
	t, err := p.open(ctx, d, sockets)
	if err != nil {
		return transport.Endpoint{}, err
	}
	put(p, p.targets, d.Key, t)
	return t.listening(), nil
}

func (p *Proxy) open(ctx context.Context, d transport.Tunnel, s domain.Sockets) (*target, error) {
	t := &target{tunnel: p.tunnel(ctx, d, "target"), sockets: s, at: transport.Endpoint{Address: p.o.Address, Ports: map[string]int{}}}
	if err := t.enter(); err != nil {
		t.close()
		return nil, err
	}
	for _, channel := range d.Channels() {
		l, err := p.port(ctx)
		if err != nil {
			t.close()
			return nil, err
		}
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			l.Close()
			t.close()
			return nil, err
		}
		t.at.Ports[port] = channel
		t.all.Go(func() { t.serve(l, channel, t.complete) })
	}
	t.log.V(1).Info("Listening for a migration", "address", t.at.Address, "ports", t.at.Ports)
	return t, nil
}

func (t *target) serves(d transport.Tunnel, at domain.Sockets) bool {
	return t != nil && t.Tunnel == d && t.sockets == at && t.control.lasts() && t.folder.lasts()
}

// enter opens the folders of sockets.
func (t *target) enter() (err error) {
	if t.control, err = openFolder(filepath.Dir(t.sockets.Control)); err == nil {
		t.folder, err = openFolder(t.sockets.Outside)
	}
	return err
}

// port opens a listener, on any port of the range.
func (p *Proxy) port(ctx context.Context) (net.Listener, error) {
	r := p.o.Ports
	size := int(r.Last) - int(r.First) + 1
	start := rand.IntN(size)
	var l net.ListenConfig
	for i := range size {
		port := int(r.First) + (start+i)%size
		found, err := l.Listen(ctx, "tcp", net.JoinHostPort(p.o.Bind, strconv.Itoa(port)))
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return found, err
		}
	}
	return nil, fmt.Errorf("no free port between %d and %d (Options.Ports)", r.First, r.Last)
}

// listening returns a copy: callers publish it, and may keep it.
func (t *target) listening() transport.Endpoint {
	return transport.Endpoint{Address: t.at.Address, Ports: maps.Clone(t.at.Ports)}
}

// complete authenticates a connection, and connects it to the hypervisor at its turn.
func (t *target) complete(c net.Conn, channel int, its turn) (pair, error) {
	remote, err := t.proxy.secure(t.ctx, c, t.Peer, t.proxy.server())
	if err != nil {
		return pair{}, err
	}
	if err := its.await(t.ctx); err != nil {
		return pair{}, err
	}
	local, err := t.reach(channel)
	if err != nil {
		return pair{}, err
	}
	return pair{local: local, remote: remote}, nil
}

// socketEvery is the interval at which the target polls for a missing socket.
const socketEvery = 20 * time.Millisecond

// reach connects to the hypervisor's socket for a channel. Those of memory and disks appear when
// the hypervisor expects a guest, which may be a moment after the source was notified; one whose
// backlog is full (EAGAIN) accepts again when the hypervisor has taken a connection.
func (t *target) reach(channel int) (half, error) {
	over := time.NewTimer(t.proxy.o.SocketTimeout)
	defer over.Stop()
	tick := time.NewTicker(socketEvery)
	defer tick.Stop()
	for {
		c, err := t.connect(channel)
		if err == nil || !passes(err) {
			return c, err
		}
		select {
		case <-over.C:
			return nil, fmt.Errorf("timed out waiting %s for the hypervisor's socket: %w", t.proxy.o.SocketTimeout, err)
		case <-t.ctx.Done():
			return nil, t.ctx.Err()
		case <-tick.C:
		}
	}
}

// passes reports whether a socket that refuses connections may accept them soon.
func passes(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EAGAIN)
}

func (t *target) connect(channel int) (half, error) {
	if channel == transport.ChannelControl {
		return t.control.dial(t.ctx, filepath.Base(t.sockets.Control))
	}
	return t.folder.dial(t.ctx, transport.SocketName(t.Key, channel))
}

func (t *target) close() {
	if t == nil {
		return
	}
	t.tunnel.close()
	t.control.close()
	t.folder.close()
}
