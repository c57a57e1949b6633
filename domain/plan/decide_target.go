// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// target decides for the node that receives the VMI.
type target struct{ *decision }

// decide follows the state of the lease.
func (d target) decide() error {
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

// prepare marks this node as ready once the VMI's files are in place.
func (d target) prepare() error {
	if d.VMI.DeletionTimestamp != nil || d.VMI.IsFinal() || source(d).abortRequested() {
		return nil
	}
	d.prove()
	d.verify()
	if d.settling() {
		d.requeueAfter(settleRetry)
		return nil
	}
	if d.PrepareError != nil {
		d.requeueAfter(prepareRetry)
		if m := d.plan.VMI.Status.MigrationState; m != nil {
			m.FailureReason = vmistatus.Steady(m.FailureReason, "target not ready: "+d.PrepareError.Error())
		}
		return nil
	}
	if d.now.Before(d.VerifyUntil) {
		d.requeueAfter(d.VerifyUntil.Sub(d.now))
		return nil
	}
	if d.Migrating {
		// A migration from here is about to end, and its end closes the tunnel, whose key is
		// the same.
		d.requeueAfter(pollMigration)
		return nil
	}
	if d.State != nil {
		d.clear("an earlier domain of the VMI exists")
		d.requeueAfter(pollMigration)
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

// verify makes an image of another content than the guest runs with the PrepareError.
func (d target) verify() {
	if d.PrepareError != nil {
		return
	}
	if d.PrepareError = d.Checksums.Verify(d.VMI, d.Node); d.PrepareError != nil {
		if m := d.VMI.Status.MigrationState; m != nil && m.FailureReason == "" {
			d.emit(true, eventOtherImage, d.PrepareError.Error())
		}
	}
}

// eventOtherImage is KubeVirt's event reason for a target whose images are others.
const eventOtherImage = "ContainerDiskFailedChecksum"

// publish stores the endpoint of this node, and its CPUs for a VMI with dedicated ones.
func (d target) publish(m *v1.VirtualMachineInstanceMigrationState) {
	m.TargetNodeAddress, m.TargetDirectMigrationNodePorts = d.TargetEndpoint.Address, maps.Clone(d.TargetEndpoint.Ports)
	m.TargetCPUSet = nil
	for _, cpu := range d.Facts.CPUs {
		m.TargetCPUSet = append(m.TargetCPUSet, int(cpu))
	}
	if t := m.TargetState; t != nil {
		address := d.TargetEndpoint.Address
		t.NodeAddress, t.DirectMigrationNodePorts, t.CPUSet = &address, maps.Clone(d.TargetEndpoint.Ports), m.TargetCPUSet
	}
}

// republish stores a changed endpoint, after a restart of this node's agent. The source reads
// it at the start, and when it has to resume a post-copy migration.
func (d target) republish() {
	m := d.plan.VMI.Status.MigrationState
	if m == nil || d.TargetEndpoint.Address == "" || d.PrepareError != nil {
		return
	}
	if d.TargetEndpoint.Address != m.TargetNodeAddress || !maps.Equal(d.TargetEndpoint.Ports, m.TargetDirectMigrationNodePorts) {
		d.publish(m)
	}
}

// receive takes the VMI over once the domain has arrived here, or answers where it is if its
// source cannot.
func (d target) receive() error {
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

// answer decides where the VMI is when only this node knows. It certainly has not arrived if
// the hypervisor has no domain of it, or one that failed at the switch: a paused one may be
// about to run.
func (d target) answer() error {
	switch {
	case d.State == nil:
		return d.decline()
	case d.torn() && (d.lease.State == handoff.Fenced || d.lease.Overdue(d.now)):
		// The rest of its memory will not arrive. The owner of the VMI can fail it.
		return d.takeOver()
	case d.mayBeHeld() && !d.lease.Stalled:
		// The source, which has not stored that the domain has left, is gone and may have
		// resumed it.
		d.clear("the source has not stored that the domain has left")
		return d.decline()
	case d.State.Alive() && d.waits() && d.lease.Overdue(d.now):
		// Nothing is sent any more, and the domain here has not run.
		d.clear("the domain has not arrived in time")
		d.requeueAfter(pollMigration)
		return nil
	case d.State.Alive():
		d.detected()
		return nil
	case d.State.Reason == domain.ReasonFailed:
		// The switch failed: the domain never ran here.
		d.clear("the domain has not arrived")
		return d.decline()
	}
	return d.takeOver() // it has arrived, and ended
}

// detected stores that a domain waits here for the migration.
func (d target) detected() {
	if m := d.plan.VMI.Status.MigrationState; m != nil {
		m.TargetNodeDomainDetected = true
		if m.TargetState != nil {
			m.TargetState.DomainDetected = true
		}
	}
	d.requeueAfter(pollMigration)
}

// waits reports whether the domain here still waits for the migration.
func (d target) waits() bool {
	return d.State.Status == domain.StatusPaused && d.State.Reason == domain.ReasonMigration
}

func (d target) decline() error {
	return source(d).stay(handoff.Decline, "the migration failed at the switch; the domain has not arrived at the target")
}

// finalizeWithin is how long the changes that wait for the end of a migration are retried.
const finalizeWithin = time.Minute

// takeOver makes this node the owner of the VMI, in one write without any other action than to
// resume a held domain: readers can rely on the domain being here. The pending changes follow;
// see [decision.finalize].
func (d target) takeOver() error {
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
			m.AbortStatus = v1.MigrationAbortFailed // the request was too late
		}
		if m.TargetMemoryOverhead != nil {
			overhead := m.TargetMemoryOverhead.DeepCopy()
			status.MemoryOf(vmi).MemoryOverhead = &overhead
		}
	}
	if d.State.Alive() {
		report(d).reflect()
	}
	pause(d).letGo()
	d.requeueAfter(0)
	return nil
}

// arrived reports whether the hypervisor has completed the switch to this node. During
// post-copy the domain has not arrived: its source is still needed.
func (d target) arrived() bool {
	if d.State == nil || d.MigrationActive {
		return false
	}
	switch d.State.Status {
	case domain.StatusRunning, domain.StatusBlocked, domain.StatusPMSuspended:
		return d.State.Reason != domain.ReasonPostcopy && d.State.Reason != domain.ReasonPostcopyFailed
	case domain.StatusPaused:
		switch d.State.Reason {
		case domain.ReasonUser:
			return !d.mayBeHeld() || d.lease.Stalled
		case domain.ReasonIOError, domain.ReasonWatchdog, domain.ReasonCrashed:
			return true
		}
	}
	return false
}
