// SPDX-License-Identifier: Apache-2.0

package migrationproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path"
	"strings"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/transport"
)

// source is the end of a migration at its source.
type source struct {
	*tunnel
	sockets domain.Sockets
	to      transport.Endpoint
	folder  *folder
	made    []*socket
	route   transport.Route
}

// Dial makes a unix socket for each channel of the tunnel, and replaces sockets left there. Those
// that are open for the same tunnel and target remain. A target that is unreachable shows when the
// hypervisor uses them.
func (p *Proxy) Dial(ctx context.Context, d transport.Tunnel, to transport.Endpoint) (transport.Route, error) {
	route, err := p.dial(ctx, d, to)
	if err != nil {
		return transport.Route{}, fmt.Errorf("migrate %s: %w", d.Domain, err)
	}
	return route, nil
}

func (p *Proxy) dial(ctx context.Context, d transport.Tunnel, to transport.Endpoint) (transport.Route, error) {
	if err := errors.Join(checkTunnel(d), to.Check(d.Channels()...)); err != nil {
		return transport.Route{}, err
	}
	sockets, err := p.o.Sockets(ctx, d.Domain)
	if err != nil {
		return transport.Route{}, err
	}
	p.opening.Lock()
	defer p.opening.Unlock()
	p.mu.Lock()
	old, ended := p.sources[d.Key], p.ended
	p.mu.Unlock()
	switch {
	case ended:
		return transport.Route{}, ErrEnded
	case old.serves(d, to, sockets):
		return old.route, nil
	}
	put(p, p.sources, d.Key, nil)
	old.close() // before its sockets' names are taken
	s := &source{tunnel: p.tunnel(ctx, d, "source"), sockets: sockets, to: transport.Endpoint{Address: to.Address, Ports: maps.Clone(to.Ports)}}
	if err := s.open(ctx); err != nil {
		s.close()
		return transport.Route{}, err
	}
	s.log.V(1).Info("Ready to send a migration", "address", to.Address, "ports", to.Ports)
	put(p, p.sources, d.Key, s)
	return s.route, nil
}

func (s *source) serves(d transport.Tunnel, to transport.Endpoint, at domain.Sockets) bool {
	return s != nil && s.Tunnel == d && s.sockets == at && s.folder.lasts() && s.to.Address == to.Address && maps.Equal(s.to.Ports, to.Ports)
}

func (s *source) open(ctx context.Context) error {
	at := s.sockets
	f, err := openFolder(at.Outside)
	if err != nil {
		return err
	}
	s.folder = f
	for _, channel := range s.Channels() {
		inside := path.Join(at.Inside, transport.SocketName(s.Key, channel))
		if len(inside) > maxSocketPath {
			return fmt.Errorf("path of the hypervisor's socket %s has %d characters, a unix socket allows %d: shorten its folder", inside, len(inside), maxSocketPath)
		}
		sock, err := f.listen(ctx, transport.SocketName(s.Key, channel))
		if err != nil {
			return err
		}
		s.made = append(s.made, sock)
		s.all.Go(func() { s.serve(sock.listener, channel, s.complete) })
		s.lead(channel, inside)
	}
	return nil
}

// escape gives a query the form that libvirt parses.
var escape = strings.NewReplacer("%2F", "/", "+", "%20")

// lead sets a channel's socket in the route.
func (s *source) lead(channel int, inside string) {
	switch channel {
	case transport.ChannelControl:
		// A daemon that runs as root is content with both paths, any other with this one only.
		s.route.DestinationURI = "qemu+unix:///session?socket=" + escape.Replace(url.QueryEscape(inside))
	case transport.ChannelMemory:
		s.route.MigrateURI = (&url.URL{Scheme: "unix", Path: inside}).String()
	case transport.ChannelDisks:
		s.route.DisksURI = (&url.URL{Scheme: "unix", Path: inside}).String()
	}
}

// complete connects to the target at its turn. Until then the hypervisor's data waits in its
// connection.
func (s *source) complete(c net.Conn, channel int, its turn) (pair, error) {
	local, err := unixHalf(c)
	if err != nil {
		return pair{}, err
	}
	if err := its.await(s.ctx); err != nil {
		return pair{}, err
	}
	remote, err := s.reach(channel)
	if err != nil {
		return pair{}, err
	}
	return pair{local: local, remote: remote}, nil
}

func (s *source) reach(channel int) (half, error) {
	port, found := s.to.Port(channel)
	if !found {
		return nil, fmt.Errorf("node %q names no port for channel %d", s.Peer, channel)
	}
	d := net.Dialer{Timeout: s.proxy.o.DialTimeout}
	c, err := d.DialContext(s.ctx, "tcp", net.JoinHostPort(s.to.Address, port))
	if err != nil {
		return nil, fmt.Errorf("node %q: %w", s.Peer, err)
	}
	remote, err := s.proxy.secure(s.ctx, c, s.Peer, s.proxy.client())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("node %q at %s: %w", s.Peer, c.RemoteAddr(), err), ignoreClosed(c.Close()))
	}
	return remote, nil
}

func (s *source) close() {
	if s == nil {
		return
	}
	s.tunnel.close()
	for _, sock := range s.made {
		if err := sock.remove(); err != nil {
			s.log.Error(err, "Failed to remove a socket of a migration")
		}
	}
	s.folder.close()
}
