// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/libvirt"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/internal/rig"
)

// socketDir is a folder that is private to each node.
const socketDir = "/run/libvirt/m"

// open connects to a node so that the files of its daemon are found.
func (ns *nodes) open(t testing.TB, n *rig.HypervisorNode) *libvirt.Driver {
	t.Helper()
	return open(t, n.URI(), libvirt.Options{Root: fmt.Sprintf("/proc/%d/root", n.Pid()), MigrationDir: socketDir})
}

// relay carries migrations between the private folders of two nodes, as a proxy would
// between two machines.
type relay struct {
	testing.TB
	key      types.UID
	from, to domain.Sockets

	mu        sync.Mutex
	broken    bool
	conns     map[net.Conn]bool
	listeners []net.Listener
	all       sync.WaitGroup
}

func newRelay(t testing.TB, from, to *libvirt.Driver, key types.UID) *relay {
	t.Helper()
	r := &relay{TB: t, key: key, conns: map[net.Conn]bool{}}
	var err error
	if r.from, err = from.MigrationSockets(t.Context(), "guest"); err != nil {
		t.Fatal(err)
	}
	if r.to, err = to.MigrationSockets(t.Context(), "guest"); err != nil {
		t.Fatal(err)
	}
	for _, channel := range []int{transport.ChannelControl, transport.ChannelMemory, transport.ChannelDisks} {
		target := r.to.Control
		if channel != transport.ChannelControl {
			target = filepath.Join(r.to.Outside, transport.SocketName(key, channel))
		}
		path := filepath.Join(r.from.Outside, transport.SocketName(key, channel))
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		r.listeners = append(r.listeners, l)
		r.all.Go(func() { r.serve(l, target) })
	}
	t.Cleanup(func() {
		for _, l := range r.listeners {
			l.Close()
		}
		r.cut()
		r.all.Wait()
	})
	return r
}

// route is the route of the source's daemon to the other.
func (r *relay) route() transport.Route {
	at := func(channel int) string { return filepath.Join(r.from.Inside, transport.SocketName(r.key, channel)) }
	return transport.Route{
		DestinationURI: "qemu+unix:///system?socket=" + at(transport.ChannelControl),
		MigrateURI:     "unix://" + at(transport.ChannelMemory), DisksURI: "unix://" + at(transport.ChannelDisks),
	}
}

// request returns a request for a migration over the relay.
func (r *relay) request(name string) domain.MigrationRequest {
	way := r.route()
	return domain.MigrationRequest{Domain: name, DestinationURI: way.DestinationURI, MigrateURI: way.MigrateURI, DisksURI: way.DisksURI}
}

func (r *relay) serve(l net.Listener, target string) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("unix", target)
		if err != nil {
			in.Close()
			continue
		}
		if !r.note(in, out) {
			continue
		}
		r.all.Go(func() { pass(out, in) })
		r.all.Go(func() { pass(in, out) })
	}
}

// note records the two ends of a connection, unless the relay is cut.
func (r *relay) note(ends ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range ends {
		if r.broken {
			c.Close()
			continue
		}
		r.conns[c] = true
	}
	return !r.broken
}

// pass copies one direction and its end.
func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if u, ok := to.(*net.UnixConn); ok {
		_ = u.CloseWrite()
	}
}

// cut breaks all connections, and those that are made until mend.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = true
	for c := range r.conns {
		c.Close()
	}
	clear(r.conns)
}

func (r *relay) mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = false
}
