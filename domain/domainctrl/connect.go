// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// connect finds the hypervisor of a guest that this node is to start or receive, or
// runs, wanted or not. One that is not there stands in the way of a guest that shall run
// here; any other failure is that of a guest of which nothing can be said: it must not
// look like one that is gone.
func (r *Reconciler) connect(ctx context.Context, s *domain.Sight) error {
	if r.Connector == nil || s.VMI == nil {
		return nil
	}
	lease, err := handoff.Of(s.VMI)
	if err != nil || domain.RoleOf(lease, r.NodeName) == domain.RoleNone {
		return err
	}
	if lease.State == handoff.Lost && lease.Holder == r.NodeName {
		return nil // only a word is asked for
	}
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	_, err = r.Connector.Connect(ctx, s.VMI, s.Launcher())
	if errors.Is(err, domain.ErrNotReady) {
		wanted, unreadable := r.needsFiles(s.VMI)
		if wanted != domain.RoleNone {
			s.Obstacle = err
		}
		err = unreadable
	}
	if err != nil {
		return fmt.Errorf("domainctrl: connect to the hypervisor of %s/%s: %w", s.VMI.Namespace, s.VMI.Name, err)
	}
	return nil
}
