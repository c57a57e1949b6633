// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// transition is one row of the table of phases.
type transition struct {
	from []v1.VirtualMachineInstancePhase
	// when must hold for the row to count.
	when func(*decision) bool
	// to is the phase that follows; empty leaves the phase as it is.
	to v1.VirtualMachineInstancePhase
	// then is what goes with it; nil is nothing. If it fails the phase stays.
	then func(*decision) error
}

type phases = []v1.VirtualMachineInstancePhase

var (
	beforePod  = phases{v1.VmPhaseUnset, v1.Pending}
	beforeNode = phases{v1.VmPhaseUnset, v1.Pending, v1.Scheduling}
	handed     = phases{v1.Scheduled, v1.Running}
)

// transitions are all changes of phase that are this controller's to make; the
// first row that fits counts. Scheduled and Running go on under the node agent.
// (specs: VMI reconciliation 3)
var transitions = []transition{
	// Somebody who did not know better wrote over the status of a guest that a node has.
	{beforeNode, (*decision).forgotten, v1.Scheduled, (*decision).keepLease},

	// One that has ended by its lease is not begun again.
	{beforePod, (*decision).over, v1.Failed, nil},
	// A Pod that a migration made may have the guest, whatever else there is.
	{beforePod, (*decision).movedOnce, "", nil},
	{beforePod, (*decision).hasPod, v1.Scheduling, (*decision).claimLease},
	// That it has no Pod is not known while own writes are unseen.
	{beforePod, (*decision).blind, "", nil},
	{beforePod, (*decision).deleting, v1.Failed, release("deleted before it had a Pod")},
	{beforePod, (*decision).lacksImport, v1.Failed, release("a DataVolume of it has failed")},
	{beforePod, (*decision).lacksConsumer, v1.Failed, release("the Pod that its claims were to be provisioned by has failed")},
	{beforePod, (*decision).unready, v1.WaitingForSync, nil},

	{phases{v1.Scheduling}, (*decision).podBlind, "", nil},
	{phases{v1.Scheduling}, (*decision).lostReceiver, v1.WaitingForSync, nil},
	{phases{v1.Scheduling}, (*decision).lostPod, v1.Failed, release("its Pod ended before the guest was handed over")},
	{phases{v1.Scheduling}, (*decision).ready, v1.Scheduled, (*decision).handOver},

	{handed, (*decision).blind, "", nil},
	{phases{v1.Scheduled}, (*decision).failedReceiver, v1.WaitingForSync, (*decision).failMove},
	// A guest that switches nodes may have arrived where its Pod is not looked for yet.
	{handed, (*decision).switching, "", nil},
	{handed, (*decision).hasNoPod, v1.Failed, release("its Pod vanished before its node accepted it")},
	{phases{v1.Scheduled}, (*decision).overdue, v1.Failed, (*decision).withdraw},
	{phases{v1.Running}, (*decision).sentAway, v1.Succeeded, nil},

	{phases{v1.WaitingForSync}, (*decision).received, v1.Scheduling, nil},
}

// phase finds the row that fits. A phase that is in no row, and is no end, cannot be
// understood.
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

func (d *decision) switching() bool { return d.pod == nil && d.lease.Switching() }
func (d *decision) movedOnce() bool { return d.displaced() != nil }
func (d *decision) forgotten() bool { return d.lease.Holder != "" }
func (d *decision) hasPod() bool    { return d.pod != nil }
func (d *decision) hasNoPod() bool  { return d.pod == nil }
func (d *decision) deleting() bool  { return d.VMI.DeletionTimestamp != nil }
func (d *decision) blind() bool     { return len(d.Unseen) > 0 }
func (d *decision) podBlind() bool  { return d.pod == nil && len(d.Unseen) > 0 }

// over tells whether the guest has ended by a lease that says so.
func (d *decision) over() bool {
	return d.lease.State == handoff.Released && d.lease.Cause != handoff.CauseStock
}

// displaced is what to wait for while an object that has lost its status may have its
// guest in a Pod that a migration made; nil if it has not.
func (d *decision) displaced() *Wait {
	if !unprocessed(d.VMI) || receiver(d.VMI) {
		return nil
	}
	return nowhereElse(d.Snapshot)
}

