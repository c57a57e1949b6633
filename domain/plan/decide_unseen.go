// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// absence decides while the hypervisor does not report whether there is a domain.
type absence struct{ *decision }

// unseen reports whether the next step depends on whether the domain runs here, and that is
// unknown: a launcher that is not found may still run it, behind a directory that is not
// mounted for example. A VMI that this node has not started needs no such evidence, since
// without its launcher it cannot be started.
func (d absence) unseen() bool {
	if d.StateUnknown == nil {
		return false
	}
	switch d.plan.Role {
	case handoff.RoleOffered:
		return d.VMI.DeletionTimestamp != nil || d.VMI.IsFinal()
	case handoff.RoleHolder:
		return d.lease.State != handoff.Lost && !holder(d).startable()
	case handoff.RoleTarget:
		return d.lease.Switching()
	default:
		return true
	}
}

// awaitEvidence reports the missing evidence and ends nothing: neither the domain nor the
// lease, nor the files in use. That the VMI is to end is stored, as for an unresponsive
// hypervisor.
func (d absence) awaitEvidence() error {
	d.requeueAfter(prepareRetry)
	if d.plan.Role != handoff.RoleHolder {
		return nil
	}
	report(d).outOfSync(status.ReasonUnresponsive, d.StateUnknown.Error())
	unwanted := d.VMI.IsFinal() || d.VMI.DeletionTimestamp != nil
	if unwanted && (d.lease.State == handoff.Owned || d.lease.State == handoff.Arrived) {
		return d.step(handoff.Event{Kind: handoff.Stop, Within: d.grace() + endWithin})
	}
	return nil
}
