// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"fmt"
	"io"
	"sync"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// consoles opens the serial consoles of the domains.
type consoles struct{ *state }

// Print makes the guest write to its serial console. The text is lost unless the console is open.
func (h *consoles) Print(name, text string) bool {
	return h.running(name, func(g *guest) {
		if g.console != nil {
			g.console.say(text)
		}
	})
}

// OpenConsole implements domain.ConsoleOpener. A domain has one console, whatever its definition,
// and echoes input as terminals do. An alias has to be in the definition.
func (h *consoles) OpenConsole(ctx context.Context, name, alias string) (io.ReadWriteCloser, error) {
	t := newTerminal()
	err := h.call(ctx, "OpenConsole", name, func() error {
		g, ok := h.guests[name]
		switch {
		case !ok:
			return fmt.Errorf("console of %s: %w", name, domain.ErrNotFound)
		case !g.state.Alive():
			return fmt.Errorf("console of %s: %w", name, domain.ErrInvalidState)
		case alias != "" && !g.lockedSerial(alias):
			return fmt.Errorf("console %s of %s: %w", alias, name, domain.ErrNotFound)
		}
		if g.console != nil {
			g.console.hangUp()
		}
		g.console = t
		return nil
	})
	if err != nil {
		return nil, err
	}
	t.leave = context.AfterFunc(ctx, t.hangUp)
	return t, nil
}

func (g *guest) lockedSerial(alias string) bool {
	return g.def.Devices != nil &&
		at(g.def.Devices.Serials, alias, func(d *libvirtxml.DomainSerial) *libvirtxml.DomainAlias { return d.Alias }) >= 0
}

// terminal is one end of a console; the other is the guest.
type terminal struct {
	mu    sync.Mutex
	ready *sync.Cond
	said  []byte
	over  bool
	leave func() bool // removes the context's callback
}

func newTerminal() *terminal {
	t := &terminal{}
	t.ready = sync.NewCond(&t.mu)
	return t
}

func (t *terminal) say(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.said = append(t.said, text...)
	t.ready.Broadcast()
}

func (t *terminal) hangUp() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	t.ready.Broadcast()
}

// Read implements io.Reader.
func (t *terminal) Read(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.said) == 0 && !t.over && len(p) > 0 {
		t.ready.Wait()
	}
	if len(t.said) == 0 && t.over {
		return 0, io.EOF
	}
	n := copy(p, t.said)
	t.said = t.said[n:]
	return n, nil
}

// Write implements io.Writer.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	over := t.over
	t.mu.Unlock()
	if over {
		return 0, io.ErrClosedPipe
	}
	t.say(string(p))
	return len(p), nil
}

// Close implements io.Closer.
func (t *terminal) Close() error {
	t.leave()
	t.hangUp()
	return nil
}
