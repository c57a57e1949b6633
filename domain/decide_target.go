// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// target decides for the node that shall receive the guest.
func (d *decision) target() error {
	switch d.lease.State {
	case handoff.Preparing:
		return d.prepare()
	case handoff.Prepared:
		d.republish()
		return nil
	default:
		return d.receive()
	}
}

// prepare reports this node ready once the guest's files are in place.
func (d *decision) prepare() error {
	if d.VMI.DeletionTimestamp != nil || d.VMI.IsFinal() || d.abortRequested() {
		return nil
	}
	d.prove()
	if d.Obstacle != nil {
		d.again(obstacleRetry)
		if m := d.plan.VMI.Status.MigrationState; m != nil {
			m.FailureReason = steady(m.FailureReason, "target not ready: "+d.Obstacle.Error())
		}
		return nil
	}
	if d.Moving {
		// The guest has left from here a moment ago, and the end of that closes the way,
		// whose name is the same.
		d.again(pollMove)
		return nil
	}
	if d.State != nil {
		// What is left of an earlier visit must go before the guest can come.
		d.clear("an earlier domain of the guest is in the way")
		d.again(pollMove)
		return nil
	}
	m := d.plan.VMI.Status.MigrationState
	if m == nil {
		return nil
	}
	if err := d.step(handoff.Event{Kind: handoff.Ready}); err != nil {
		return err
	}
	d.publish(m)
	m.FailureReason = ""
	return nil
}

// publish says where this node takes the guest, and on which CPUs it will run here if
// they are its own.
func (d *decision) publish(m *v1.VirtualMachineInstanceMigrationState) {
	m.TargetNodeAddress, m.TargetDirectMigrationNodePorts = d.Listening.Address, maps.Clone(d.Listening.Ports)
	m.TargetCPUSet = nil
	for _, cpu := range d.Facts.CPUs {
		m.TargetCPUSet = append(m.TargetCPUSet, int(cpu))
	}
	if t := m.TargetState; t != nil {
		address := d.Listening.Address
		t.NodeAddress, t.DirectMigrationNodePorts, t.CPUSet = &address, maps.Clone(d.Listening.Ports), m.TargetCPUSet
	}
}

// republish says anew where this node takes the guest after it has come to listen
// elsewhere, because its agent was restarted. The source looks at that when it begins,
// and when it has to find the guest again.
func (d *decision) republish() {
	m := d.plan.VMI.Status.MigrationState
	if m == nil || d.Listening.Address == "" || d.Obstacle != nil {
		return
	}
	if d.Listening.Address != m.TargetNodeAddress || !maps.Equal(d.Listening.Ports, m.TargetDirectMigrationNodePorts) {
		d.publish(m)
	}
}

// receive takes the guest over once the hypervisor lets it run here, or answers
// whoever has to know where it is.
func (d *decision) receive() error {
	if d.arrived() {
		return d.takeOver()
	}
	d.republish()
	switch {
	case d.lease.Stalled, d.lease.State == handoff.Fenced:
		return d.answer()
	case d.State != nil:
		d.detected()
	}
	return nil
}

// answer says where the guest is when only this node can tell. That it has not
// come is certain where the hypervisor has no domain of the guest, or one that
// failed at the switch: one that stands still may be about to run.
func (d *decision) answer() error {
	switch {
	case d.State == nil:
		return d.decline()
	case d.torn() && (d.lease.State == handoff.Fenced || d.lease.Overdue(d.now)):
		// The rest of its memory will not come. As its owner this node can say so.
		return d.takeOver()
	case d.mayBeHeld() && !d.lease.Stalled:
		// Whoever could say that it has left is gone, and may have run it since.
		d.clear("its source has not said that it has left")
		return d.decline()
	case d.State.Alive() && d.waits() && d.lease.Overdue(d.now):
		// Nobody passes it the guest any more, and it has run nothing of it.
		d.clear("the guest has not come in time")
		d.again(pollMove)
		return nil
	case d.State.Alive():
		d.detected()
		return nil
	case d.State.Reason == ReasonFailed:
		// The switch failed: the guest never ran here.
		d.clear("the guest did not arrive")
		return d.decline()
	}
	return d.takeOver() // it has arrived, and ended
}

// detected says that a domain is here for the guest that comes.
func (d *decision) detected() {
	if m := d.plan.VMI.Status.MigrationState; m != nil {
		m.TargetNodeDomainDetected = true
		if m.TargetState != nil {
			m.TargetState.DomainDetected = true
		}
	}
	d.again(pollMove)
}

// waits tells whether the domain here still waits for the guest.
func (d *decision) waits() bool {
	return d.State.Status == StatusPaused && d.State.Reason == ReasonMigration
}

func (d *decision) decline() error {
	return d.stay(handoff.Decline, "the migration broke off at the switch; the guest has not reached the target")
}

// finalizeWithin is how long what waits for the end of a move is tried.
const finalizeWithin = time.Minute

// takeOver makes this node the guest's owner, in one write with nothing else to do but
// to let go a guest that was held: whoever reads it can rely on the guest being here.
// What waited for that comes next; see [decision.finalize].
func (d *decision) takeOver() error {
	if err := d.step(handoff.Event{Kind: handoff.TakeOver, Within: finalizeWithin}); err != nil {
		return err
	}
	vmi, now := d.plan.VMI, metav1.NewTime(d.now)
	vmi.Status.EvacuationNodeName = ""
	vmi.Status.LauncherContainerImageVersion = ""
	vmi.Status.MigrationTransport = v1.MigrationTransportUnix
	delete(vmi.Labels, v1.OutdatedLauncherImageLabel)
	delete(vmi.Annotations, v1.EvictionSourceAnnotation)
	vmistatus.RemoveCondition(vmi, v1.VirtualMachineInstanceMigrationRequired)
	if m := vmi.Status.MigrationState; m != nil {
		m.TargetNodeDomainDetected = true
		m.TargetNodeDomainReadyTimestamp, m.EndTimestamp = &now, &now
		if t := m.TargetState; t != nil {
			t.DomainDetected, t.DomainReadyTimestamp = true, &now
		}
		if m.AbortRequested {
			m.AbortStatus = v1.MigrationAbortFailed // it came too late
		}
		if m.TargetMemoryOverhead != nil {
			overhead := m.TargetMemoryOverhead.DeepCopy()
			memoryOf(vmi).MemoryOverhead = &overhead
		}
	}
	if d.State.Alive() {
		d.reflect()
	}
	d.letGo()
	d.again(0)
	return nil
}

// arrived tells whether the hypervisor has finished the switch to this node. A guest
// that runs ahead of its memory has not arrived: its source is still needed.
func (d *decision) arrived() bool {
	if d.State == nil || d.MoveActive {
		return false
	}
	switch d.State.Status {
	case StatusRunning, StatusBlocked, StatusPMSuspended:
		return d.State.Reason != ReasonPostcopy && d.State.Reason != ReasonPostcopyFailed
	case StatusPaused:
		switch d.State.Reason {
		case ReasonUser:
			return !d.mayBeHeld() || d.lease.Stalled
		case ReasonIOError, ReasonWatchdog, ReasonCrashed:
			return true
		}
	}
	return false
}
