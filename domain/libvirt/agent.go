// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"context"
	"errors"
	"slices"
	"time"

	virt "libvirt.org/go/libvirt"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/guestagent"
)

// agent is one exchange with the agent of a guest.
type agent struct {
	dom *virt.Domain
	// patience is the timeout of one answer in seconds.
	patience int
}

// talk runs f on a connection of its own. Exchanges with one agent are serialized, but delay
// neither operations on the domain nor those on others, and libvirt ends each when the agent takes
// longer than the context, or [Options.AgentTimeout], allows.
func talk[T any](ctx context.Context, d *connection, op, name string, f func(agent) (T, error)) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, ended(ctx, op, name)
	}
	release, err := d.agents.take(ctx, name)
	if err != nil {
		return none, ended(ctx, op, name)
	}
	limit := d.opts.AgentTimeout
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, end.Sub(d.opts.Clock.Now()))
	}
	patience := int(max(limit+time.Second-1, time.Second) / time.Second)
	return await(ctx, op, name, func() (v T, err error) {
		defer release()
		err = d.onOwnConnection(op, name, func(c *virt.Connect) error {
			return withDomain(c, name, func(dom *virt.Domain) error {
				if err := answers(dom); err != nil {
					return err
				}
				v, err = f(agent{dom: dom, patience: patience})
				return agentError(err)
			})
		})
		return v, err
	})
}

// answers fails if the guest is paused, and its agent with it.
func answers(dom *virt.Domain) error {
	st, _, err := dom.GetState()
	if err == nil && st != virt.DOMAIN_RUNNING && st != virt.DOMAIN_BLOCKED {
		return invalidState("the domain is paused")
	}
	return err
}

// agentError distinguishes the absence of an agent from other errors. To libvirt a domain without
// the agent's channel is an invalid argument.
func agentError(err error) error {
	var v virt.Error
	if errors.As(err, &v) && slices.Contains([]virt.ErrorNumber{
		virt.ERR_AGENT_UNRESPONSIVE, virt.ERR_AGENT_UNSYNCED, virt.ERR_AGENT_COMMAND_TIMEOUT, virt.ERR_ARGUMENT_UNSUPPORTED,
	}, v.Code) {
		return &Error{Op: "ask the guest agent", Code: int(v.Code), Message: v.Message, Err: domain.ErrNoAgent}
	}
	return err
}

// guestAgent implements domain.GuestAgent.
type guestAgent struct{ *connection }

// GuestInfo implements domain.GuestAgent. While the file systems are frozen the agent reports
// nothing else.
func (d *guestAgent) GuestInfo(ctx context.Context, name string) (guestagent.Info, error) {
	return talk(ctx, d.connection, "ask the guest agent", name, func(a agent) (guestagent.Info, error) {
		info, err := a.about()
		if err != nil {
			return info, err
		}
		if info.Frozen, err = a.frozen(info); err != nil || info.Frozen {
			return info, err
		}
		if err := a.wait(); err != nil {
			return info, err
		}
		// All that this agent reports. Naming the kinds would fail if the agent does not know one.
		g, err := a.dom.GetGuestInfo(0, 0)
		if err != nil {
			return info, err
		}
		describeGuest(&info, g)
		return info, nil
	})
}

// Freeze implements domain.GuestAgent.
func (d *guestAgent) Freeze(ctx context.Context, name string) error {
	_, err := talk(ctx, d.connection, "freeze", name, func(a agent) (struct{}, error) {
		// An agent that has frozen the file systems does not know the command.
		frozen, err := a.frozen(guestagent.Info{Commands: []string{freezeStatus}})
		if err != nil || frozen {
			return struct{}{}, err
		}
		if err := a.wait(); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, a.unknown("guest-fsfreeze-freeze", a.dom.FSFreeze(nil, 0))
	})
	return err
}

// Thaw implements domain.GuestAgent.
func (d *guestAgent) Thaw(ctx context.Context, name string) error {
	_, err := talk(ctx, d.connection, "thaw", name, func(a agent) (struct{}, error) {
		if err := a.wait(); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, a.unknown("guest-fsfreeze-thaw", a.dom.FSThaw(nil, 0))
	})
	return err
}

// SetTime implements domain.GuestAgent.
func (d *guestAgent) SetTime(ctx context.Context, name string, now time.Time) error {
	_, err := talk(ctx, d.connection, "set the guest's time", name, func(a agent) (struct{}, error) {
		if err := a.wait(); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, a.unknown("guest-set-time", a.dom.SetTime(now.Unix(), uint(now.Nanosecond()), 0))
	})
	return err
}

// AgentCommand implements domain.GuestAgent.
func (d *guestAgent) AgentCommand(ctx context.Context, name, command string) (string, error) {
	verb, err := commandName(command)
	if err != nil {
		return "", err
	}
	return talk(ctx, d.connection, "ask the guest agent", name, func(a agent) (string, error) {
		answer, err := a.ask(command)
		return answer, a.unknown(verb, err)
	})
}

// unknown returns ErrNoAgent if err is that the agent does not know a command: its answer is an
// error, and libvirt reports only in its text which one.
func (a agent) unknown(command string, err error) error {
	if !code(err, virt.ERR_INTERNAL_ERROR) && !code(err, virt.ERR_AGENT_COMMAND_FAILED) {
		return err
	}
	if info, infoErr := a.about(); infoErr == nil && !knows(info, command) {
		return &Error{Op: "ask the guest agent", Message: "the agent does not support " + command, Err: domain.ErrNoAgent}
	}
	return err
}

// wait sets the timeout of libvirt's agent calls.
func (a agent) wait() error { return a.dom.AgentSetResponseTimeout(a.patience, 0) }

// ask sends a command and returns the answer.
func (a agent) ask(command string) (string, error) {
	return a.dom.QemuAgentCommand(command, virt.DomainQemuAgentCommandTimeout(a.patience), 0)
}

// about reads the version and the commands of the agent.
func (a agent) about() (guestagent.Info, error) {
	answer, err := a.ask(plain(guestInfo))
	if err != nil {
		return guestagent.Info{}, err
	}
	return parseAgent(answer)
}

// frozen reports whether the file systems are frozen, if the agent supports the query.
func (a agent) frozen(info guestagent.Info) (bool, error) {
	if !knows(info, freezeStatus) {
		return false, nil
	}
	answer, err := a.ask(plain(freezeStatus))
	if err != nil {
		return false, err
	}
	return parseFrozen(answer)
}
