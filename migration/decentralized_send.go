// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// sender decides in the phases of a migration to another cluster.
type sender struct{ *decision }

// pending waits until the VMI can leave. It takes no slot: next it waits for the
// receiver's turn in the receiver's queue.
func (d sender) pending() phase {
	if f := d.s.Config.evaluate(d.s, d.now); f.Blocked {
		return refusal(d).blocked(f)
	}
	return v1.MigrationScheduling
}

// scheduling sends the receiver the data for the target Pod.
func (d sender) scheduling() phase {
	if position(d).begun() { // a node that needs no consent is faster
		return v1.MigrationScheduled
	}
	if f := d.s.Config.evaluate(d.s, d.now); f.Blocked && !f.Temporary {
		return stop(d).decide(cause{f.Reason, f.Text()})
	}
	if d.ms.MigrationUID != d.s.uid() {
		if why := d.unreportable(); why != "" {
			d.plan.RequeueAt = d.now.Add(lookAgain)
			return d.stay(handoff.ByController, ReasonWaitingForGuest, why)
		}
	}
	if next := d.sourceHalf(); !equality.Semantic.DeepEqual(next, d.ms) {
		d.reportToReceiver(next)
		return v1.MigrationScheduling
	}
	if t := d.ms.TargetState; t != nil && t.Pod != "" {
		return v1.MigrationScheduled
	}
	return v1.MigrationScheduling
}

// lookAgain is the interval for looking up missing data again: no watch reports it.
const lookAgain = 15 * time.Second

// unreportable returns why the VMI cannot be reported to the receiver; empty if it can.
func (d sender) unreportable() string {
	switch {
	case d.s.SourcePod == nil || !d.s.VMI.IsRunning():
		return "the Pod in which the VMI runs is unknown"
	case d.s.Sending == nil:
		return "gathering the data of the VMI for the receiver"
	case d.s.Sending.Missing != "":
		return fmt.Sprintf("%s, needed by the receiver, was not found", d.s.Sending.Missing)
	}
	return ""
}

func (d sender) reportToReceiver(next *v1.VirtualMachineInstanceMigrationState) {
	change := &VMIChange{State: next}
	if d.s.Sending != nil {
		change.Volumes = &d.s.Sending.Volumes
	}
	d.act(Action{Verb: ChangeVMI, Why: "report the VMI to the receiver", Change: change})
}

// sourceHalf returns the migration state with all data for the receiver. What the VMI's
// node reports later is added then.
func (d sender) sourceHalf() *v1.VirtualMachineInstanceMigrationState {
	ms, vmi := d.ms.DeepCopy(), d.s.VMI
	if ms.SourceState == nil { // it was removed
		ms.SourceState = &v1.VirtualMachineInstanceMigrationSourceState{}
	}
	source := ms.SourceState
	source.SelinuxContext = vmi.Status.SelinuxContext
	if ms.MigrationUID == d.s.uid() {
		return ms
	}
	claim := ""
	if st := d.s.Migration.Status.MigrationState; st != nil {
		claim = st.SourcePersistentStatePVCName
	}
	ms.MigrationUID, ms.SourceNode, ms.SourcePod = d.s.uid(), vmi.Status.NodeName, d.s.SourcePod.Name
	source.Node, source.Pod, source.PersistentStatePVCName = vmi.Status.NodeName, d.s.SourcePod.Name, &claim
	source.NodeSelectors = maps.Clone(d.s.Sending.NodeSelectors)
	return ms
}

// scheduled waits for the receiver's handoff.
func (d sender) scheduled() phase {
	if t := d.ms.TargetState; position(d).begun() || t != nil && t.Pod != "" && t.Node != "" {
		return v1.MigrationPreparingTarget
	}
	return v1.MigrationScheduled
}

