// SPDX-License-Identifier: Apache-2.0

package migration

import (
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/launcherpod"
)

// stopApart ends a decentralized migration as far as this side may, and notifies the other
// side through what the synchronization controllers carry: a receiver's failure unchanged, a
// sender's as an ended abort.
func (d stop) stopApart(c cause) phase {
	if d.s.VMI == nil || d.ms == nil {
		return d.fail(c)
	}
	switch s := position(d).standing(); {
	case s == stayed:
		return d.fail(c)
	case s == arrived:
		return d.stay(d.plan.Responsible, reasonCompleting, "the VMI has migrated; too late to stop: "+c.message)
	case s == prepared || d.vain():
		d.callOff(d.s.uid(), c)
		return d.stay(handoff.ByController, reasonCancelling, c.message)
	}
	at := receiver(d).answerBy()
	if !at.IsZero() && !d.now.Before(at) {
		d.callOff(d.s.uid(), c)
		return d.stay(handoff.ByController, reasonCancelling, c.message)
	}
	d.askToAbort()
	d.due(at, c.reason)
	owner := handoff.BySourceNode
	if d.receives() {
		owner = handoff.ByOtherCluster
	}
	return d.stay(owner, reasonAborting, "abort requested from the sender: "+c.message)
}

// vain reports whether the VMI can no longer migrate, whatever the other side does: it has
// ended, or its target is gone.
func (d stop) vain() bool {
	if d.s.VMI.IsFinal() {
		return true
	}
	p := d.s.TargetPod
	return d.receives() && (p == nil || launcherpod.Terminal(p))
}

// recordEnd adds to a closed state what the other side understands. From the sender to the
// receiver only an ended abort is carried.
func (d stop) recordEnd(out *v1.VirtualMachineInstanceMigrationState) {
	if !d.decentralized() || d.ms == nil {
		return
	}
	out.MigrationUID = d.s.uid()
	if d.sends() {
		out.AbortRequested, out.AbortStatus = true, v1.MigrationAbortSucceeded
	}
}
