// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"

	"github.com/virtloom/virtloom/domain"
)

// agentTask carries out a task that is the guest agent's, and asks the agent
// afterwards what has become of it.
func (r *Reconciler) agentTask(ctx context.Context, name string, t domain.Task) error {
	agent, able := r.Hypervisor.(domain.GuestAgent)
	if !able {
		return fmt.Errorf("domainctrl: %s %s: the hypervisor cannot talk to agents: %w", t.Verb, name, domain.ErrUnsupported)
	}
	logger(ctx).Info("Asking the guest agent", "task", t.String())
	var err error
	switch t.Verb {
	case domain.TaskFreeze:
		err = agent.Freeze(ctx, name)
	case domain.TaskThaw:
		err = agent.Thaw(ctx, name)
	default:
		ctx, cancel := context.WithTimeout(ctx, agentDeadline)
		defer cancel()
		err = agent.SetTime(ctx, name, r.Clock.Now())
	}
	// A guest that ended by itself in between writes nothing any more.
	if err != nil && !errors.Is(err, domain.ErrNotFound) {
		return fmt.Errorf("domainctrl: %s %s: %w", t.Verb, name, err)
	}
	r.agents.again(name)
	return nil
}
