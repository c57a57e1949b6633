// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// ReasonWaitingForCache is the reason of a Wait for the cache to observe own writes.
const ReasonWaitingForCache = "WaitingForCache"

// waits lists what the VMI waits for.
type waits struct{ *decision }

// collect collects the waits.
//
// They are collected from the plan and not from the snapshot alone: what an action of this pass removes
// is not waited for any more. The first wait is the one that conditions and metrics show, so what blocks
// comes before what merely takes time, and this controller's own obstacles come first of all: as long as
// the cache does not show its writes, the rest may be out of date.
func (d waits) collect() {
	ended := d.plan.VMI.IsFinal()
	if ended {
		d.plan.Waits = nil // nothing is prepared anymore
	}
	for _, w := range d.Pending {
		d.wait(Wait{Reason: ReasonWaitingForCache, Message: "waiting for the cache to observe this controller's write: " + w,
			Object: vmiObject(d.VMI), Until: "the cache observes the write", Responsible: handoff.ByController})
	}
	if f := d.Failure; f != nil {
		d.wait(Wait{Reason: f.Reason, Message: f.Message, Object: vmiObject(d.VMI), Until: "the next retry", Responsible: handoff.ByController})
	}
	if w := d.plan.Blocked(); w != nil && !ended {
		d.wait(*w)
		// Only without a check that blocks: that one explains why there is no Pod better.
	} else if w := creation(d).displaced(); w != nil {
		d.wait(*w)
	}
	d.forNode()
	switch {
	case d.VMI.DeletionTimestamp != nil || ended:
		d.forEnd()
	// Without a Pod, with one, at the end: what is missing is asked for in the order in which the life of
	// a VMI runs, and nothing is reported that a later step would wait for.
	case d.pod == nil:
		d.forPod()
	default:
		d.forVMI()
	}
}

// forNode adds the wait for a node whose report is missing.
func (d waits) forNode() {
	l := d.next
	if d.stockAgent(d.lease) && d.silent(l.Holder) && !d.plan.VMI.IsFinal() {
		d.wait(Wait{Reason: ReasonNodeUnresponsive, Object: "Node " + l.Holder, Responsible: handoff.ByNode,
			Message: fmt.Sprintf("node %s has been unresponsive since %s", l.Holder, d.Silent[l.Holder].UTC().Format(time.RFC3339)),
			Until:   "the node sends a heartbeat, or it has no Pod of the VirtualMachineInstance"})
		return
	}
	if node := doubted(l); node != "" {
		w := Wait{Reason: ReasonNodeUnresponsive, Object: "Node " + node, Responsible: handoff.ByNode,
			Message: fmt.Sprintf("it is unknown whether node %s runs the VirtualMachineInstance", node),
			Until:   "the node sends a heartbeat, or is known not to run the VirtualMachineInstance"}
		if l.Deadline != nil {
			w.Deadline = &l.Deadline.Time
		}
		d.wait(w)
	}
}

// forEnd adds the waits of a VMI that is in a final phase or being deleted.
func (d waits) forEnd() {
	if l, err := handoff.Of(d.plan.VMI); err == nil && !unheld(l) && l.Holder != "" {
		d.wait(Wait{Reason: "GuestEnding", Object: "Node " + l.Holder, Responsible: handoff.ByNode,
			Message: fmt.Sprintf("node %s has not reported the end of the domain", l.Holder), Until: "the node reports the end of the domain"})
	}
	if d.VMI.DeletionTimestamp == nil {
		return
	}
	for _, late := range d.Late {
		d.wait(Wait{Reason: ReasonWaitingForCache, Message: "a create request with unknown outcome may still be executed: " + late,
			Object: vmiObject(d.VMI), Until: "the request has expired", Responsible: handoff.ByController})
	}
	for _, p := range d.Pods {
		d.wait(Wait{Reason: v1.PodTerminatingReason, Object: podObject(p), Responsible: handoff.ByKubelet,
			Message: podObject(p) + " is not deleted yet", Until: "the Pod is deleted"})
	}
	// Last: a finalizer of another program may wait for the Pods above, and goes with them.
	foreign := slices.DeleteFunc(slices.Clone(d.plan.VMI.Finalizers), ours)
	if len(foreign) > 0 {
		d.wait(Wait{Reason: "Finalizers", Object: vmiObject(d.VMI), Responsible: handoff.ByUser,
			Message: "deletion blocked by finalizers " + strings.Join(foreign, ", "), Until: "the finalizers are removed"})
	}
}

// forPod adds what a VMI without a Pod waits for, unless something blocks it.
func (d waits) forPod() {
	switch {
	// Whatever blocks the creation of the Pod is listed already.
	case len(d.plan.Waits) > 0:
	case d.lease.Switching():
		d.wait(Wait{Reason: "GuestMoving", Object: "Node " + d.lease.Target, Responsible: handoff.ByNode,
			Message: fmt.Sprintf("the VirtualMachineInstance is migrating to node %s, and its Pod on node %s is gone", d.lease.Target, d.lease.Holder),
			Until:   "one of the nodes reports that it runs the domain"})
	case receiver(d.VMI):
		d.wait(Wait{Reason: string(v1.WaitingForSync), Object: vmiObject(d.VMI), Responsible: handoff.ByController, Condition: v1.VirtualMachineInstanceReady,
			Message: "the VirtualMachineInstance is the target of a migration from another cluster", Until: "the migration creates the target Pod"})
	case len(d.plan.Actions) == 0:
		d.wait(Wait{Reason: v1.PodNotExistsReason, Object: vmiObject(d.VMI), Responsible: handoff.ByController, Condition: v1.VirtualMachineInstanceReady,
			Message: "the VirtualMachineInstance has no Pod", Until: "this controller's write is stored"})
	}
}

