// SPDX-License-Identifier: Apache-2.0

package launcher

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/launcher/launcherpb"
)

// OpenConsole implements domain.ConsoleOpener.
func (c *Client) OpenConsole(ctx context.Context, name, alias string) (io.ReadWriteCloser, error) {
	const op = "open console"
	s, err := c.session(ctx, op, name)
	if err != nil {
		return nil, err
	}
	long, cancel := context.WithCancel(ctx)
	opening, opened := context.WithTimeout(ctx, longTimeout)
	defer opened()
	limit := context.AfterFunc(opening, cancel)
	stream, err := s.api.Console(s.speak(long))
	if err == nil {
		// Recv returns the error of the stream.
		_ = stream.Send(&launcherpb.ConsoleRequest{Part: &launcherpb.ConsoleRequest_Open{Open: &launcherpb.ConsoleOpen{Domain: name, Alias: alias}}})
		_, err = stream.Recv()
	}
	inTime := limit()
	if err == nil && !inTime {
		err = context.DeadlineExceeded
	}
	if err == nil {
		return &console{name: name, stream: stream, ctx: ctx, cancel: cancel}, nil
	}
	cancel()
	err = fromStatus(ctx, op, name, err)
	if !inTime && ctx.Err() == nil {
		err = &Error{Op: op, Domain: name, Message: "no answer from the launcher", means: []error{domain.ErrTimeout}}
	}
	return nil, err
}

// console is an open console. It holds its context as net.Conn holds a deadline.
type console struct {
	name   string
	stream grpc.BidiStreamingClient[launcherpb.ConsoleRequest, launcherpb.ConsoleResponse]
	ctx    context.Context //nolint:containedctx // the stream ends with it
	cancel context.CancelFunc

	reading, writing sync.Mutex
	said             []byte // not read yet; guarded by reading
	mu               sync.Mutex
	over             bool
}

// Read returns the guest's output.
func (t *console) Read(p []byte) (int, error) {
	t.reading.Lock()
	defer t.reading.Unlock()
	for len(t.said) == 0 && len(p) > 0 {
		m, err := t.stream.Recv()
		if err != nil {
			return 0, t.ended(err)
		}
		t.said = m.GetSaid()
	}
	n := copy(p, t.said)
	t.said = t.said[n:]
	return n, nil
}

// ended is what Read returns at the end.
func (t *console) ended(err error) error {
	t.mu.Lock()
	closed := t.over
	t.over = true
	t.mu.Unlock()
	if closed || errors.Is(err, io.EOF) || t.ctx.Err() != nil {
		return io.EOF
	}
	return fromStatus(t.ctx, "console", t.name, err)
}

// Write sends input to the guest.
func (t *console) Write(p []byte) (int, error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	for n := 0; n < len(p); {
		t.mu.Lock()
		over := t.over
		t.mu.Unlock()
		if over || t.ctx.Err() != nil {
			return n, io.ErrClosedPipe
		}
		part := p[n:min(len(p), n+chunk)]
		if err := t.stream.Send(&launcherpb.ConsoleRequest{Part: &launcherpb.ConsoleRequest_Typed{Typed: part}}); err != nil {
			return n, io.ErrClosedPipe // Read returns the cause
		}
		n += len(part)
	}
	return len(p), nil
}

// Close ends the console.
func (t *console) Close() error {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.cancel()
	return nil
}
