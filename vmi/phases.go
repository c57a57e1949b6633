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
	{beforeNode, (*decision).hasHolder, v1.Scheduled, (*decision).keepLease},

	// A VMI whose lease is released is not started again.
	{beforePod, (*decision).released, v1.Failed, nil},
	// A Pod created by a migration may run the domain, whatever else exists.
	{beforePod, (*decision).movedOnce, "", nil},
	{beforePod, (*decision).hasPod, v1.Scheduling, (*decision).claimLease},
	// While own writes are unobserved, a missing Pod is not known to be missing.
	{beforePod, (*decision).blind, "", nil},
	{beforePod, (*decision).deleting, v1.Failed, release("deleted before it had a Pod")},
	{beforePod, (*decision).lacksImport, v1.Failed, release("a DataVolume of the VirtualMachineInstance failed")},
	{beforePod, (*decision).lacksConsumer, v1.Failed, release("the first-consumer Pod of its claims failed")},
	{beforePod, (*decision).unready, v1.WaitingForSync, nil},

	{phases{v1.Scheduling}, (*decision).podBlind, "", nil},
	{phases{v1.Scheduling}, (*decision).lostReceiver, v1.WaitingForSync, nil},
	{phases{v1.Scheduling}, (*decision).lostPod, v1.Failed, release("the Pod ended before the handoff")},
	{phases{v1.Scheduling}, (*decision).ready, v1.Scheduled, (*decision).offerToNode},

	{handed, (*decision).blind, "", nil},
	{phases{v1.Scheduled}, (*decision).failedReceiver, v1.WaitingForSync, (*decision).failMigration},
	// During the switchover the VMI may have arrived where its Pod is not looked up yet.
	{handed, (*decision).switching, "", nil},
	{handed, (*decision).hasNoPod, v1.Failed, release("the Pod disappeared before the node accepted the VirtualMachineInstance")},
	{phases{v1.Scheduled}, (*decision).overdue, v1.Failed, (*decision).withdraw},
	{phases{v1.Running}, (*decision).sentAway, v1.Succeeded, nil},

	{phases{v1.WaitingForSync}, (*decision).received, v1.Scheduling, nil},
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

func (d *decision) switching() bool { return d.pod == nil && d.lease.Switching() }
func (d *decision) movedOnce() bool { return d.displaced() != nil }
func (d *decision) hasHolder() bool { return d.lease.Holder != "" }
func (d *decision) hasPod() bool    { return d.pod != nil }
func (d *decision) hasNoPod() bool  { return d.pod == nil }
func (d *decision) deleting() bool  { return d.VMI.DeletionTimestamp != nil }
func (d *decision) blind() bool     { return len(d.Unseen) > 0 }
func (d *decision) podBlind() bool  { return d.pod == nil && len(d.Unseen) > 0 }

// released reports whether virtloom's lease is released: the domain has ended.
func (d *decision) released() bool {
	return d.lease.State == handoff.Released && d.lease.Cause != handoff.CauseStock
}

// displaced returns the wait for a Pod created by a migration that may run the domain of an
// object without status; nil if there is none.
func (d *decision) displaced() *Wait {
	if !unprocessed(d.VMI) || receiver(d.VMI) {
		return nil
	}
	return nowhereElse(d.Snapshot)
}

// lacksImport reports whether a DataVolume of the VMI has failed.
func (d *decision) lacksImport() bool { return importFailed(d.Snapshot) != nil }

// lacksConsumer reports whether the first-consumer Pod of claims that still need one has
// failed.
func (d *decision) lacksConsumer() bool {
	return firstConsumer(d.Snapshot) && temporaryFailed(d.Snapshot) != nil
}

// unready reports whether the VMI is a migration target whose node is not known yet.
func (d *decision) unready() bool {
	return receiver(d.VMI) && d.VMI.Labels[v1.MigrationTargetNodeNameLabel] == ""
}

// lostPod reports whether the Pod was lost before the handoff. For an object that is being
// deleted, the Pod must be gone.
func (d *decision) lostPod() bool {
	return d.pod == nil || podGoingDown(d.pod) && d.VMI.DeletionTimestamp == nil
}

func (d *decision) lostReceiver() bool {
	return receiver(d.VMI) && (d.pod == nil || podGoingDown(d.pod))
}

