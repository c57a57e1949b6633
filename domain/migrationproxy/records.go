// SPDX-License-Identifier: Apache-2.0

package migrationproxy

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// secure is a TLS connection that reads and writes many records with one system call: crypto/tls by
// itself needs one for each 16 KiB.
type secure struct {
	*tls.Conn
	wire *records
}

// handshake ends within its timeout, or with the context.
func (p *Proxy) handshake(ctx context.Context, c *net.TCPConn, over func(net.Conn) *tls.Conn) (half, error) {
	ctx, cancel := context.WithTimeout(ctx, p.o.HandshakeTimeout)
	defer cancel()
	w := &records{TCPConn: c}
	t := over(w)
	if err := t.HandshakeContext(ctx); err != nil {
		w.release()
		return nil, err
	}
	w.hold()
	return &secure{Conn: t, wire: w}, nil
}

// Write sends p at once.
func (s *secure) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	return n, errors.Join(err, s.wire.flush())
}

// Read returns as many records as have arrived and fit, but waits for the first only.
func (s *secure) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	for err == nil && n < len(p) && s.wire.arrived() {
		var more int
		more, err = s.Conn.Read(p[n:])
		n += more
	}
	if err != nil {
		s.wire.release()
	}
	return n, err
}

// CloseWrite signals the end of the stream, in TLS and in TCP.
func (s *secure) CloseWrite() error {
	return errors.Join(s.Conn.CloseWrite(), s.wire.flush(), s.wire.TCPConn.CloseWrite())
}

// Close ends the connection without an alert: CloseWrite has signalled the end, and a peer that has
// not received it knows that the stream was truncated.
func (s *secure) Close() error { return s.wire.TCPConn.Close() }

// errCut replaces the end that crypto/tls would report for a cut between two records.
var errCut = errors.New("the stream was truncated: the other node, or a device in between, closed the connection")

// records is the TCP connection below TLS. Reads never go beyond the end of a record, so that
// arrived reports complete records.
type records struct {
	*net.TCPConn

	mu      sync.Mutex // guards writes: the reader too sends alerts
	holding bool
	held    []byte

	in       *buffer // nil until something is read
	from, to int     // of its content
	last     int     // bytes of the last read
	left     int     // remaining bytes of the current record
}

// headerSize is that of a TLS record's header, which ends with the length of the payload.
const headerSize = 5

// SetWriteDeadline does nothing. crypto/tls limits sending close_notify to five seconds, but a slow
// peer, or an interrupted link, is no reason to break a complete stream; TCP decides when a peer is
// dead.
func (r *records) SetWriteDeadline(time.Time) error { return nil }

// hold buffers writes from now on until flush, or until it is enough.
func (r *records) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holding = true
}

// heldEnough is sent without waiting for flush: more at once saves nothing, fits less well into a
// CPU's cache, and delays the peer's decryption.
const heldEnough = 64 << 10

// Write sends p, or holds it back.
func (r *records) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.holding {
		return r.TCPConn.Write(p)
	}
	r.held = append(r.held, p...)
	if len(r.held) >= heldEnough {
		return len(p), r.lockedFlush()
	}
	return len(p), nil
}

// flush sends the buffered writes.
func (r *records) flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lockedFlush()
}

func (r *records) lockedFlush() error {
	if len(r.held) == 0 {
		return nil
	}
	_, err := r.TCPConn.Write(r.held)
	r.held = r.held[:0]
	return err
}

// Read returns bytes of one record.
func (r *records) Read(p []byte) (int, error) {
	if r.left == 0 {
		if err := r.fill(headerSize); err != nil {
			return 0, err
		}
		r.left = r.next()
	}
	if err := r.fill(1); err != nil {
		return 0, err
	}
	n := copy(p[:min(len(p), r.left)], r.in.bytes()[r.from:r.to])
	r.from += n
	r.left -= n
	return n, nil
}

// next is the size of the record whose header comes next in the buffer.
func (r *records) next() int {
	return headerSize + int(binary.BigEndian.Uint16(r.in.bytes()[r.from+3:]))
}

// arrived reports whether a whole record can be read without waiting.
func (r *records) arrived() bool {
	return r.left == 0 && r.to-r.from >= headerSize && r.to-r.from >= r.next()
}

// fill reads at least so many bytes into the buffer.
func (r *records) fill(least int) error {
	if r.in == nil {
		b := newBuffer()
		r.in = &b
	}
	for r.to-r.from < least {
		if r.from == r.to {
			r.in.fit(r.last)
		}
		b := r.in.bytes()
		copy(b, b[r.from:r.to])
		r.from, r.to = 0, r.to-r.from
		n, err := r.TCPConn.Read(b[r.to:])
		r.to += n
		r.last = n
		if err != nil {
			if errors.Is(err, io.EOF) {
				return errCut
			}
			return err
		}
	}
	return nil
}

func (r *records) release() {
	if r.in != nil {
		r.in.release()
		r.in = nil
		r.from, r.to = 0, 0
	}
}
