// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// deprecatedFinalizer is the unqualified finalizer of old KubeVirt releases.
const deprecatedFinalizer = "foregroundDeleteVirtualMachine"

// status computes what the object shall say.
func (d *decision) status() error {
	d.ready()
	silent, err := d.silence()
	if err == nil && !silent {
		err = d.phase()
	}
	if err != nil {
		return err
	}
	d.activePods()
	d.synchronized()
	d.finalizers()
	return nil
}

// activePods records on which node each Pod of the guest is. While the Pod is
// being placed nobody asks: that waits for the write that hands the guest over.
func (d *decision) activePods() {
	if d.pod == nil && len(d.Unseen) > 0 {
		return
	}
	if d.VMI.Status.Phase == v1.Scheduling && d.plan.VMI.Status.Phase == v1.Scheduling && d.VMI.Status.ActivePods != nil {
		return
	}
	active := map[types.UID]string{}
	for _, p := range d.Pods {
		active[p.UID] = p.Spec.NodeName
	}
	if len(active) == 0 && d.VMI.Status.ActivePods == nil {
		return
	}
	if !maps.Equal(active, d.VMI.Status.ActivePods) {
		d.plan.VMI.Status.ActivePods = active
	}
}

// phase is the transition table of the phases this controller owns; Scheduled
// and Running go on under the node agent.
func (d *decision) phase() error {
	if d.forgotten() {
		d.setPhase(v1.Scheduled)
		return handoff.Put(d.plan.VMI, d.lease)
	}
	switch d.VMI.Status.Phase {
	case v1.VmPhaseUnset, v1.Pending:
		return d.fromPending()
	case v1.Scheduling:
		return d.fromScheduling()
	case v1.Scheduled, v1.Running:
		return d.fromScheduled()
	case v1.Succeeded, v1.Failed, v1.WaitingForSync:
		return nil
	default:
		return fmt.Errorf("vmi: VirtualMachineInstance %s/%s: status.phase %q is unknown; correct it or delete the object",
			d.VMI.Namespace, d.VMI.Name, d.VMI.Status.Phase)
	}
}

// forgotten tells whether the object has lost its status and a node holds the guest
// by the lease: it was written over by somebody who did not know better.
func (d *decision) forgotten() bool {
	switch d.VMI.Status.Phase {
	case v1.VmPhaseUnset, v1.Pending, v1.Scheduling:
		return d.lease.Holder != ""
	}
	return false
}

func (d *decision) fromPending() error {
	switch {
	case d.pod != nil:
		d.setPhase(v1.Scheduling)
		return d.step(handoff.Event{Kind: handoff.Claim})
	case d.VMI.DeletionTimestamp != nil && len(d.Unseen) == 0:
		d.setPhase(v1.Failed)
		return d.release("deleted before it had a Pod")
	}
	return nil
}

func (d *decision) fromScheduling() error {
	switch {
	case d.pod == nil && len(d.Unseen) > 0:
		return nil
	case d.pod == nil || podGoingDown(d.pod) && d.VMI.DeletionTimestamp == nil:
		d.setPhase(v1.Failed)
		return d.release("its Pod ended before the guest was handed over")
	case PodReady(d.pod) && d.pod.Spec.NodeName != "" && d.VMI.DeletionTimestamp == nil:
		return d.handOver()
	default:
		d.podScheduled()
		return nil
	}
}

// fromScheduled watches over a guest that was handed over: the Pod is what it
// lives in, without it the guest is lost.
func (d *decision) fromScheduled() error {
	switch {
	case len(d.Unseen) > 0:
		return nil
	case d.pod == nil:
		d.setPhase(v1.Failed)
		return d.release("its Pod vanished before its node accepted it")
	case d.VMI.Status.Phase == v1.Scheduled && d.lease.State == handoff.Offered &&
		d.lease.Deadline != nil && d.VMI.DeletionTimestamp == nil:
		return d.overdue()
	default:
		return nil
	}
}

// overdue takes an offer back that its node let pass. That is safe: the node
// starts nothing before its acceptance is stored, and of two writes to one
// version of the object only one is. A node that has told what keeps it from
// accepting is alive and tries again by itself.
func (d *decision) overdue() error {
	if !d.lease.Overdue(d.now) {
		d.requeue(d.lease.Deadline.Time)
		return nil
	}
	if c := d.synchronizedNow(); c != nil && c.Status == corev1.ConditionFalse {
		return nil
	}
	message := fmt.Sprintf("node %s did not accept the guest until %s; see whether its node agent runs, then start the guest anew",
		d.lease.Holder, d.lease.Deadline.UTC().Format(time.RFC3339))
	if err := d.release(message); err != nil {
		return err
	}
	d.setPhase(v1.Failed)
	d.plan.VMI.Status.Reason = ReasonNodeUnresponsive
	d.complain(ReasonNodeUnresponsive, message)
	return nil
}

// handOver offers the guest to the node of its Pod: phase, lease, and what stock
// KubeVirt reads in its place go in one write.
func (d *decision) handOver() error {
	vmi, node := d.plan.VMI, d.pod.Spec.NodeName
	within := d.Config.AcceptWithin
	if within == 0 {
		within = DefaultAcceptWithin
	}
	if err := d.step(handoff.Event{Kind: handoff.Offer, Node: node, Within: within}); err != nil {
		return err
	}
	d.setPhase(v1.Scheduled)
	if qos := d.pod.Status.QOSClass; qos != "" {
		vmi.Status.QOSClass = &qos
	}
	if d.pod.Annotations[v1.MigrationTransportUnixAnnotation] == "true" {
		vmi.Status.MigrationTransport = v1.MigrationTransportUnix
	}
	for i := range d.pod.Spec.Containers {
		if c := &d.pod.Spec.Containers[i]; c.Name == computeContainer {
			vmi.Status.LauncherContainerImageVersion = c.Image
		}
	}
	vmistatus.RemoveCondition(vmi, podScheduledCondition)
	return nil
}

// release ends a lease that no node has accepted.
func (d *decision) release(why string) error {
	switch d.lease.State {
	case handoff.Unclaimed, handoff.Claimed, handoff.Offered:
		return d.step(handoff.Event{Kind: handoff.Release, Message: why})
	}
	return nil
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

// finalizers lets the object go once the guest has ended, its phase says so
// and no Pod of it is left.
func (d *decision) finalizers() {
	if d.leaves() {
		d.plan.VMI.Finalizers = slices.DeleteFunc(d.plan.VMI.Finalizers, ours)
	}
}

// ours tells whether a finalizer is the one this controller puts on the object, by
// its name of today or of before.
func ours(finalizer string) bool {
	return finalizer == v1.VirtualMachineInstanceFinalizer || finalizer == deprecatedFinalizer
}

func (d *decision) setPhase(p v1.VirtualMachineInstancePhase) {
	vmistatus.SetPhase(d.plan.VMI, p, d.now)
}
