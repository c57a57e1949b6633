// SPDX-License-Identifier: Apache-2.0

package domaintest

import "github.com/virtloom/virtloom/domain"

// What guests do on their own. Each answers false if there is no such guest, or
// none that runs.

// PowerOff lets the guest shut itself down.
func (h *Hypervisor) PowerOff(name string) bool {
	return h.running(name, func(g *guest) { h.lockedStop(g, domain.ReasonShutdown) })
}

// Crash ends the guest's process.
func (h *Hypervisor) Crash(name string) bool {
	return h.running(name, func(g *guest) { h.lockedStop(g, domain.ReasonCrashed) })
}

// Panic lets the guest's kernel give up, with its panic preserved.
func (h *Hypervisor) Panic(name string) bool {
	return h.running(name, func(g *guest) {
		h.lockedStop(g, domain.ReasonPanicked)
		g.state.Status = domain.StatusCrashed
	})
}

// IOError pauses the guest as an error of its storage does.
func (h *Hypervisor) IOError(name string) bool {
	return h.running(name, func(g *guest) {
		g.state.Status, g.state.Reason = domain.StatusPaused, domain.ReasonIOError
		h.lockedTell(name, "IOError")
	})
}

// IgnoreShutdown makes the guest deaf to a shutdown, or lets it hear again.
func (h *Hypervisor) IgnoreShutdown(name string, ignore bool) bool {
	return h.running(name, func(g *guest) { g.deaf = ignore })
}

// Vanish forgets a domain without a word, whatever it does.
func (h *Hypervisor) Vanish(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.guests[name]
	delete(h.guests, name)
	return ok
}

// SetState forces a domain into a state, for those that no call leads to.
func (h *Hypervisor) SetState(name string, s domain.Status, r domain.Reason) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.guests[name]
	if ok {
		g.state.Status, g.state.Reason = s, r
		h.lockedTell(name, string(s))
	}
	return ok
}

func (h *Hypervisor) running(name string, do func(*guest)) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.guests[name]
	if !ok || !g.state.Alive() {
		return false
	}
	do(g)
	return true
}
