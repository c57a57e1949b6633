// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"sync"

	virt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// consoleChunk is the largest read from a console in bytes.
const consoleChunk = 4096

// consoleOpener implements domain.ConsoleOpener.
type consoleOpener struct{ *connection }

// OpenConsole implements domain.ConsoleOpener. It connects to a console on a socket, as
// convert.Convert makes them, directly, see [Options.Root]; to one on a terminal through the
// daemon.
func (d *consoleOpener) OpenConsole(ctx context.Context, name, alias string) (io.ReadWriteCloser, error) {
	const op = "open console"
	serial, err := read(ctx, d.connection, op, name, func(c *virt.Connect) (s *libvirtxml.DomainSerial, err error) {
		err = withDomain(c, name, func(dom *virt.Domain) error {
			s, err = findSerial(dom, alias)
			return err
		})
		return s, err
	})
	if err != nil {
		return nil, err
	}
	key := deviceKey{name, aliasOf(serial.Alias)}
	d.consoles.cut(key) // a socket serves one client at a time
	var inner io.ReadWriteCloser
	if s := serial.Source; s != nil && s.UNIX != nil && s.UNIX.Path != "" {
		inner, err = d.dialConsole(ctx, name, s.UNIX.Path)
	} else {
		inner, err = awaitOr(ctx, op, name, func() (io.ReadWriteCloser, error) { return d.streamConsole(op, key) },
			func(late io.ReadWriteCloser) { _ = late.Close() })
	}
	if err != nil {
		return nil, err
	}
	return d.consoles.add(ctx, key, inner), nil
}

// findSerial returns the serial console with that alias, or the first.
func findSerial(dom *virt.Domain, alias string) (*libvirtxml.DomainSerial, error) {
	active, err := dom.IsActive()
	if err != nil {
		return nil, err
	}
	d, err := parsed(dom, 0)
	if err != nil {
		return nil, err
	}
	if !active {
		return nil, invalidState("the domain is not running")
	}
	if d.Devices != nil {
		for i := range d.Devices.Serials {
			if s := &d.Devices.Serials[i]; alias == "" || aliasOf(s.Alias) == alias {
				return s, nil
			}
		}
	}
	return nil, virt.Error{Code: virt.ERR_DEVICE_MISSING, Message: "no serial console " + alias}
}

func aliasOf(a *libvirtxml.DomainAlias) string {
	if a == nil {
		return ""
	}
	return a.Name
}

// dialConsole connects to QEMU's socket.
func (d *consoleOpener) dialConsole(ctx context.Context, name, path string) (io.ReadWriteCloser, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", filepath.Join(d.opts.Root, path))
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, ended(ctx, "open console", name)
	case err != nil:
		return nil, &Error{Op: "open console", Domain: name, Message: err.Error()}
	}
	return conn, nil
}

// streamConsole opens a stream on a connection of its own.
func (d *consoleOpener) streamConsole(op string, key deviceKey) (io.ReadWriteCloser, error) {
	c, err := d.ownConnection(op, key.domain)
	if err != nil {
		return nil, err
	}
	s := &stream{conn: c}
	err = withDomain(c, key.domain, func(dom *virt.Domain) error {
		if s.stream, err = c.NewStream(0); err != nil {
			return err
		}
		if err = dom.OpenConsole(key.alias, s.stream, virt.DOMAIN_CONSOLE_FORCE); err != nil {
			_ = s.stream.Free()
		}
		return err
	})
	if err != nil {
		err = d.judge(c, op, key.domain, err)
		_, _ = c.Close()
		return nil, err
	}
	return s, nil
}

// stream is a console through the daemon. A stream must not be freed during a call on it.
type stream struct {
	conn   *virt.Connect
	stream *virt.Stream

	mu     sync.Mutex
	calls  sync.WaitGroup
	closed bool
}

// begin announces a call; the stream is not freed until calls.Done.
func (s *stream) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.calls.Add(1)
	}
	return !s.closed
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if !s.begin() {
		return 0, io.EOF
	}
	defer s.calls.Done()
	n, err := s.stream.Recv(p[:min(len(p), consoleChunk)])
	if err != nil && s.isClosed() {
		err = io.EOF
	}
	return max(n, 0), err
}

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) {
	if !s.begin() {
		return 0, io.ErrClosedPipe
	}
	defer s.calls.Done()
	sent := 0
	for sent < len(p) {
		n, err := s.stream.Send(p[sent:])
		if err != nil {
			return sent, err
		}
		sent += max(n, 0)
	}
	return sent, nil
}

func (s *stream) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Close implements io.Closer. It ends the calls under way first.
func (s *stream) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	err := s.stream.Abort()
	s.calls.Wait()
	_ = s.stream.Free()
	_, _ = s.conn.Close()
	return translate("close console", "", err)
}

// consoles are the open consoles.
type consoles struct {
	mu     sync.Mutex
	open   map[deviceKey]*console
	closed bool
}

// console is a console that can be closed by others.
type console struct {
	io.ReadWriteCloser
	once  sync.Once
	leave func() // removes it, and the context's callback
	err   error
}

// add records a console that ends with ctx.
func (s *consoles) add(ctx context.Context, key deviceKey, inner io.ReadWriteCloser) *console {
	c := &console{ReadWriteCloser: inner}
	var stop func() bool
	c.leave = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		stop()
		if s.open[key] == c {
			delete(s.open, key)
		}
	}
	s.mu.Lock()
	// The end of the context waits for the lock before it removes the console.
	stop = context.AfterFunc(ctx, func() { _ = c.Close() })
	if s.open == nil {
		s.open = map[deviceKey]*console{}
	}
	before, closed := s.open[key], s.closed // opened concurrently
	s.open[key] = c
	s.mu.Unlock()
	if before != nil {
		_ = before.Close()
	}
	if closed {
		_ = c.Close()
	}
	return c
}

// cut closes the console of that key, if one is open.
func (s *consoles) cut(key deviceKey) {
	s.mu.Lock()
	c := s.open[key]
	s.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
}

// close closes all consoles, and those that are opened later.
func (s *consoles) close() {
	s.mu.Lock()
	s.closed = true
	var all []*console
	for _, c := range s.open {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

// Close implements io.Closer; it may be called more than once.
func (c *console) Close() error {
	c.once.Do(func() {
		c.leave()
		c.err = c.ReadWriteCloser.Close()
	})
	return c.err
}
