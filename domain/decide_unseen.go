// SPDX-License-Identifier: Apache-2.0

package domain

import "github.com/virtloom/virtloom/handoff"

// unseen reports whether the next step depends on whether the guest runs here, and that is
// not known: a launcher that is not found may run it all the same, behind a folder that is
// not mounted for example. A guest that this node has not begun to run needs no such
// evidence: what cannot be found cannot be started.
func (d *decision) unseen() bool {
	if d.Unseen == nil {
		return false
	}
	switch d.plan.Role {
	case RoleOffered:
		return d.VMI.DeletionTimestamp != nil || d.VMI.IsFinal()
	case RoleHolder:
		return d.lease.State != handoff.Lost && !d.startable()
	case RoleTarget:
		return d.lease.Switching()
	default:
		return true
	}
}

// awaitEvidence reports what is not known, and ends nothing: neither the guest nor its
// lease, nor the files it may run on. That a guest is not wanted any more is stored, as for
// one whose hypervisor does not answer.
func (d *decision) awaitEvidence() error {
	d.again(obstacleRetry)
	if d.plan.Role != RoleHolder {
		return nil
	}
	d.outOfSync(ReasonUnresponsive, d.Unseen.Error())
	unwanted := d.VMI.IsFinal() || d.VMI.DeletionTimestamp != nil
	if unwanted && (d.lease.State == handoff.Owned || d.lease.State == handoff.Arrived) {
		return d.step(handoff.Event{Kind: handoff.Stop, Within: d.grace() + endWithin})
	}
	return nil
}
