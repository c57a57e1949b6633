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

// secure is a TLS connection that moves many records with one system call: crypto/tls
// by itself makes one for each 16 KiB.
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

// Read returns as many records as have arrived and find room, but waits for the first
// only.
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

// CloseWrite says that no more will come, in TLS and in TCP.
func (s *secure) CloseWrite() error {
	return errors.Join(s.Conn.CloseWrite(), s.wire.flush(), s.wire.TCPConn.CloseWrite())
}

// Close ends the connection without a word: what was to be said in the end is said by
// CloseWrite, and a peer that has not heard it knows that the stream was cut off.
func (s *secure) Close() error { return s.wire.TCPConn.Close() }

// errCut is what crypto/tls would take for an end in order if it came between two
// records.
var errCut = errors.New("the connection was cut off: the other node, or somebody on the way, closed it in the midst of a stream")

// records is the TCP connection below TLS. Reads never go beyond the end of a record,
// so that what has arrived can be told.
type records struct {
	*net.TCPConn

	mu      sync.Mutex // guards what is written: the reader too sends alerts
	holding bool
	held    []byte

	in       *buffer // nil until something is read
	from, to int     // of what is in it
	last     int     // how much the last read has brought
	left     int     // of the record that is being read
}

// headerSize is that of a TLS record's header, which ends with the length of what
// follows.
const headerSize = 5

// SetWriteDeadline does nothing. crypto/tls gives the message that no more will come
// five seconds, but a slow peer, or a cut link, is no reason to break a stream that has
// sent all; when a dead one is given up says TCP.
func (r *records) SetWriteDeadline(time.Time) error { return nil }

// hold keeps what is written from now on until flush, or until it is enough.
func (r *records) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holding = true
}

// heldEnough is sent without waiting for flush: more at once saves nothing, fits less
// well into a CPU's cache, and keeps the peer from decrypting meanwhile.
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

// flush sends what was held back.
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

// next is the size of the record whose header is the next in the buffer.
func (r *records) next() int {
	return headerSize + int(binary.BigEndian.Uint16(r.in.bytes()[r.from+3:]))
}

// arrived tells whether a whole record can be read without waiting.
func (r *records) arrived() bool {
	return r.left == 0 && r.to-r.from >= headerSize && r.to-r.from >= r.next()
}

// fill brings at least so many bytes into the buffer.
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