// forVMI adds what keeps the VMI in its Pod from running.
func (d waits) forVMI() {
	object := podObject(d.pod)
	switch {
	case podGoingDown(d.pod):
		d.wait(Wait{Reason: v1.PodTerminatingReason, Object: object, Responsible: handoff.ByKubelet, Condition: v1.VirtualMachineInstanceReady,
			Message: object + " has ended or is terminating", Until: "the Pod is deleted or the node reports the end of the domain"})
		return
	case d.plan.VMI.Status.Phase == v1.Running:
		return // nothing is pending
	case d.plan.VMI.Status.Phase == v1.Scheduled:
		d.forStart()
		return
	case d.plan.VMI.Status.Phase == v1.WaitingForSync:
		d.wait(Wait{Reason: string(v1.WaitingForSync), Object: vmiObject(d.VMI), Responsible: handoff.ByUser, Condition: v1.VirtualMachineInstanceReady,
			Message: "the incoming migration has failed", Until: "the object is deleted, or another migration succeeds"})
		return
	case PodReady(d.pod):
		d.forHandoff()
		return
	}
	if reason, message := pullFailure(d.pod); reason != "" {
		d.wait(Wait{Reason: reason, Message: message, Object: object, Responsible: handoff.ByUser, Until: "the image can be pulled"})
		return
	}
	if c := podCondition(d.pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		d.wait(Wait{Reason: c.Reason, Message: c.Message, Object: object, Responsible: handoff.ByScheduler, Condition: podScheduledCondition,
			Until: "a node satisfies the Pod's requirements"})
		return
	}
	d.wait(Wait{Reason: "ContainersNotReady", Object: object, Responsible: handoff.ByKubelet, Condition: v1.VirtualMachineInstanceReady,
		Message: object + " is not ready for the node agent", Until: "its containers run"})
}

// forHandoff adds what blocks the handoff of a VMI whose Pod is ready.
func (d waits) forHandoff() {
	switch {
	case len(d.Pending) > 0: // already reported
	case offer(d).lacksGuarantee():
		reason, message := problem(d).current()
		d.wait(Wait{Reason: reason, Message: message, Object: podObject(d.pod), Responsible: handoff.ByUser, Until: "the VirtualMachineInstance is recreated"})
	case offer(d).lacksAddress():
		d.wait(Wait{Reason: "VSOCKAddressMissing", Object: vmiObject(d.VMI), Responsible: handoff.ByController, Condition: v1.VirtualMachineInstanceReady,
			Message: "spec.domain.devices.autoattachVSOCK: no VSOCK CID is reserved", Until: "a VSOCK CID is available and reserved"})
	default:
		d.wait(Wait{Reason: v1.GuestNotRunningReason, Object: podObject(d.pod), Responsible: handoff.ByController, Condition: v1.VirtualMachineInstanceReady,
			Message: podObject(d.pod) + " is ready, waiting for the handoff", Until: "this controller's write is stored"})
	}
}

// forStart adds what a VMI waits for after its handoff.
func (d waits) forStart() {
	node := d.plan.VMI.Status.NodeName
	w := Wait{Reason: v1.GuestNotRunningReason, Object: "Node " + node, Responsible: handoff.ByNode, Condition: v1.VirtualMachineInstanceReady,
		Message: fmt.Sprintf("node %s has not reported the VirtualMachineInstance as running", node), Until: "the node reports it as running"}
	l, hindrance := d.next, vmistatus.Condition(d.plan.VMI, v1.VirtualMachineInstanceSynchronized)
	hindered := hindrance != nil && hindrance.Status == corev1.ConditionFalse
	switch {
	case l.State != handoff.Offered:
	case d.stockAgent(d.lease):
		w.Message = fmt.Sprintf("node %s, which runs stock virt-handler, has not reported the VirtualMachineInstance as running; there is no deadline", node)
	case l.Deadline != nil:
		w.Message = fmt.Sprintf("node %s has not accepted the VirtualMachineInstance", node)
		if !hindered || d.silent(l.Holder) { // a node that reports the cause retries as long as it is alive
			w.Deadline = &l.Deadline.Time
		}
	}
	if hindered {
		w.Reason, w.Message, w.Condition = hindrance.Reason, hindrance.Message, ""
		w.Until = "a retry of the node succeeds, or the VirtualMachineInstance is deleted"
	}
	d.wait(w)
}

// vmiObject returns the Wait.Object of a VirtualMachineInstance.
func vmiObject(vmi *v1.VirtualMachineInstance) string {
	return "VirtualMachineInstance " + vmi.Namespace + "/" + vmi.Name
}
