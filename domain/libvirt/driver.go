// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"sync"
	"time"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
)

// Driver is a connection to one libvirt daemon. It reconnects by itself and is safe for concurrent
// use.
type Driver struct {
	*connection
	migrator
	guestAgent
	snapshotter
	consoleOpener
	node
}

// connection is what the parts of a driver share: the session, and which calls are under way.
type connection struct {
	uri   string
	opts  Options
	hints domain.Hints
	turns turns
	// starts serializes starting and ending a domain.
	starts turns
	ends   ends
	asked  unplugs
	names  names
	// consoles are closed with the driver.
	consoles consoles
	slots    chan struct{} // one token per operation under way
	// agents serializes exchanges with guest agents, apart from operations: an unresponsive agent
	// delays only its own calls.
	agents turns
	// migrations are the calls of Migrate under way.
	migrations migrations

	mu      sync.Mutex
	current *session // nil while disconnected
	why     string   // why it is disconnected
	idle    []*virt.Connect
	host    *domain.Host // constant facts; nil until read
	closed  bool

	done    chan struct{}  // closed by Close
	running sync.WaitGroup // the goroutine that reconnects
}

var (
	_ domain.Hypervisor         = (*Driver)(nil)
	_ domain.Migrator           = (*Driver)(nil)
	_ domain.PostCopier         = (*Driver)(nil)
	_ domain.MigrationTuner     = (*Driver)(nil)
	_ domain.SocketMigrator     = (*Driver)(nil)
	_ domain.GuestAgent         = (*Driver)(nil)
	_ domain.StatsReader        = (*Driver)(nil)
	_ domain.Snapshotter        = (*Driver)(nil)
	_ domain.ConsoleOpener      = (*Driver)(nil)
	_ domain.MemoryHotplugger   = (*Driver)(nil)
	_ domain.CapabilitiesReader = (*Driver)(nil)
)

// Open connects to the daemon at uri: qemu:///system, qemu+tcp://host/system,
// qemu+unix:///system?socket=/path, test:///default. The context bounds the first connection only.
func Open(ctx context.Context, uri string, o Options) (*Driver, error) {
	if err := startLoop(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	c := &connection{uri: uri, opts: o, slots: make(chan struct{}, o.Operations), done: make(chan struct{})}
	s, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	c.current = s
	c.running.Go(func() { c.keep(context.WithoutCancel(ctx), s) })
	return &Driver{
		connection: c, migrator: migrator{c}, guestAgent: guestAgent{c}, snapshotter: snapshotter{c}, consoleOpener: consoleOpener{c}, node: node{c},
	}, nil
}

// connect opens a session. One opened after the context has ended is closed again.
func (d *connection) connect(ctx context.Context) (*session, error) {
	return awaitOr(ctx, "open "+d.uri, "", d.newSession, (*session).close)
}

// Close ends all watches, consoles and connections. Calls under way keep theirs until
// they return; later ones fail with [domain.ErrDisconnected].
func (d *Driver) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	idle := d.idle
	d.idle = nil
	d.mu.Unlock()
	close(d.done)
	d.running.Wait()
	for _, c := range idle {
		_, _ = c.Close()
	}
	d.asked.close()
	d.consoles.close()
	d.hints.Close()
	return nil
}

// Watch implements domain.Hypervisor.
func (d *Driver) Watch(ctx context.Context) (<-chan domain.Event, error) {
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return nil, disconnected("watch", "", "the driver is closed")
	}
	return d.hints.Watch(ctx), nil
}

// keep holds a session: when it is lost keep notifies the watchers and opens the next, until the
// driver is closed.
func (d *connection) keep(ctx context.Context, s *session) {
	for {
		select {
		case <-d.done:
			d.drop(s, "the driver is closed")
			s.close()
			return
		case <-s.lost:
		}
		d.drop(s, s.why)
		d.opts.Log.Info("Lost the connection to libvirt", "uri", d.uri, "why", s.why)
		d.hints.Tell(domain.Event{Kind: domain.Lost, Err: disconnected("watch", "", s.why)})
		s.close()
		if s = d.reopen(ctx); s == nil {
			return
		}
		d.names.forgetAll()
		d.mu.Lock()
		d.current, d.host = s, nil
		d.mu.Unlock()
		d.opts.Log.Info("Restored the connection to libvirt", "uri", d.uri)
		d.hints.Tell(domain.Event{Kind: domain.Resync})
	}
}

// drop makes calls fail instead of using a lost session.
func (d *connection) drop(s *session, why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current == s {
		d.current, d.why = nil, why
	}
	for _, c := range d.idle {
		_, _ = c.Close()
	}
	d.idle = nil
}

// reopen reconnects until it succeeds or the driver is closed, without waiting for a daemon that
// accepts connections and is unresponsive.
func (d *connection) reopen(ctx context.Context) *session {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.running.Go(func() {
		select {
		case <-d.done:
			cancel()
		case <-ctx.Done():
		}
	})
	pause := d.opts.ReconnectMin
	for {
		s, err := d.connect(ctx)
		if err == nil {
			return s
		}
		d.opts.Log.V(4).Info("Reconnecting to libvirt failed, retrying", "uri", d.uri, "error", err.Error())
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-d.done:
			t.Stop()
			return nil
		}
		pause = min(2*pause, d.opts.ReconnectMax)
	}
}

// turns serializes operations on each domain.
type turns struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when the holder is done
}

// busy reports whether the turn is taken.
func (t *turns) busy(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held[name] != nil
}

// take waits for the domain's turn; the result releases it.
func (t *turns) take(ctx context.Context, name string) (func(), error) {
	for {
		t.mu.Lock()
		if t.held == nil {
			t.held = map[string]chan struct{}{}
		}
		busy, ok := t.held[name]
		if !ok {
			mine := make(chan struct{})
			t.held[name] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				delete(t.held, name)
				t.mu.Unlock()
				close(mine)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
