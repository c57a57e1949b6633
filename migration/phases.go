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

// advance decides in the phases of a migration within the cluster.
type advance struct{ *decision }

// unset judges a migration for the first time.
func (d advance) unset() phase {
	if o := d.s.Owner(); o != nil {
		return stop(d).fail(cause{ReasonConflict, fmt.Sprintf("migration %q of the same VMI is running", o.Name)})
	}
	if f := d.judged(); f.Blocked && !f.Temporary {
		return stop(d).fail(cause{f.Reason, f.Text()})
	}
	return v1.MigrationPending
}

// judged evaluates the checks. A finding that ends an automatic migration ends it after its
// back-off, as its creator would create the next one at once.
func (d advance) judged() Finding {
	f := d.s.Config.evaluate(d.s, d.now)
	if !f.Blocked || f.Temporary {
		return f
	}
	switch f.Reason {
	case ReasonGuestNotFound, ReasonGuestFinal, ReasonGuestDeleted, reasonGuestAway:
		return f // after these no creator makes another one
	}
	if wait := checkBackoff(d.s, d.now); wait.Blocked {
		return wait
	}
	return f
}

// pending leads to the target Pod, through checks, queue and slots.
func (d advance) pending() phase {
	if d.s.TargetPod != nil {
		return v1.MigrationScheduling
	}
	if orphan := d.s.orphan(); orphan != nil {
		stop(d).callOff(orphan.Tag, cause{ReasonAborted, "its migration no longer exists"})
		return d.stay(handoff.ByController, reasonCancelling, "canceling an orphaned migration")
	}
	if f := d.judged(); f.Blocked {
		return refusal(d).blocked(f)
	}
	if err := d.s.refusal(); err != nil {
		return refusal(d).refused(err)
	}
	if d.s.Slot.Asked {
		dropCondition(&d.plan.Status, ConditionNoNode) // nodes match again
	}
	switch {
	case !d.s.Slot.Asked:
		return v1.MigrationPending
	case !d.s.Slot.Held:
		return d.stay(handoff.ByController, ReasonWaitingForSlot, d.s.Slot.Text())
	}
	if targetObjects(d).stateReady() {
		d.act(Action{Verb: CreateTarget, Why: "a slot is held"})
	}
	return d.plan.Status.Phase
}

// scheduling waits for the target Pod to be ready, bounded by its timeouts.
func (d advance) scheduling() phase {
	if position(d).handedOff() {
		return v1.MigrationScheduled // or further; its Pod may be gone by now
	}
	p := d.s.TargetPod
	ready := podReady(p)
	if ready && targetObjects(d).follow() {
		return v1.MigrationScheduled
	}
	limit := annotatedSeconds(d.s.Migration, v1.MigrationPendingPodTimeoutSecondsAnnotation, d.s.Config.Timeouts.TargetPod)
	expired := cause{reasonTargetPodTimeout, fmt.Sprintf("target Pod %q was not ready within %s", p.Name, limit)}
	if ready {
		expired.message = fmt.Sprintf("hotplugged volumes were not attached within %s of the creation of target Pod %q: %s", limit, p.Name, d.plan.Message)
	}
	why, stuck := unschedulable(p)
	if stuck {
		d.explain(handoff.ByScheduler, ReasonUnschedulable, fmt.Sprintf("target Pod %q is unschedulable: %s", p.Name, why))
		d.warnUnschedulable(why)
		within := annotatedSeconds(d.s.Migration, v1.MigrationUnschedulablePodTimeoutSecondsAnnotation, d.s.Config.Timeouts.Unschedulable)
		if within > 0 && (limit <= 0 || within < limit) {
			limit = within
			expired = cause{ReasonUnschedulable, fmt.Sprintf("target Pod %q was unschedulable for %s: %s", p.Name, limit, why)}
		}
	}
	if limit <= 0 || p.CreationTimestamp.IsZero() {
		return v1.MigrationScheduling
	}
	d.due(p.CreationTimestamp.Add(limit), expired.reason)
	if !d.now.Before(d.plan.Deadline) {
		return stop(d).decide(expired)
	}
	return v1.MigrationScheduling
}

// warnUnschedulable emits the event once, when the condition's reason changes.
func (d advance) warnUnschedulable(why string) {
	if c := Condition(d.plan.Status, ConditionWaiting); c != nil && c.Reason == string(ReasonUnschedulable) {
		return
	}
	d.emit(Event{Warning: true, Reason: eventUnschedulable, Message: "the target Pod is unschedulable: " + why})
}

