// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/guestagent"
)

// guestAgents calls the agents in the guests.
type guestAgents struct{ *state }

// SetGuestInfo gives a domain an agent that reports info, or removes it with nil. The agent
// persists when the domain ends and starts again. Watchers are notified, as of an agent that
// connects or disconnects. It returns false if there is no such domain.
func (h *guestAgents) SetGuestInfo(name string, info *guestagent.Info) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, ok := h.guests[name]
	if !ok {
		return false
	}
	g.agent = nil
	if info != nil {
		c := cloneGuestInfo(*info)
		g.agent = &c
	}
	h.lockedEmit(name, "AgentLifecycle")
	return true
}

// SetAgents gives every domain that is started from now on an agent that reports info, or none with
// nil.
func (h *guestAgents) SetAgents(info *guestagent.Info) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.agents = nil
	if info != nil {
		c := cloneGuestInfo(*info)
		h.agents = &c
	}
}

// OnAgentCommand makes answer reply to the commands sent to agents. Without it the agent answers
// guest-ping, and others it has enabled with an empty object.
func (h *guestAgents) OnAgentCommand(answer func(name, command string) (string, error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.command = answer
}

// GuestInfo implements domain.GuestAgent.
func (h *guestAgents) GuestInfo(ctx context.Context, name string) (guestagent.Info, error) {
	var out guestagent.Info
	err := h.talk(ctx, "GuestInfo", name, func(g *guest) error {
		out = cloneGuestInfo(*g.agent)
		out.Frozen = g.frozen
		return nil
	})
	return out, err
}

// Freeze implements domain.GuestAgent.
func (h *guestAgents) Freeze(ctx context.Context, name string) error {
	return h.talk(ctx, "Freeze", name, func(g *guest) error {
		g.frozen = true
		return nil
	})
}

// Thaw implements domain.GuestAgent.
func (h *guestAgents) Thaw(ctx context.Context, name string) error {
	return h.talk(ctx, "Thaw", name, func(g *guest) error {
		g.frozen = false
		return nil
	})
}

// SetTime implements domain.GuestAgent.
func (h *guestAgents) SetTime(ctx context.Context, name string, _ time.Time) error {
	return h.talk(ctx, "SetTime", name, func(*guest) error { return nil })
}

// AgentCommand implements domain.GuestAgent.
func (h *guestAgents) AgentCommand(ctx context.Context, name, command string) (string, error) {
	var c struct {
		Execute string `json:"execute"`
	}
	if err := json.Unmarshal([]byte(command), &c); err != nil || c.Execute == "" {
		return "", fmt.Errorf("command for the agent of %s: execute: Required value: %w", name, domain.ErrInvalid)
	}
	answer := ""
	err := h.talk(ctx, "AgentCommand", name, func(g *guest) (err error) {
		switch {
		case h.command != nil:
			answer, err = h.command(name, command)
		case c.Execute == "guest-ping" || slices.Contains(g.agent.Commands, c.Execute):
			answer = `{"return":{}}`
		default:
			err = domain.ErrNoAgent
		}
		return err
	})
	return answer, err
}

// talk is a call to the agent of a domain.
func (h *guestAgents) talk(ctx context.Context, call, name string, f func(*guest) error) error {
	return h.call(ctx, call, name, func() error {
		g, ok := h.guests[name]
		var err error
		switch {
		case !ok:
			err = domain.ErrNotFound
		case g.state.Status != domain.StatusRunning:
			err = domain.ErrInvalidState
		case g.agent == nil:
			err = domain.ErrNoAgent
		default:
			err = f(g)
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", call, name, err)
		}
		return nil
	})
}

func cloneGuestInfo(i guestagent.Info) guestagent.Info {
	i.Commands, i.Users = slices.Clone(i.Commands), slices.Clone(i.Users)
	i.Filesystems, i.Interfaces = slices.Clone(i.Filesystems), slices.Clone(i.Interfaces)
	for k := range i.Filesystems {
		i.Filesystems[k].Disks = slices.Clone(i.Filesystems[k].Disks)
	}
	for k := range i.Interfaces {
		i.Interfaces[k].IPs = slices.Clone(i.Interfaces[k].IPs)
	}
	return i
}

// showAgent shows in the live XML whether an agent has opened the domain's channel.
func (g *guest) showAgent(live *libvirtxml.Domain) {
	if live.Devices == nil {
		return
	}
	for i := range live.Devices.Channels {
		t := live.Devices.Channels[i].Target
		if t == nil || t.VirtIO == nil || t.VirtIO.Name != convert.AgentChannel {
			continue
		}
		t.VirtIO.State = "disconnected"
		if g.agent != nil {
			t.VirtIO.State = "connected"
		}
	}
}
