// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/virtloom/virtloom/domain"
)

// Fault is a failure of calls.
type Fault struct {
	// Call is the verb of an operation, or the name of a method of an interface of package domain:
	// Host, List, Get, Watch, Migrate, GuestInfo, TakeSnapshot; empty matches every call.
	Call string
	// Domain is the domain of the call; empty matches every one.
	Domain string
	// Times is the number of affected calls; 0 means all until it is removed.
	Times int
	// Latency delays the call.
	Latency time.Duration
	// Hang blocks the call until its context ends or the fault is removed. The call has no effect.
	Hang bool
	// Err is the error of the call; nil lets it succeed. The call has no effect, unless AfterEffect
	// is set: then only its answer is lost.
	Err         error
	AfterEffect bool
}

// fault is a Fault in force.
type fault struct {
	Fault
	left    int
	removed chan struct{}
}

// injection makes calls fail.
type injection struct{ *state }

// Inject puts a fault in force, before those injected earlier. remove ends it and frees blocked
// calls; it may be called more than once.
func (h *injection) Inject(f Fault) (remove func()) {
	in := &fault{Fault: f, left: f.Times, removed: make(chan struct{})}
	h.mu.Lock()
	h.faults = append([]*fault{in}, h.faults...)
	h.mu.Unlock()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if i := slices.Index(h.faults, in); i >= 0 {
			h.faults = slices.Delete(h.faults, i, i+1)
		}
		select {
		case <-in.removed:
		default:
			close(in.removed)
		}
	}
}

// Calls returns the number of calls: of a verb, or of one of the names of [Fault].Call.
func (h *injection) Calls(call string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[call]
}

// LoseEvents stops, or resumes, notifying watchers of changes.
func (h *injection) LoseEvents(lose bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = lose
}

// Disconnect makes all calls fail with [domain.ErrDisconnected] until Reconnect. Domains keep
// running, and so do migrations that have begun.
func (h *injection) Disconnect() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down == nil {
		close(h.lost)
	}
	h.down = fmt.Errorf("hypervisor %s: %w", h.name, domain.ErrDisconnected)
	h.hints.Tell(domain.Event{Kind: domain.Lost, Err: h.down})
}

// Reconnect reverts Disconnect.
func (h *injection) Reconnect() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down == nil {
		return
	}
	h.down, h.lost = nil, make(chan struct{})
	h.hints.Tell(domain.Event{Kind: domain.Resync})
}

// call carries out one call with the fault it meets.
func (h *state) call(ctx context.Context, name, dom string, do func() error) error {
	f := h.meet(name, dom)
	if err := f.wait(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", name, dom, ended(err))
	}
	if f != nil && f.Err != nil && !f.AfterEffect {
		return f.Err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down != nil {
		return h.down
	}
	if err := do(); err != nil {
		return err
	}
	if f != nil {
		return f.Err
	}
	return nil
}

// meet counts the call and returns its fault; nil if there is none.
func (h *state) meet(name, dom string) *fault {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls[name]++
	for i, f := range h.faults {
		if f.Call != "" && f.Call != name || f.Domain != "" && f.Domain != dom {
			continue
		}
		if f.Times > 0 {
			if f.left--; f.left == 0 {
				h.faults = slices.Delete(slices.Clone(h.faults), i, i+1)
			}
		}
		return f
	}
	return nil
}

// wait is the delay of a fault, which may be nil.
func (f *fault) wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if f == nil {
		return nil
	}
	if f.Hang {
		select {
		case <-f.removed:
			return errors.New("the call was lost")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if f.Latency <= 0 {
		return nil
	}
	t := time.NewTimer(f.Latency)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ended converts an exceeded deadline to the contract's error.
func ended(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", domain.ErrTimeout, err)
	}
	return err
}
