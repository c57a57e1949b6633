// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// phase shortens the type of a step's result.
type phase = v1.VirtualMachineInstanceMigrationPhase

// unset judges a migration nobody has looked at yet.
func (d *decision) unset() phase {
	if o := d.s.owner(); o != nil {
		return d.fail(cause{ReasonConflict, fmt.Sprintf("migration %q of the same guest is running", o.Name)})
	}
	if f := d.judged(); f.Blocked && !f.Temporary {
		return d.fail(cause{f.Reason, f.Text()})
	}
	return v1.MigrationPending
}

// judged evaluates the checks. What ends an automatic migration ends it after its
// back-off: else whoever made it would make the next one at once.
func (d *decision) judged() Finding {
	f := d.s.Config.evaluate(d.s)
	if !f.Blocked || f.Temporary {
		return f
	}
	switch f.Reason {
	case ReasonGuestNotFound, ReasonGuestFinal, ReasonGuestDeleted, ReasonGuestAway:
		return f // that makes nobody make another one
	}
	if wait := CheckBackoff(d.s); wait.Blocked {
		return wait
	}
	return f
}

// pending leads to the target Pod, through checks, queue and slots.
func (d *decision) pending() phase {
	if d.s.TargetPod != nil {
		return v1.MigrationScheduling
	}
	if orphan := d.s.orphan(); orphan != nil {
		d.callOff(orphan.Tag, cause{ReasonAborted, "its migration does not exist any more"})
		return d.stay(OwnerController, ReasonCancelling, "a move of the guest whose migration is gone is being called off")
	}
	if f := d.judged(); f.Blocked {
		return d.blocked(f)
	}
	if err := d.s.refusal(); err != nil {
		return d.refused(err)
	}
	if d.s.Slot.Asked {
		dropCondition(&d.plan.Status, ConditionNoNode) // nodes match again
	}
	switch {
	case !d.s.Slot.Asked:
		return v1.MigrationPending
	case !d.s.Slot.Held:
		return d.stay(OwnerController, ReasonWaitingForSlot, d.s.Slot.Text())
	}
	if d.stateReady() {
		d.act(Action{Kind: CreateTarget, Why: "a slot is held"})
	}
	return d.plan.Status.Phase
}

// scheduling waits for the target Pod to be ready, and no longer than its
// timeouts.
func (d *decision) scheduling() phase {
	if d.handedOff() {
		return v1.MigrationScheduled // and further; its Pod may be gone by now
	}
	p := d.s.TargetPod
	ready := podReady(p)
	if ready && d.follow() {
		return v1.MigrationScheduled
	}
	limit := seconds(d.s.Migration, v1.MigrationPendingPodTimeoutSecondsAnnotation, d.s.Config.Timeouts.TargetPod)
	expired := cause{ReasonTargetPodTimeout, fmt.Sprintf("target Pod %q was not ready within %s", p.Name, limit)}
	if ready {
		expired.message = fmt.Sprintf("within %s of target Pod %q, its plugged volumes were not there: %s", limit, p.Name, d.plan.Message)
	}
	why, stuck := unschedulable(p)
	if stuck {
		d.explain(OwnerScheduler, ReasonUnschedulable, fmt.Sprintf("no node takes target Pod %q: %s", p.Name, why))
		d.warnUnschedulable(why)
		within := seconds(d.s.Migration, v1.MigrationUnschedulablePodTimeoutSecondsAnnotation, d.s.Config.Timeouts.Unschedulable)
		if within > 0 && (limit <= 0 || within < limit) {
			limit = within
			expired = cause{ReasonUnschedulable, fmt.Sprintf("no node took target Pod %q within %s: %s", p.Name, limit, why)}
		}
	}
	if limit <= 0 || p.CreationTimestamp.IsZero() {
		return v1.MigrationScheduling
	}
	d.due(p.CreationTimestamp.Add(limit), expired.reason)
	if !d.now.Before(d.plan.Deadline) {
		return d.stop(expired)
	}
	return v1.MigrationScheduling
}

