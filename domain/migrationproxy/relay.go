// SPDX-License-Identifier: Apache-2.0

package migrationproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Sizes of buffers. A stream with little data uses the small ones, so that many idle ones cost
// little.
const (
	smallBuffer = 16 << 10
	largeBuffer = 256 << 10
)

var smallBuffers = sync.Pool{New: func() any { b := make([]byte, smallBuffer); return &b }}

var largeBuffers = sync.Pool{New: func() any { b := make([]byte, largeBuffer); return &b }}

// buffer grows and shrinks with the data that passes through it.
type buffer struct{ b *[]byte }

func newBuffer() buffer { return buffer{b: smallBuffers.Get().(*[]byte)} }

// bytes is the whole buffer.
func (s *buffer) bytes() []byte { return *s.b }

// fit chooses the size for the next read by the last one's. The buffer's content is lost.
func (s *buffer) fit(n int) {
	switch size := len(*s.b); {
	case n == size && size == smallBuffer:
		smallBuffers.Put(s.b)
		s.b = largeBuffers.Get().(*[]byte)
	case n <= smallBuffer/2 && size == largeBuffer:
		largeBuffers.Put(s.b)
		s.b = smallBuffers.Get().(*[]byte)
	}
}

func (s *buffer) release() {
	if len(*s.b) == smallBuffer {
		smallBuffers.Put(s.b)
	} else {
		largeBuffers.Put(s.b)
	}
	s.b = nil
}

// relay carries a stream to its end. It returns nil if both directions ended in order.
func (e *tunnel) relay(h pair) error {
	shut := func() {
		h.local.Close()
		h.remote.Close()
	}
	defer shut()
	stop := context.AfterFunc(e.ctx, shut)
	defer stop()
	var moved atomic.Uint64
	ends := make(chan error, 2)
	go func() { ends <- e.move(h.remote, h.local, &moved, &e.sent) }()
	go func() { ends <- e.move(h.local, h.remote, &moved, &e.received) }()
	first := <-ends
	if first != nil {
		shut()
		return errors.Join(first, ignoreClosed(<-ends))
	}
	return e.linger(ends, &moved, shut)
}

// linger waits for the second direction's end, as long as it is not idle.
func (e *tunnel) linger(ends <-chan error, moved *atomic.Uint64, shut func()) error {
	tick := time.NewTicker(e.proxy.o.Linger)
	defer tick.Stop()
	for last := moved.Load(); ; {
		select {
		case err := <-ends:
			return err
		case <-tick.C:
			now := moved.Load()
			if now != last {
				last = now
				continue
			}
			shut()
			return errors.Join(fmt.Errorf("stream idle for %s after one direction had ended", e.proxy.o.Linger), ignoreClosed(<-ends))
		}
	}
}

// move carries one direction until its end, and passes the end on.
func (e *tunnel) move(to, from half, moved, total *atomic.Uint64) error {
	b := newBuffer()
	defer b.release()
	for {
		n, err := from.Read(b.bytes())
		if n > 0 {
			if _, err := to.Write(b.bytes()[:n]); err != nil {
				return err
			}
			moved.Add(uint64(n))
			total.Add(uint64(n))
			b.fit(n)
		}
		if errors.Is(err, io.EOF) {
			return to.CloseWrite()
		}
		if err != nil {
			return err
		}
	}
}