// ready reports whether the handoff to the node agent can be made. While own writes are
// unobserved, the hotplugged volumes are unknown, and the handoff includes them.
func (d *decision) ready() bool {
	return d.VMI.DeletionTimestamp == nil && len(d.Unseen) == 0 && PodReady(d.pod) && d.pod.Spec.NodeName != "" &&
		!d.lacksGuarantee() && !d.lacksAddress()
}

// lacksAddress reports whether the VMI requests a VSOCK CID and none is reserved for it.
func (d *decision) lacksAddress() bool {
	wants := d.VMI.Spec.Domain.Devices.AutoattachVSOCK
	return wants != nil && *wants && d.CID == nil && d.VMI.Status.VSOCKCID == nil
}

// lacksGuarantee reports whether the VMI requests dedicated CPUs and its Pod is not of QoS
// class Guaranteed.
func (d *decision) lacksGuarantee() bool {
	cpu := d.VMI.Spec.Domain.CPU
	return cpu != nil && cpu.DedicatedCPUPlacement && PodReady(d.pod) && d.pod.Status.QOSClass != corev1.PodQOSGuaranteed
}

func (d *decision) failedReceiver() bool {
	m := d.VMI.Status.MigrationState
	return receiver(d.VMI) && (d.pod == nil || podFinished(d.pod) || m != nil && m.Failed)
}

// failMigration marks the incoming migration of the VMI as failed.
func (d *decision) failMigration() error {
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

// sentAway reports whether the VMI was migrated to another cluster.
func (d *decision) sentAway() bool {
	m := d.VMI.Status.MigrationState
	if m == nil || !m.Completed || d.pod.Status.Phase != corev1.PodSucceeded {
		return false
	}
	source := m.SourceState != nil && m.SourceState.SyncAddress != nil && *m.SourceState.SyncAddress != ""
	target := m.TargetState != nil && m.TargetState.SyncAddress != nil && *m.TargetState.SyncAddress != ""
	return source != target
}

// received reports whether a migration target that waits for its Pod has one.
func (d *decision) received() bool {
	m := d.VMI.Status.MigrationState
	return d.VMI.DeletionTimestamp == nil && d.pod != nil && (m == nil || !m.Failed) && (!receiver(d.VMI) || !podGoingDown(d.pod))
}

// overdue reports whether the node let an offer expire. A node that has reported what keeps it
// from accepting retries by itself, as long as it is alive. A stock agent accepts nothing: like
// KubeVirt, this controller waits for it without bound.
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

// hindered reports whether the node has reported what keeps it from accepting.
func (d *decision) hindered() bool {
	c := d.synchronizedNow()
	return c != nil && c.Status == corev1.ConditionFalse
}

// withdraw withdraws an offer. That is safe: the node starts nothing before its acceptance is
// stored, and of two concurrent writes of one lease only one succeeds.
func (d *decision) withdraw() error {
	message := fmt.Sprintf("node %s did not accept the VMI before %s; check the node agent, then recreate the VMI",
		d.lease.Holder, d.lease.Deadline.UTC().Format(time.RFC3339))
	if err := release(message)(d); err != nil {
		return err
	}
	d.plan.VMI.Status.Reason = ReasonNodeUnresponsive
	d.complain(ReasonNodeUnresponsive, message)
	return nil
}

func (d *decision) keepLease() error { return handoff.Put(d.plan.VMI, d.lease) }

// claimLease claims a VMI that has its Pod. A migration target belongs to its source until it
// has arrived.
func (d *decision) claimLease() error {
	if receiver(d.VMI) {
		return nil
	}
	return d.step(handoff.Event{Kind: handoff.Claim})
}

// offerToNode offers the VMI to the node of its Pod: phase, lease, and the fields that stock
// KubeVirt reads instead are stored in one write. The handoff of a migration target consists of
// KubeVirt's fields alone, because no node of this cluster may start it.
func (d *decision) offerToNode() error {
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

// bootMemory records the memory at boot: later changes of the spec are compared with it.
// KubeVirt's webhook does so, where there is one.
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

// release releases a lease that no node has accepted.
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

// step advances the next lease by one event.
func (d *decision) step(e handoff.Event) error {
	e.Epoch = d.next.Epoch
	lease, _, err := handoff.Step(d.next, e, d.now)
	if err != nil {
		return fmt.Errorf("vmi: handoff of %s/%s: %w", d.VMI.Namespace, d.VMI.Name, err)
	}
	d.next = lease
	return handoff.Put(d.plan.VMI, lease)
}

func (d *decision) setPhase(p v1.VirtualMachineInstancePhase) {
	vmistatus.SetPhase(d.plan.VMI, p, d.now)
}