// lacksImport tells whether a DataVolume of the guest has failed.
func (d *decision) lacksImport() bool { return d.importFailed() != nil }

// lacksConsumer tells whether the Pod has failed that was to have the claims
// provisioned, which still wait for it.
func (d *decision) lacksConsumer() bool {
	return d.firstConsumer() && temporaryFailed(d.Snapshot) != nil
}

// unready tells whether the guest is to be received and nobody has said where.
func (d *decision) unready() bool {
	return receiver(d.VMI) && d.VMI.Labels[v1.MigrationTargetNodeNameLabel] == ""
}

// lostPod tells whether the Pod has gone before the guest was handed over. Of an
// object that is being deleted the Pod is awaited until it is gone.
func (d *decision) lostPod() bool {
	return d.pod == nil || podGoingDown(d.pod) && d.VMI.DeletionTimestamp == nil
}

func (d *decision) lostReceiver() bool {
	return receiver(d.VMI) && (d.pod == nil || podGoingDown(d.pod))
}

// ready tells whether the node agent can take over. While own writes are unseen what is
// plugged is not known, and it is told with the hand-over.
func (d *decision) ready() bool {
	return d.VMI.DeletionTimestamp == nil && len(d.Unseen) == 0 && PodReady(d.pod) && d.pod.Spec.NodeName != "" &&
		!d.lacksGuarantee() && !d.lacksAddress()
}

// lacksAddress tells whether the guest is to have an address on VSOCK and none is
// reserved for it.
func (d *decision) lacksAddress() bool {
	wants := d.VMI.Spec.Domain.Devices.AutoattachVSOCK
	return wants != nil && *wants && d.CID == nil && d.VMI.Status.VSOCKCID == nil
}

// lacksGuarantee tells whether the guest is to have CPUs of its own and its Pod has
// none.
func (d *decision) lacksGuarantee() bool {
	cpu := d.VMI.Spec.Domain.CPU
	return cpu != nil && cpu.DedicatedCPUPlacement && PodReady(d.pod) && d.pod.Status.QOSClass != corev1.PodQOSGuaranteed
}

func (d *decision) failedReceiver() bool {
	m := d.VMI.Status.MigrationState
	return receiver(d.VMI) && (d.pod == nil || podFinished(d.pod) || m != nil && m.Failed)
}

// failMove ends the move by which the guest was to be received.
func (d *decision) failMove() error {
	m := d.plan.VMI.Status.MigrationState
	if m == nil || m.Completed {
		return nil
	}
	m.Failed, m.Completed = true, true
	if m.EndTimestamp == nil {
		now := metav1.NewTime(d.now)
		m.EndTimestamp = &now
	}
	return nil
}

// sentAway tells whether the guest has moved to another cluster.
func (d *decision) sentAway() bool {
	m := d.VMI.Status.MigrationState
	if m == nil || !m.Completed || d.pod.Status.Phase != corev1.PodSucceeded {
		return false
	}
	source := m.SourceState != nil && m.SourceState.SyncAddress != nil && *m.SourceState.SyncAddress != ""
	target := m.TargetState != nil && m.TargetState.SyncAddress != nil && *m.TargetState.SyncAddress != ""
	return source != target
}

// received tells whether a guest that waits to be received has got its Pod.
func (d *decision) received() bool {
	m := d.VMI.Status.MigrationState
	return d.VMI.DeletionTimestamp == nil && d.pod != nil && (m == nil || !m.Failed) && (!receiver(d.VMI) || !podGoingDown(d.pod))
}

// overdue tells whether the node let an offer pass. A node that has told what keeps
// it from accepting tries again by itself, as long as it is alive. A stock one accepts nothing: like KubeVirt, this
// controller waits for it without bound.
func (d *decision) overdue() bool {
	if d.lease.State != handoff.Offered || d.lease.Deadline == nil || d.VMI.DeletionTimestamp != nil {
		return false
	}
	if !d.lease.Overdue(d.now) {
		d.requeue(d.lease.Deadline.Time)
		return false
	}
	if d.stockAgent(d.lease) {
		d.requeue(d.now.Add(askAgain)) // another agent may report by then
		return false
	}
	return !d.hindered() || d.silent(d.lease.Holder)
}