// scheduled hands the VMI off, once a slot at the target node is free.
func (d advance) scheduled() phase {
	if position(d).handedOff() {
		return v1.MigrationPreparingTarget
	}
	target := d.s.TargetPod.Spec.NodeName
	switch {
	case target == d.s.VMI.Status.NodeName && !d.receives():
		return stop(d).decide(cause{reasonSameNode, fmt.Sprintf("target Pod %q was scheduled to the source node %q", d.s.TargetPod.Name, target)})
	case !podReady(d.s.TargetPod):
		return d.stay(handoff.ByScheduler, reasonWaitingForTargetPod, "the target Pod is no longer ready")
	}
	if f := d.s.Config.evaluate(d.s, d.now); f.Blocked {
		if !f.Temporary {
			return stop(d).decide(cause{f.Reason, f.Text()})
		}
		return refusal(d).blocked(f)
	}
	switch {
	case !d.s.Slot.Asked:
		return v1.MigrationScheduled
	case !d.s.Slot.Inbound:
		return d.stay(handoff.ByController, ReasonWaitingForSlot, d.s.Slot.Text())
	case !targetObjects(d).follow():
		return v1.MigrationScheduled
	case !position(d).mayHandOff():
		// After a crash the stored phase may be an earlier one. It is stored first, so that
		// whatever ends the migration then expects a handoff in flight.
		return v1.MigrationScheduled
	}
	if d.receives() {
		receiver(d).handOff(target)
		return v1.MigrationScheduled
	}
	d.handOff(target)
	return v1.MigrationScheduled
}

// handOff writes everything that the nodes need in one change of the VMI.
func (d advance) handOff(target string) {
	c := &VMIChange{
		TargetNode: target, User: d.s.newUser(), Labels: d.s.roomLabels(), ActivePods: map[types.UID]string{d.s.TargetPod.UID: target},
		State: &v1.VirtualMachineInstanceMigrationState{
			MigrationUID: d.s.uid(), SourceNode: d.s.VMI.Status.NodeName, TargetNode: target,
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
			Kind: handoff.Prepare, Epoch: d.lease.Epoch, Node: target, Tag: d.s.uid(), Within: max(d.s.Config.Timeouts.Prepare, 0),
		}, d.now)
		if err != nil {
			d.explain(handoff.ByController, ReasonWaitingForGuest, err.Error())
			return
		}
		c.Lease = &lease
	}
	d.act(Action{Verb: ChangeVMI, Why: "hand off to the target", Change: c, Event: &Event{
		OnVMI: true, Reason: EventHandOver, Message: fmt.Sprintf("Migration handed off to target node %s", target),
	}})
}

func (d advance) preparing() phase {
	switch {
	case position(d).begun():
		return v1.MigrationTargetReady
	case d.ms != nil && d.ms.TargetNode != "" && d.ms.TargetNodeAddress != "":
		return v1.MigrationTargetReady
	case d.ms != nil && d.ms.FailureReason != "":
		return d.stay(handoff.ByTargetNode, reasonWaitingForTargetNode, d.ms.FailureReason)
	}
	return v1.MigrationPreparingTarget
}

func (d advance) targetReady() phase {
	if position(d).begun() {
		return v1.MigrationRunning
	}
	return v1.MigrationTargetReady
}

// running waits for the nodes' report on where the VMI is.
func (d advance) running() phase {
	d.announce()
	if !position(d).moved() {
		return v1.MigrationRunning
	}
	if !d.ms.Completed || d.s.VMI.Status.NodeName != d.ms.TargetNode {
		return d.stay(handoff.ByTargetNode, reasonCompleting, "the VMI runs on the target node, which completes the migration")
	}
	return d.complete()
}

// complete ends a migration whose VMI has arrived, once the work that it carries is done or
// its time has passed.
func (d advance) complete() phase {
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
	if !targetObjects(d).claimFollows() && !late {
		return d.plan.Status.Phase
	}
	if c := d.liveUpdate(); c != "" && !late && d.s.Migration.DeletionTimestamp == nil && !d.s.VMI.IsFinal() {
		return d.stay(handoff.ByTargetNode, reasonLiveUpdate, fmt.Sprintf("the VMI has migrated; its condition %s is not resolved yet", c))
	} else if c != "" {
		d.emit(Event{Warning: true, OnVMI: true, Reason: EventSucceeded, Message: fmt.Sprintf("The VirtualMachineInstance migrated, but its condition %s is not resolved", c)})
	}
	node := d.s.VMI.Status.NodeName
	d.emit(Event{Reason: EventSucceeded, OnVMI: true, Message: fmt.Sprintf("The VirtualMachineInstance migrated to node %s.", node)})
	d.emit(Event{Reason: EventSucceeded, Message: fmt.Sprintf("The VirtualMachineInstance migrated to node %s.", node)})
	return v1.MigrationSucceeded
}

// announce publishes, by an annotation of the target Pod, that the VMI's addresses are now
// there. Nodes that follow the lease publish it by the change of its node, which the
// controller of the Pods then annotates.
func (d advance) announce() {
	if d.ms == nil || d.ms.TargetNodeDomainReadyTimestamp == nil || d.leased && d.s.Config.PodsFollowGuests {
		return
	}
	p, at := d.s.TargetPod, d.ms.TargetNodeDomainReadyTimestamp
	if p == nil || p.DeletionTimestamp != nil || p.Annotations[v1.MigrationTargetReadyTimestamp] != "" {
		return
	}
	d.act(Action{
		Verb: AnnotatePod, Why: "the VMI has arrived", Pod: &PodRef{Name: p.Name, UID: p.UID},
		Annotations: map[string]string{v1.MigrationTargetReadyTimestamp: at.String()},
	})
}

// liveUpdate returns the VMI's condition of a live update that this migration applies and
// that is still open, as KubeVirt waits for it. An update requested after the migration
// began is left to the next migration: this one cannot apply it.
func (d advance) liveUpdate() v1.VirtualMachineInstanceConditionType {
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
