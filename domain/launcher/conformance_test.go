// SPDX-License-Identifier: Apache-2.0

package launcher_test

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/domaintest"
	"github.com/virtloom/virtloom/domain/launcher"
	"github.com/virtloom/virtloom/domain/memory"
)

// guest is the VMI of the launchers of these tests.
var guest = launcher.Guest{Namespace: "ns", Name: "guest", UID: "8a8f0d3e-52a6-4a51-9b3c-1d5f5b4d1a11"}

// pod is a launcher that can be killed and started again.
type pod struct {
	testing.TB
	dir    string
	server func() *launcher.Server

	mu      sync.Mutex
	stop    func()
	cutOnly func() // breaks the connections of a running launcher
}

// newPod starts a launcher in front of a hypervisor.
func newPod(t testing.TB, h domain.Hypervisor) *pod {
	t.Helper()
	return newPodOf(t, t.TempDir(), func() *launcher.Server { return &launcher.Server{Hypervisor: h, Guest: guest, Version: "test"} })
}

func newPodOf(t testing.TB, dir string, server func() *launcher.Server) *pod {
	t.Helper()
	p := &pod{TB: t, dir: dir, server: server}
	p.start()
	t.Cleanup(p.kill)
	return p
}

func (p *pod) socket() string { return filepath.Join(p.dir, launcher.ReadySocket) }

func (p *pod) start() {
	p.Helper()
	l, err := launcher.Listen(p.Context(), p.dir)
	if err != nil {
		p.Fatal(err)
	}
	if err := l.Ready(); err != nil {
		p.Fatal(err)
	}
	cut := &cutListener{Listener: l}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s := p.server()
	go func() {
		defer close(done)
		if err := s.Serve(ctx, cut); err != nil {
			p.Errorf("serve: %v", err)
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutOnly = cut.cut
	p.stop = func() {
		cut.cut()
		cancel()
		<-done
	}
}

// kill ends the launcher as a signal does: its connections break.
func (p *pod) kill() {
	p.mu.Lock()
	stop := p.stop
	p.stop = func() {}
	p.mu.Unlock()
	stop()
}

// cutListener can break all its connections.
type cutListener struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *cutListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, c)
		l.mu.Unlock()
	}
	return c, err
}

func (l *cutListener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
}

func dial(t testing.TB, p *pod) *launcher.Client {
	t.Helper()
	c, err := launcher.Dial(t.Context(), p.socket(), launcher.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// driver is a client in front of memory.
func driver(t testing.TB) (domaintest.Driver, *memory.Hypervisor, *pod) {
	d, here := domaintest.Memory()
	p := newPod(t, here)
	d.Hypervisor = dial(t, p)
	return d, here, p
}

func TestConformance_Client(t *testing.T) {
	domaintest.Conformance(t, func(t testing.TB) domaintest.Driver {
		d, _, _ := driver(t)
		return d
	})
}

// TestConformance_LaunchersDie is the same where the launcher is lost, and not the hypervisor
// behind it.
func TestConformance_LaunchersDie(t *testing.T) {
	domaintest.Conformance(t, func(t testing.TB) domaintest.Driver {
		d, _, p := driver(t)
		d.Disconnect = func(testing.TB) { p.kill() }
		d.Reconnect = func(testing.TB) { p.start() }
		return d
	})
}

func alias(name string) *libvirtxml.DomainAlias {
	return &libvirtxml.DomainAlias{Name: domain.AliasPrefix + name}
}
