// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"time"

	v1 "kubevirt.io/api/core/v1"
)

// transition is one row of the phase table.
type transition struct {
	from []v1.VirtualMachineInstancePhase
	// when is the condition of the row.
	when func(*decision) bool
	// to is the next phase; empty keeps the phase.
	to v1.VirtualMachineInstancePhase
	// then runs before the phase is set; nil does nothing. On error the phase stays.
	then func(*decision) error
}

// in makes a method of a role a function of the decision.
func in[R ~struct{ *decision }, T any](f func(R) T) func(*decision) T {
	return func(d *decision) T { return f(R{d}) }
}

type phases = []v1.VirtualMachineInstancePhase

var (
	beforePod  = phases{v1.VmPhaseUnset, v1.Pending}
	beforeNode = phases{v1.VmPhaseUnset, v1.Pending, v1.Scheduling}
	handed     = phases{v1.Scheduled, v1.Running}
)

// transitions lists all phase transitions made by this controller; the first matching row
// wins. The node agent continues from Scheduled and Running.
// (specs: VMI reconciliation 3)
var transitions = []transition{
	// A client overwrote the status of a VMI whose lease a node holds.
	{beforeNode, in(ownership.held), v1.Scheduled, in(ownership.keep)},

	// A VMI whose lease is released is not started again.
	{beforePod, in(ownership.released), v1.Failed, nil},
	// A Pod created by a migration may run the domain, whatever else exists.
	{beforePod, in(creation.isDisplaced), "", nil},
	{beforePod, (*decision).hasPod, v1.Scheduling, in(ownership.claim)},
	// While own writes are unobserved, a missing Pod is not known to be missing.
	{beforePod, (*decision).blind, "", nil},
	{beforePod, (*decision).deleting, v1.Failed, release("deleted before it had a Pod")},
	{beforePod, in(creation.importFailed), v1.Failed, release("a DataVolume of the VirtualMachineInstance failed")},
	{beforePod, in(creation.consumerFailed), v1.Failed, release("the first-consumer Pod of its claims failed")},
	{beforePod, in(decentralized.awaitsTarget), v1.WaitingForSync, nil},

	{phases{v1.Scheduling}, (*decision).podBlind, "", nil},
	{phases{v1.Scheduling}, in(decentralized.targetLost), v1.WaitingForSync, nil},
	{phases{v1.Scheduling}, (*decision).lostPod, v1.Failed, release("the Pod ended before the handoff")},
	{phases{v1.Scheduling}, in(offer.ready), v1.Scheduled, in(offer.make)},

	{handed, (*decision).blind, "", nil},
	{phases{v1.Scheduled}, in(decentralized.failed), v1.WaitingForSync, in(decentralized.fail)},
	// During the switchover the VMI may have arrived where its Pod is not looked up yet.
	{handed, in(ownership.switching), "", nil},
	{handed, (*decision).hasNoPod, v1.Failed, release("the Pod disappeared before the node accepted the VirtualMachineInstance")},
	{phases{v1.Scheduled}, in(offer.overdue), v1.Failed, in(offer.withdraw)},
	{phases{v1.Running}, in(decentralized.sent), v1.Succeeded, nil},

	{phases{v1.WaitingForSync}, in(decentralized.targetExists), v1.Scheduling, nil},
}

// phase applies the first matching row. A phase that no row contains and that is not final is
// invalid.
func (d *decision) phase() {
	now := d.VMI.Status.Phase
	for _, t := range transitions {
		if !slices.Contains(t.from, now) || !t.when(d) {
			continue
		}
		if t.then != nil {
			if err := t.then(d); err != nil {
				d.misunderstood(ReasonFailedHandover, err.Error())
				return
			}
		}
		if t.to != "" {
			d.setPhase(t.to)
		}
		return
	}
	switch now {
	case v1.VmPhaseUnset, v1.Pending, v1.Scheduling, v1.Scheduled, v1.Running, v1.Succeeded, v1.Failed, v1.WaitingForSync:
	default:
		d.misunderstood(ReasonUnknownPhase, fmt.Sprintf(
			"VirtualMachineInstance %s/%s: status.phase %q is unknown; correct it or delete the object", d.VMI.Namespace, d.VMI.Name, now))
	}
}

// Scheduling returns the VMI as if its phase Scheduling, which a VMI with a Pod enters next, had been stored at that
// time; nil if the VMI does not enter it. A controller that passes the result to [Decide] stores this transition and
// the next one in one write.
func Scheduling(s Snapshot, at time.Time) *v1.VirtualMachineInstance {
	d := newDecision(s, at)
	if d.lost != nil || !unprocessed(s.VMI) {
		return nil
	}
	d.claim()
	d.phase()
	if d.plan.VMI.Status.Phase != v1.Scheduling {
		return nil
	}
	return d.plan.VMI
}

func (d *decision) hasPod() bool   { return d.pod != nil }
func (d *decision) hasNoPod() bool { return d.pod == nil }
func (d *decision) deleting() bool { return d.VMI.DeletionTimestamp != nil }
func (d *decision) blind() bool    { return len(d.Pending) > 0 }
func (d *decision) podBlind() bool { return d.pod == nil && len(d.Pending) > 0 }

// lostPod reports whether the Pod was lost before the handoff. For an object that is being
// deleted, the Pod must be gone.
func (d *decision) lostPod() bool {
	return d.pod == nil || podGoingDown(d.pod) && d.VMI.DeletionTimestamp == nil
}

// release returns a step that releases the lease.
func release(why string) func(*decision) error {
	return func(d *decision) error { return ownership{d}.release(why) }
}