// preparing waits for the target node's address, then allows the source node to begin.
func (d sender) preparing() phase {
	t := d.ms.TargetState
	switch {
	case position(d).begun():
		return v1.MigrationTargetReady
	case t == nil || t.NodeAddress == nil || *t.NodeAddress == "":
		return v1.MigrationPreparingTarget
	case !d.leased || d.leaving():
		return v1.MigrationTargetReady
	}
	d.letLeave()
	return v1.MigrationPreparingTarget
}

// letLeave advances the lease to where the source node may begin, in one step: the target,
// which this cluster knows only by report, is ready.
func (d sender) letLeave() {
	within := max(d.s.Config.Timeouts.Begin, 0)
	lease := d.lease
	for _, kind := range []handoff.Kind{handoff.Prepare, handoff.Ready} {
		next, _, err := handoff.Step(lease, handoff.Event{
			Kind: kind, Epoch: lease.Epoch, Node: handoff.Elsewhere, Tag: d.s.uid(), Within: within,
		}, d.now)
		if err != nil {
			d.explain(handoff.ByController, ReasonWaitingForGuest, err.Error())
			return
		}
		lease = next
	}
	d.act(Action{Verb: ChangeVMI, Why: "let the source node begin", Change: &VMIChange{Lease: &lease}})
}

// running waits for the other side's report that it runs the VMI.
func (d sender) running() phase {
	if !position(d).moved() {
		return v1.MigrationRunning
	}
	for _, onVMI := range []bool{true, false} {
		d.emit(Event{Reason: EventSucceeded, OnVMI: onVMI, Message: "The VirtualMachineInstance migrated to another cluster."})
	}
	return v1.MigrationSucceeded
}

// succeeded leaves the end of the VMI here to its node and its controller, unless the
// node is known to be gone.
func (d sender) succeeded() phase {
	d.explain(handoff.ByNobody, "", "the VMI has migrated to another cluster")
	d.relay(handoff.TakeOver, handoff.Release)
	d.plan.Release = true
	finish(d).collect()
	return v1.MigrationSucceeded
}

// failed rolls back the migration state of the VMI, which stays here.
func (d sender) failed() phase {
	d.relay(handoff.Decline)
	if d.ms != nil && d.ms.Failed && !finish(d).guestEnded() {
		change := &VMIChange{}
		d.keepVolumes(change)
		if d.leaving() && d.lease.State == handoff.Moving && !d.lease.Stalled {
			stop(d).abortLease(change)
		}
		if change.Volumes != nil || change.Lease != nil {
			d.act(Action{Verb: ChangeVMI, Why: "the VMI stays", Change: change})
		}
	}
	return finish(d).failed()
}

// keepVolumes removes the VMI's claims from the list of migrated volumes if this migration
// added them.
func (d sender) keepVolumes(change *VMIChange) {
	ms := d.ms
	if ms != nil && ms.SourceState != nil && ms.SourceState.Node != "" && len(d.s.VMI.Status.MigratedVolumes) > 0 {
		change.Volumes = &[]v1.StorageMigratedVolumeInfo{}
	}
}

// relay records the other side's report about a VMI of which no node of this cluster can
// report any more: its node is known to be gone, or has lost track of it.
func (d sender) relay(kinds ...handoff.Kind) {
	doubted := d.lease.State == handoff.Fenced || d.lease.State == handoff.Moving && d.lease.Stalled
	if !d.leaving() || !doubted {
		return
	}
	lease := d.lease
	for _, kind := range kinds {
		next, _, err := handoff.Step(lease, handoff.Event{Kind: kind, Epoch: lease.Epoch, Node: handoff.Elsewhere, Message: d.plan.Message}, d.now)
		if err != nil {
			return // the lease has changed; there is nothing to relay
		}
		lease = next
	}
	change := &VMIChange{Lease: &lease}
	if lease.State == handoff.Released && !d.s.VMI.IsFinal() {
		change.Phase, change.At = v1.Succeeded, d.now
	}
	d.act(Action{Verb: ChangeVMI, Why: "the other cluster reported the outcome", Change: change})
}
