// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
)

// agentTask carries out a task of the guest agent, and queries the agent afterwards for the
// outcome.
func (r actor) agentTask(ctx context.Context, name string, t action.Action) error {
	agent, able := r.Hypervisor.(domain.GuestAgent)
	if !able {
		return fmt.Errorf("domainctrl: %s %s: the hypervisor does not support guest agents: %w", t.Verb, name, domain.ErrUnsupported)
	}
	logger(ctx).V(4).Info("Asking the guest agent", "task", t.String())
	var err error
	switch t.Verb {
	case action.Freeze:
		err = agent.Freeze(ctx, name)
	case action.Thaw:
		err = agent.Thaw(ctx, name)
	default:
		ctx, cancel := context.WithTimeout(ctx, agentDeadline)
		defer cancel()
		err = agent.SetTime(ctx, name, r.Clock.Now())
	}
	// A domain that ended by itself in between writes nothing any more.
	if err != nil && !errors.Is(err, domain.ErrNotFound) {
		return fmt.Errorf("domainctrl: %s %s: %w", t.Verb, name, err)
	}
	r.agents.again(name)
	return nil
}