// warnUnschedulable emits the event once, when the condition's reason changes.
func (d *decision) warnUnschedulable(why string) {
	if c := Condition(d.plan.Status, ConditionWaiting); c != nil && c.Reason == string(ReasonUnschedulable) {
		return
	}
	d.tell(Event{Warning: true, Reason: EventUnschedulable, Message: "no node takes the target Pod: " + why})
}

// scheduled hands the guest over, once the target may take it.
func (d *decision) scheduled() phase {
	if d.handedOff() {
		return v1.MigrationPreparingTarget
	}
	target := d.s.TargetPod.Spec.NodeName
	switch {
	case target == d.s.VMI.Status.NodeName && !d.receives():
		return d.stop(cause{ReasonSameNode, fmt.Sprintf("target Pod %q was put on node %q, where the guest runs already", d.s.TargetPod.Name, target)})
	case !podReady(d.s.TargetPod):
		return d.stay(OwnerScheduler, ReasonWaitingForTargetPod, "the target Pod is not ready any more")
	}
	if f := d.s.Config.evaluate(d.s); f.Blocked {
		if !f.Temporary {
			return d.stop(cause{f.Reason, f.Text()})
		}
		return d.blocked(f)
	}
	switch {
	case !d.s.Slot.Asked:
		return v1.MigrationScheduled
	case !d.s.Slot.Inbound:
		return d.stay(OwnerController, ReasonWaitingForSlot, d.s.Slot.Text())
	case !d.follow():
		return v1.MigrationScheduled
	case !d.mayHandOff():
		// After a crash the stored phase may be an earlier one. It is stored first:
		// whoever ends the migration then knows that a hand-over may be on its way.
		return v1.MigrationScheduled
	}
	if d.receives() {
		d.handOffReceiver(target)
		return v1.MigrationScheduled
	}
	d.handOff(target)
	return v1.MigrationScheduled
}

// handOff writes everything the nodes need in one change of the guest.
func (d *decision) handOff(target string) {
	c := &VMIChange{
		TargetNode: target, User: d.s.newUser(), Labels: d.s.room(), ActivePods: map[types.UID]string{d.s.TargetPod.UID: target},
		State: &v1.VirtualMachineInstanceMigrationState{
			MigrationUID: d.s.UID(), SourceNode: d.s.VMI.Status.NodeName, TargetNode: target,
			TargetPod: d.s.TargetPod.Name, TargetAttachmentPodUID: d.s.attachmentUID(),
			MigrationPolicyName: d.s.Resolution.Match.Name(), VMIMConfigurationOptions: d.s.Resolution.Options.DeepCopy(),
		},
	}
	if d.s.SourcePod != nil {
		c.State.SourcePod = d.s.SourcePod.Name
	}
	c.State.SourcePersistentStatePVCName, c.State.TargetPersistentStatePVCName = d.s.StateClaims()
	if d.leased {
		lease, _, err := handoff.Step(d.lease, handoff.Event{
			Kind: handoff.Prepare, Epoch: d.lease.Epoch, Node: target, Tag: d.s.UID(), Within: max(d.s.Config.Timeouts.Prepare, 0),
		}, d.now)
		if err != nil {
			d.explain(OwnerController, ReasonWaitingForGuest, err.Error())
			return
		}
		c.Lease = &lease
	}
	d.act(Action{Kind: ChangeVMI, Why: "hand over to the target", Change: c, Event: &Event{
		OnVMI: true, Reason: EventHandOver, Message: fmt.Sprintf("migration target node %s is to prepare for the guest", target),
	}})
}

func (d *decision) preparing() phase {
	switch {
	case d.begun():
		return v1.MigrationTargetReady
	case d.ms != nil && d.ms.TargetNode != "" && d.ms.TargetNodeAddress != "":
		return v1.MigrationTargetReady
	case d.ms != nil && d.ms.FailureReason != "":
		return d.stay(OwnerTarget, ReasonWaitingForTargetNode, d.ms.FailureReason)
	}
	return v1.MigrationPreparingTarget
}

