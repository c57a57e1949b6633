// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"fmt"
	"slices"

	"github.com/virtloom/virtloom/domain"
)

// operations applies operations to domains.
type operations struct{ *state }

// Apply implements domain.Hypervisor.
func (h *operations) Apply(ctx context.Context, op domain.Operation) error {
	if err := op.Validate(); err != nil {
		return err
	}
	return h.call(ctx, string(op.Verb), op.Domain, func() error {
		if err := h.lockedApply(op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		return nil
	})
}

// lockedApply needs h.mu.
func (h *operations) lockedApply(op domain.Operation) error {
	if op.Verb == domain.Start {
		return h.lockedStart(op)
	}
	g, ok := h.guests[op.Domain]
	if !ok {
		if op.Verb == domain.Destroy || op.Verb == domain.Undefine {
			return nil
		}
		return domain.ErrNotFound
	}
	parts := (*hardware)(h)
	do, ok := map[domain.Verb]func(*guest, domain.Operation) error{
		domain.Shutdown:     h.lockedShutdown,
		domain.Destroy:      h.lockedDestroy,
		domain.Undefine:     h.lockedUndefine,
		domain.Suspend:      h.lockedSuspend,
		domain.Resume:       h.lockedResume,
		domain.SetMetadata:  h.lockedMetadata,
		domain.AttachDevice: parts.lockedDevice,
		domain.DetachDevice: parts.lockedDevice,
		domain.UpdateDevice: parts.lockedDevice,
		domain.Reset:        parts.lockedReset,
		domain.Reboot:       parts.lockedReboot,
		domain.SetVCPUs:     parts.lockedVCPUs,
		domain.ResizeDisk:   parts.lockedResize,
	}[op.Verb]
	if !ok {
		return domain.ErrUnsupported
	}
	return do(g, op)
}

func (h *operations) lockedStart(op domain.Operation) error {
	old, exists := h.guests[op.Domain]
	if exists && old.state.Alive() {
		return nil
	}
	if exists && old.state.UUID != op.Definition.UUID {
		return fmt.Errorf("defined already with UUID %s: %w", old.state.UUID, domain.ErrInvalidState)
	}
	if !slices.Contains([]string{"kvm", "qemu", "test"}, op.Definition.Type) {
		return fmt.Errorf("domain type %q: %w", op.Definition.Type, domain.ErrInvalid)
	}
	def, err := clone(op.Definition)
	if err != nil {
		return err
	}
	m, _, err := domain.MetadataOf(def)
	if err != nil {
		return fmt.Errorf("%w: %w", domain.ErrInvalid, err)
	}
	def.Metadata = nil
	h.nextID++
	g := &guest{def: def, id: h.nextID, state: domain.State{
		Name: op.Domain, UUID: def.UUID, Status: domain.StatusRunning, Reason: domain.ReasonUnknown, Metadata: m,
	}}
	if h.agents != nil {
		info := cloneGuestInfo(*h.agents)
		g.agent = &info
	}
	if exists { // state of its disks
		g.sizes, g.snapshots = old.sizes, old.snapshots
		if old.agent != nil {
			g.agent = old.agent
		}
	}
	if op.Paused {
		g.state.Status, g.state.Reason = domain.StatusPaused, domain.ReasonUser
	}
	h.guests[op.Domain] = g
	h.lockedEmit(op.Domain, "Started")
	return nil
}

func (h *operations) lockedShutdown(g *guest, _ domain.Operation) error {
	switch {
	case !g.state.Alive():
	case g.state.Status == domain.StatusPaused:
		return domain.ErrInvalidState
	case !g.deaf:
		h.lockedStop(g, domain.ReasonShutdown)
	}
	return nil
}

func (h *operations) lockedDestroy(g *guest, _ domain.Operation) error {
	if g.state.Alive() {
		h.lockedStop(g, domain.ReasonDestroyed)
	}
	return nil
}

func (h *operations) lockedUndefine(g *guest, _ domain.Operation) error {
	if g.state.Alive() {
		return domain.ErrInvalidState
	}
	delete(h.guests, g.state.Name)
	h.lockedEmit(g.state.Name, "Undefined")
	return nil
}

func (h *operations) lockedMetadata(g *guest, op domain.Operation) error {
	xml, err := op.Metadata.XML()
	if err != nil {
		return err
	}
	if g.state.Metadata, _, err = domain.ParseMetadataElement(xml); err != nil {
		return err
	}
	h.lockedEmit(g.state.Name, "MetadataChange")
	return nil
}

func (h *operations) lockedSuspend(g *guest, _ domain.Operation) error {
	return h.lockedSwitch(g, domain.StatusRunning, domain.StatusPaused, domain.ReasonUser)
}

func (h *operations) lockedResume(g *guest, _ domain.Operation) error {
	return h.lockedSwitch(g, domain.StatusPaused, domain.StatusRunning, domain.ReasonUnknown)
}

func (h *operations) lockedSwitch(g *guest, from, to domain.Status, why domain.Reason) error {
	switch {
	case g.state.Status == to:
		return nil
	case g.state.Status != from || g.inbound || g.lockedElsewhere():
		return domain.ErrInvalidState
	}
	h.lockedSettle(g)
	g.state.Status, g.state.Reason = to, why
	if g.job != nil {
		g.job.copying.still = to == domain.StatusPaused
	}
	h.lockedEmit(g.state.Name, string(to))
	return nil
}
