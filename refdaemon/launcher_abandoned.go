// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/virtloom/virtloom/domain"
)

// counted counts the connections of a listener: those of agents.
type counted struct {
	net.Listener
	changed chan struct{} // holds a value after a change

	mu   sync.Mutex
	open int
}

// Accept implements net.Listener.
func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.add(1)
	return &countedConn{Conn: conn, of: c}, nil
}

func (c *counted) add(n int) {
	c.mu.Lock()
	c.open += n
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// none reports whether there is no connection.
func (c *counted) none() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open == 0
}

// countedConn is a connection that is counted until it is closed.
type countedConn struct {
	net.Conn
	of   *counted
	once sync.Once
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.once.Do(func() { c.of.add(-1) })
	return c.Conn.Close()
}

// abandoned returns nil as soon as there is a domain, or ctx ends, and an error when there was neither a domain nor an agent
// for --qemu-timeout. KubeVirt's launcher counts from its start; here an agent that is connected may take longer, to
// prepare disks or a migration, and one that is gone may come back.
func (o *launcherOptions) abandoned(ctx context.Context, hv domain.Hypervisor, calls *counted) error {
	events, err := hv.Watch(ctx)
	if err != nil {
		return unlessOver(ctx, err)
	}
	left := time.NewTimer(o.qemuTimeout)
	defer left.Stop()
	for {
		// Libvirt may be away for a moment.
		if _, err := hv.Get(ctx, o.guest.Domain()); err == nil || ctx.Err() != nil {
			return nil
		}
		select {
		case _, more := <-events:
			if !more {
				return unlessOver(ctx, fmt.Errorf("wait for the domain: %w", domain.ErrDisconnected))
			}
		case <-calls.changed:
			left.Reset(o.qemuTimeout)
		case <-left.C:
			if calls.none() {
				return fmt.Errorf("there was no domain and no agent for %v (--qemu-timeout)", o.qemuTimeout)
			}
			left.Reset(o.qemuTimeout)
		case <-ctx.Done():
		}
	}
}

// unlessOver returns the error, or nil if ctx has ended, which is its cause.
func unlessOver(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the launcher was stopped
	}
	return err
}