func (d *decision) targetReady() phase {
	if d.begun() {
		return v1.MigrationRunning
	}
	return v1.MigrationTargetReady
}

// running waits for the nodes' word on where the guest is.
func (d *decision) running() phase {
	d.announce()
	if !d.moved() {
		return v1.MigrationRunning
	}
	if !d.ms.Completed || d.s.VMI.Status.NodeName != d.ms.TargetNode {
		return d.stay(OwnerTarget, ReasonCompleting, "the guest runs on the target node, which completes the migration")
	}
	return d.complete()
}

// complete ends a migration whose guest is at the target, once what came with it is
// settled, or has had its time.
func (d *decision) complete() phase {
	until := phaseSince(d.s.Migration, &d.plan.Status)
	if d.ms != nil && d.ms.EndTimestamp != nil {
		until = d.ms.EndTimestamp.Time
	}
	d.due(time.Time{}, "")
	late := false
	if within := d.s.Config.Timeouts.Complete; within > 0 {
		d.due(until.Add(within), "")
		_, late = d.overdue()
	}
	if !d.claimFollows() && !late {
		return d.plan.Status.Phase
	}
	if c := d.liveUpdate(); c != "" && !late && d.s.Migration.DeletionTimestamp == nil && !d.s.VMI.IsFinal() {
		return d.stay(OwnerTarget, ReasonLiveUpdate, fmt.Sprintf("the guest has moved; its condition %s is not resolved yet", c))
	} else if c != "" {
		d.tell(Event{Warning: true, OnVMI: true, Reason: EventSucceeded, Message: fmt.Sprintf("the guest was migrated, and its condition %s is not resolved", c)})
	}
	node := d.s.VMI.Status.NodeName
	d.tell(Event{Reason: EventSucceeded, OnVMI: true, Message: "the guest was migrated to node " + node})
	d.tell(Event{Reason: EventSucceeded, Message: "the guest was migrated to node " + node})
	return v1.MigrationSucceeded
}

// announce tells the network, by an annotation of the target Pod, that the guest's
// addresses have moved there. Nodes that go by the lease tell it with the change of node,
// and who keeps the Pods then may do it.
func (d *decision) announce() {
	if d.ms == nil || d.ms.TargetNodeDomainReadyTimestamp == nil || d.leased && d.s.Config.PodsFollowGuests {
		return
	}
	p, at := d.s.TargetPod, d.ms.TargetNodeDomainReadyTimestamp
	if p == nil || p.DeletionTimestamp != nil || p.Annotations[v1.MigrationTargetReadyTimestamp] != "" {
		return
	}
	d.act(Action{
		Kind: AnnotatePod, Why: "the guest is there", Pod: &PodRef{Name: p.Name, UID: p.UID},
		Annotations: map[string]string{v1.MigrationTargetReadyTimestamp: at.String()},
	})
}

// liveUpdate returns the condition of the guest by which a live update that
// this migration carries is still open, as KubeVirt waits for it. What was asked for
// after the move began is for the next migration: nothing that this one could do would
// settle it.
func (d *decision) liveUpdate() v1.VirtualMachineInstanceConditionType {
	for _, c := range d.s.VMI.Status.Conditions {
		if d.ms != nil && d.ms.StartTimestamp != nil && c.LastTransitionTime.After(d.ms.StartTimestamp.Time) {
			continue
		}
		switch c.Type {
		case v1.VirtualMachineInstanceVCPUChange:
			return c.Type
		case v1.VirtualMachineInstanceMemoryChange, v1.VirtualMachineInstanceMigrationRequired:
			if c.Status == corev1.ConditionTrue {
				return c.Type
			}
		}
	}
	return ""
}

// overdue reports whether the current phase has passed its deadline.
func (d *decision) overdue() (time.Time, bool) {
	at := d.plan.Deadline
	return at, !at.IsZero() && !d.now.Before(at)
}