// hindered tells whether the node has told what keeps it from accepting.
func (d *decision) hindered() bool {
	c := d.synchronizedNow()
	return c != nil && c.Status == corev1.ConditionFalse
}

// withdraw takes an offer back. That is safe: the node starts nothing before its
// acceptance is stored, and of two writes to one lease only one is.
func (d *decision) withdraw() error {
	message := fmt.Sprintf("node %s did not accept the guest until %s; see whether its node agent runs, then start the guest anew",
		d.lease.Holder, d.lease.Deadline.UTC().Format(time.RFC3339))
	if err := release(message)(d); err != nil {
		return err
	}
	d.plan.VMI.Status.Reason = ReasonNodeUnresponsive
	d.complain(ReasonNodeUnresponsive, message)
	return nil
}

func (d *decision) keepLease() error { return handoff.Put(d.plan.VMI, d.lease) }

// claimLease claims the guest whose Pod there is. One that is received is its
// source's until it has arrived.
func (d *decision) claimLease() error {
	if receiver(d.VMI) {
		return nil
	}
	return d.step(handoff.Event{Kind: handoff.Claim})
}

// handOver offers the guest to the node of its Pod: phase, lease, and what stock
// KubeVirt reads in its place go in one write. A guest that is received is handed
// over in KubeVirt's own words alone, as nobody here may start it.
func (d *decision) handOver() error {
	vmi, node := d.plan.VMI, d.pod.Spec.NodeName
	if receiver(vmi) {
		label(vmi, v1.NodeNameLabel, node)
		vmi.Status.NodeName = node
	} else if err := d.step(handoff.Event{Kind: handoff.Offer, Node: node, Within: d.Config.AcceptWithin}); err != nil {
		return err
	}
	if qos := d.pod.Status.QOSClass; qos != "" {
		vmi.Status.QOSClass = &qos
	}
	if d.pod.Annotations[v1.MigrationTransportUnixAnnotation] == "true" {
		vmi.Status.MigrationTransport = v1.MigrationTransportUnix
	}
	if d.CID != nil {
		vmi.Status.VSOCKCID = d.CID
	}
	bootMemory(vmi)
	return nil
}

// bootMemory notes with how much memory the guest starts: what it is asked to have
// later is compared with that. KubeVirt's webhook does it where there is one.
func bootMemory(vmi *v1.VirtualMachineInstance) {
	want := vmi.Spec.Domain.Memory
	if want == nil || want.Guest == nil {
		return
	}
	if vmi.Status.Memory == nil {
		vmi.Status.Memory = &v1.MemoryStatus{}
	}
	for _, noted := range []**resource.Quantity{&vmi.Status.Memory.GuestAtBoot, &vmi.Status.Memory.GuestRequested} {
		if *noted == nil {
			guest := want.Guest.DeepCopy()
			*noted = &guest
		}
	}
}

func label(vmi *v1.VirtualMachineInstance, key, value string) {
	if vmi.Labels == nil {
		vmi.Labels = map[string]string{}
	}
	vmi.Labels[key] = value
}

// release ends a lease that no node has accepted.
func release(why string) func(*decision) error {
	return func(d *decision) error {
		switch d.lease.State {
		case handoff.Unclaimed, handoff.Claimed, handoff.Offered:
			if receiver(d.VMI) {
				return nil
			}
			return d.step(handoff.Event{Kind: handoff.Release, Message: why})
		}
		return nil
	}
}

// step takes the next lease one step further.
func (d *decision) step(e handoff.Event) error {
	e.Epoch = d.next.Epoch
	lease, _, err := handoff.Step(d.next, e, d.now)
	if err != nil {
		return fmt.Errorf("vmi: hand over %s/%s: %w", d.VMI.Namespace, d.VMI.Name, err)
	}
	d.next = lease
	return handoff.Put(d.plan.VMI, lease)
}

func (d *decision) setPhase(p v1.VirtualMachineInstancePhase) {
	vmistatus.SetPhase(d.plan.VMI, p, d.now)
}
