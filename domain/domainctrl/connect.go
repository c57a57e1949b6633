// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// connect finds the hypervisor of a VMI that this node starts, receives or runs. If there is none,
// that becomes the PrepareError of a VMI assigned to this node. Any other failure leaves the state
// of the domain unknown: it must not look like a domain that is gone.
func (r *Reconciler) connect(ctx context.Context, w observed, s *plan.Snapshot) error {
	switch {
	case r.Connector == nil || w.vmi == nil:
		return nil
	case w.role(r.NodeName) == handoff.RoleNone:
		return w.leaseErr
	case w.lease.State == handoff.Lost && w.lease.Holder == r.NodeName:
		return nil // only an answer is requested
	}
	ctx, cancel := context.WithTimeout(ctx, r.CallTimeout)
	defer cancel()
	_, err := r.Connector.Connect(ctx, s.VMI, s.Launcher())
	if errors.Is(err, domain.ErrNotReady) {
		if s.NeedsFiles() {
			s.PrepareError = err
		}
		err = nil
	}
	if err != nil {
		return fmt.Errorf("domainctrl: connect to the hypervisor of %s/%s: %w", s.VMI.Namespace, s.VMI.Name, err)
	}
	return nil
}
