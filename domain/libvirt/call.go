// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"errors"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
)

// result is the outcome of a call in its own goroutine.
type result[T any] struct {
	value T
	err   error
}

// await runs f in a goroutine of its own and returns when it does or the context ends. A call of
// libvirt cannot be interrupted; one that is abandoned keeps its connection until it returns.
func await[T any](ctx context.Context, op, name string, f func() (T, error)) (T, error) {
	return awaitOr(ctx, op, name, f, func(T) {})
}

// awaitOr is await for a value that has to be released: one returned after the context has ended
// goes to late.
func awaitOr[T any](ctx context.Context, op, name string, f func() (T, error), late func(T)) (T, error) {
	ch := make(chan result[T], 1)
	go func() {
		v, err := f()
		ch <- result[T]{v, err}
	}()
	select {
	case r := <-ch:
		return r.value, r.err
	case <-ctx.Done():
		go func() {
			if r := <-ch; r.err == nil {
				late(r.value)
			}
		}()
		var none T
		return none, ended(ctx, op, name)
	}
}

// read runs f on the connection for queries.
func read[T any](ctx context.Context, d *connection, op, name string, f func(*virt.Connect) (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, ended(ctx, op, name)
	}
	d.mu.Lock()
	s, why := d.current, d.why
	if s == nil {
		d.mu.Unlock()
		return none, disconnected(op, name, why)
	}
	err := s.conn.Ref()
	d.mu.Unlock()
	if err != nil {
		return none, translate(op, name, err)
	}
	return await(ctx, op, name, func() (T, error) {
		defer func() { _, _ = s.conn.Close() }()
		v, err := f(s.conn)
		return v, d.judge(s.conn, op, name, err)
	})
}

// operate runs f on a connection of its own, after all other operations on that domain but its end.
func operate(ctx context.Context, d *connection, op, name string, f func(*virt.Connect) error) error {
	if ctx.Err() != nil {
		return ended(ctx, op, name)
	}
	release, err := d.turns.take(ctx, name)
	if err != nil {
		return ended(ctx, op, name)
	}
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		release()
		return ended(ctx, op, name)
	}
	_, err = await(ctx, op, name, func() (struct{}, error) {
		defer release()
		defer func() { <-d.slots }()
		return struct{}{}, d.onOwnConnection(op, name, f)
	})
	return err
}

// runEndCall runs f, which ends a domain, on a connection of its own. It waits for one that is being
// started or ended, and for nothing else: a call that is blocked by an unresponsive domain ends
// with the domain, and does not release its turn or its slot before.
func runEndCall(ctx context.Context, d *connection, op, name string, f func(*virt.Connect) error) error {
	if ctx.Err() != nil {
		return ended(ctx, op, name)
	}
	release, err := d.starts.take(ctx, name)
	if err != nil {
		return ended(ctx, op, name)
	}
	_, err = await(ctx, op, name, func() (struct{}, error) {
		defer release()
		d.ends.note(name)
		return struct{}{}, d.onOwnConnection(op, name, f)
	})
	return err
}

// runStartCall runs f, which starts a domain: serialized with all operations on that domain, and with its
// end.
func runStartCall(ctx context.Context, d *connection, op, name string, f func(*virt.Connect) error) error {
	return operate(ctx, d, op, name, func(c *virt.Connect) error {
		release, err := d.starts.take(ctx, name)
		if err != nil {
			return ended(ctx, op, name)
		}
		defer release()
		// The caller has gone, and the domain may have been ended since.
		if ctx.Err() != nil {
			return ended(ctx, op, name)
		}
		return f(c)
	})
}

// onOwnConnection runs f on an idle connection or a new one. While the driver has no session none is opened:
// one goroutine alone reconnects.
func (d *connection) onOwnConnection(op, name string, f func(*virt.Connect) error) error {
	c, err := d.ownConnection(op, name)
	if err != nil {
		return err
	}
	err = d.judge(c, op, name, f(c))
	d.mu.Lock()
	keep := !d.closed && d.current != nil && len(d.idle) < cap(d.slots)/2+1 && !errors.Is(err, domain.ErrDisconnected)
	if keep {
		d.idle = append(d.idle, c)
	}
	d.mu.Unlock()
	if !keep {
		_, _ = c.Close()
	}
	return err
}

func (d *connection) ownConnection(op, name string) (*virt.Connect, error) {
	d.mu.Lock()
	if d.current == nil {
		defer d.mu.Unlock()
		return nil, disconnected(op, name, d.why)
	}
	if n := len(d.idle); n > 0 {
		c := d.idle[n-1]
		d.idle = d.idle[:n-1]
		d.mu.Unlock()
		return c, nil
	}
	d.mu.Unlock()
	c, err := d.dial()
	if err != nil {
		return nil, disconnected(op, name, err.Error())
	}
	return c, nil
}

// judge translates the error of a call; on a dead connection every error is ErrDisconnected.
func (d *connection) judge(c *virt.Connect, op, name string, err error) error {
	if err == nil {
		return nil
	}
	err = translate(op, name, err)
	if alive, aliveErr := c.IsAlive(); aliveErr == nil && alive {
		return err
	}
	return disconnected(op, name, err.Error())
}

// withDomain looks a domain up for f.
func withDomain(c *virt.Connect, name string, f func(*virt.Domain) error) error {
	dom, err := c.LookupDomainByName(name)
	if err != nil {
		return err
	}
	defer func() { _ = dom.Free() }()
	return f(dom)
}
