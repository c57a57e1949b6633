// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// receiver decides in the phases of a migration from another cluster.
type receiver struct{ *decision }

// handOff writes everything that the target node and the sender need in one change
// of the VMI. It leaves the source's half unchanged.
func (d receiver) handOff(target string) {
	vmi, pod := d.s.VMI, d.s.TargetPod
	ms := d.ms.DeepCopy()
	ms.Completed, ms.Failed = false, false
	ms.MigrationUID, ms.TargetNode, ms.TargetPod = d.s.uid(), target, pod.Name
	if s := ms.SourceState; s != nil {
		ms.SourceNode, ms.SourcePod = s.Node, s.Pod
	}
	ms.MigrationPolicyName, ms.VMIMConfigurationOptions = d.s.Resolution.Match.Name(), d.s.Resolution.Options.DeepCopy()
	uid, namespace, domain := vmi.UID, vmi.Namespace, vmi.Namespace+"_"+vmi.Name
	t := ms.TargetState
	t.MigrationUID, t.Node, t.Pod = d.s.uid(), target, pod.Name
	t.VirtualMachineInstanceUID, t.DomainNamespace, t.DomainName = &uid, &namespace, &domain
	change := &VMIChange{State: ms, TargetNode: target, User: d.s.newUser(), Labels: d.s.roomLabels()}
	d.act(Action{Verb: ChangeVMI, Why: "hand off to the target", Change: change, Event: &Event{
		OnVMI: true, Reason: EventHandOver, Message: fmt.Sprintf("Migration handed off to target node %s", target),
	}})
}

// targetReady waits until the sender has begun, or the VMI has arrived.
func (d receiver) targetReady() phase {
	if d.ms.StartTimestamp != nil || position(d).standing() == arrived {
		return v1.MigrationRunning
	}
	return v1.MigrationTargetReady
}

// succeeded has nothing to clean up: the Pod that the VMI has left is the sender's.
func (d receiver) succeeded() phase {
	d.explain(handoff.ByNobody, "", "the VMI has been received")
	d.plan.Release = true
	finish(d).collect()
	return v1.MigrationSucceeded
}

// answerBy returns until when a receiver waits for the answer to its abort request. Until then
// the sender, which is notified, may have begun; afterwards its own deadline has passed. Zero
// means forever: part of the VMI's state is here.
func (d receiver) answerBy() time.Time {
	within := d.s.Config.Timeouts.Synchronize
	if !d.receives() || within < 0 || d.ms.StartTimestamp != nil || sighted(d.ms) {
		return time.Time{}
	}
	var asked time.Time
	for _, at := range d.reasonsToEnd() {
		if !at.IsZero() && (asked.IsZero() || at.Before(asked)) {
			asked = at
		}
	}
	if asked.IsZero() {
		return asked
	}
	return asked.Add(within)
}

// reasonsToEnd returns the times at which the end of the migration was requested; zero for none.
func (d receiver) reasonsToEnd() []time.Time {
	var out []time.Time
	if at, late := d.overdue(); late {
		out = append(out, at)
	}
	for _, at := range []*metav1.Time{d.s.Migration.DeletionTimestamp, d.s.VMI.DeletionTimestamp} {
		if at != nil {
			out = append(out, at.Time)
		}
	}
	if p := d.s.TargetPod; p != nil && p.DeletionTimestamp != nil {
		out = append(out, p.DeletionTimestamp.Time)
	}
	return out
}
