// SPDX-License-Identifier: Apache-2.0

package memory

import "github.com/virtloom/virtloom/domain"

// actions are those of guests themselves. Each returns false if there is no such domain, or it does not run.
type actions struct{ *state }

// PowerOff shuts the guest down from inside.
func (h *actions) PowerOff(name string) bool {
	return h.running(name, func(g *guest) { h.lockedStop(g, domain.ReasonShutdown) })
}

// Crash ends the domain's process.
func (h *actions) Crash(name string) bool {
	return h.running(name, func(g *guest) { h.lockedStop(g, domain.ReasonCrashed) })
}

// Panic makes the guest's kernel panic, with its domain preserved.
func (h *actions) Panic(name string) bool {
	return h.running(name, func(g *guest) {
		h.lockedStop(g, domain.ReasonPanicked)
		g.state.Status = domain.StatusCrashed
	})
}

// IOError pauses the domain as an error of its storage does.
func (h *actions) IOError(name string) bool {
	return h.running(name, func(g *guest) {
		g.state.Status, g.state.Reason = domain.StatusPaused, domain.ReasonIOError
		h.lockedEmit(name, "IOError")
	})
}

// IgnoreShutdown makes the guest ignore a shutdown request, or react again.
func (h *actions) IgnoreShutdown(name string, ignore bool) bool {
	return h.running(name, func(g *guest) { g.deaf = ignore })
}

// Vanish removes a domain without an event, in any state.
func (h *actions) Vanish(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.guests[name]
	delete(h.guests, name)
	return ok
}

// SetState forces a domain into a state, for those that no call leads to.
func (h *actions) SetState(name string, s domain.Status, r domain.Reason) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.guests[name]
	if ok {
		g.state.Status, g.state.Reason = s, r
		h.lockedEmit(name, string(s))
	}
	return ok
}

func (h *state) running(name string, do func(*guest)) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.guests[name]
	if !ok || !g.state.Alive() {
		return false
	}
	do(g)
	return true
}
