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
)

// ReasonWaitingForCache is the reason of a Wait for own writes to be seen.
const ReasonWaitingForCache = "WaitingForCache"

// explain gathers what has to happen before the guest gets on.
func (d *decision) explain() {
	ended := d.plan.VMI.IsFinal()
	if ended {
		d.plan.Waits = nil // nothing is got ready any more
	}
	for _, w := range d.Unseen {
		d.wait(Wait{Reason: ReasonWaitingForCache, Message: "a write of this controller is not seen yet: " + w,
			Object: vmiObject(d.VMI), Until: "the cache shows the write", By: ByController})
	}
	if f := d.Failure; f != nil {
		d.wait(Wait{Reason: f.Reason, Message: f.Message, Object: vmiObject(d.VMI), Until: "it is tried again", By: ByController})
	}
	if w := d.plan.Blocked(); w != nil && !ended {
		d.wait(*w)
	} else if w := d.displaced(); w != nil {
		d.wait(*w)
	}
	d.waitForNode()
	switch {
	case d.VMI.DeletionTimestamp != nil || ended:
		d.waitForEnd()
	case d.pod == nil:
		d.waitForPod()
	default:
		d.waitForGuest()
	}
}

func (d *decision) wait(w Wait) { d.plan.Waits = append(d.plan.Waits, w) }

// waitForNode tells of a node that owes a word.
func (d *decision) waitForNode() {
	l := d.next
	if d.stockAgent(d.lease) && d.silent(l.Holder) && !d.plan.VMI.IsFinal() {
		d.wait(Wait{Reason: ReasonNodeUnresponsive, Object: "Node " + l.Holder, By: ByNode,
			Message: fmt.Sprintf("node %s gives no sign of life since %s", l.Holder, d.Silent[l.Holder].UTC().Format(time.RFC3339)),
			Until:   "the node gives a sign of life, or no Pod of the guest is left there"})
		return
	}
	if node := doubted(l); node != "" {
		w := Wait{Reason: ReasonNodeUnresponsive, Object: "Node " + node, By: ByNode,
			Message: fmt.Sprintf("whether node %s runs the guest is not known", node),
			Until:   "the node gives a sign of life, or is known not to run the guest"}
		if l.Deadline != nil {
			w.Deadline = &l.Deadline.Time
		}
		d.wait(w)
	}
}

// waitForEnd tells what is left of a guest that has ended or is to end.
func (d *decision) waitForEnd() {
	if l, err := handoff.Of(d.plan.VMI); err == nil && !unheld(l) && l.Holder != "" {
		d.wait(Wait{Reason: "GuestEnding", Object: "Node " + l.Holder, By: ByNode,
			Message: fmt.Sprintf("node %s has not reported the end of the guest", l.Holder), Until: "the node reports that the guest has ended"})
	}
	if d.VMI.DeletionTimestamp == nil {
		return
	}
	for _, late := range d.Late {
		d.wait(Wait{Reason: ReasonWaitingForCache, Message: "a creation of unknown outcome may still be carried out: " + late,
			Object: vmiObject(d.VMI), Until: "it is too late for that", By: ByController})
	}
	for _, p := range d.Pods {
		d.wait(Wait{Reason: reasonPodTerminating, Object: podObject(p), By: ByKubelet,
			Message: podObject(p) + " is not gone yet", Until: "the Pod is gone"})
	}
	foreign := slices.DeleteFunc(slices.Clone(d.plan.VMI.Finalizers), ours)
	if len(foreign) > 0 {
		d.wait(Wait{Reason: "Finalizers", Object: vmiObject(d.VMI), By: ByUser,
			Message: "others keep the object by " + strings.Join(foreign, ", "), Until: "they take their finalizers away"})
	}
}

// waitForPod tells what a guest without a Pod waits for, beside what blocks it.
func (d *decision) waitForPod() {
	switch {
	case len(d.plan.Waits) > 0:
	case d.lease.Switching():
		d.wait(Wait{Reason: "GuestMoving", Object: "Node " + d.lease.Target, By: ByNode,
			Message: fmt.Sprintf("the guest is on its way to node %s, and its Pod on node %s is gone", d.lease.Target, d.lease.Holder),
			Until:   "one of the nodes says that it has the guest"})
	case receiver(d.VMI):
		d.wait(Wait{Reason: string(v1.WaitingForSync), Object: vmiObject(d.VMI), By: ByController, Condition: v1.VirtualMachineInstanceReady,
			Message: "the guest is to be received from another cluster", Until: "a migration makes its Pod"})
	case len(d.plan.Actions) == 0:
		d.wait(Wait{Reason: reasonPodNotExists, Object: vmiObject(d.VMI), By: ByController, Condition: v1.VirtualMachineInstanceReady,
			Message: "the guest has no Pod", Until: "what this controller has written is stored"})
	}
}

// waitForGuest tells what keeps the guest in the Pod from running.
func (d *decision) waitForGuest() {
	object := podObject(d.pod)
	switch {
	case podGoingDown(d.pod):
		d.wait(Wait{Reason: reasonPodTerminating, Object: object, By: ByKubelet, Condition: v1.VirtualMachineInstanceReady,
			Message: object + " has ended or is ending", Until: "the Pod is gone or the node reports the end of the guest"})
		return
	case d.plan.VMI.Status.Phase == v1.Running:
		return // it is at rest
	case d.plan.VMI.Status.Phase == v1.Scheduled:
		d.waitForStart()
		return
	case d.plan.VMI.Status.Phase == v1.WaitingForSync:
		d.wait(Wait{Reason: string(v1.WaitingForSync), Object: vmiObject(d.VMI), By: ByUser, Condition: v1.VirtualMachineInstanceReady,
			Message: "the migration that was to bring the guest has failed", Until: "the object is deleted, or another migration brings the guest"})
		return
	case PodReady(d.pod):
		d.waitForHandOver()
		return
	}
	if reason, message := pullFailure(d.pod); reason != "" {
		d.wait(Wait{Reason: reason, Message: message, Object: object, By: ByUser, Until: "the image can be pulled"})
		return
	}
	if c := podCondition(d.pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		d.wait(Wait{Reason: c.Reason, Message: c.Message, Object: object, By: ByScheduler, Condition: podScheduledCondition,
			Until: "a node has room for the Pod"})
		return
	}
	d.wait(Wait{Reason: "ContainersNotReady", Object: object, By: ByKubelet, Condition: v1.VirtualMachineInstanceReady,
		Message: object + " is not ready for the node agent", Until: "its containers run"})
}

// waitForHandOver tells what keeps a guest whose Pod is ready from its node.
func (d *decision) waitForHandOver() {
	switch {
	case len(d.Unseen) > 0: // that is told
	case d.lacksGuarantee():
		reason, message := d.obstacle()
		d.wait(Wait{Reason: reason, Message: message, Object: podObject(d.pod), By: ByUser, Until: "the guest is made anew"})
	case d.lacksAddress():
		d.wait(Wait{Reason: "VSOCKAddressMissing", Object: vmiObject(d.VMI), By: ByController, Condition: v1.VirtualMachineInstanceReady,
			Message: "spec.domain.devices.autoattachVSOCK: no address is reserved for the guest", Until: "an address is free and reserved"})
	default:
		d.wait(Wait{Reason: reasonGuestNotRunning, Object: podObject(d.pod), By: ByController, Condition: v1.VirtualMachineInstanceReady,
			Message: podObject(d.pod) + " is ready and the guest is not handed over yet", Until: "what this controller has written is stored"})
	}
}

// waitForStart tells what a guest waits for that its node was asked to run.
func (d *decision) waitForStart() {
	node := d.plan.VMI.Status.NodeName
	w := Wait{Reason: reasonGuestNotRunning, Object: "Node " + node, By: ByNode, Condition: v1.VirtualMachineInstanceReady,
		Message: fmt.Sprintf("node %s has not reported the guest as running", node), Until: "the node reports it"}
	l, hindrance := d.next, conditionOf(d.plan.VMI, v1.VirtualMachineInstanceSynchronized)
	hindered := hindrance != nil && hindrance.Status == corev1.ConditionFalse
	switch {
	case l.State != handoff.Offered:
	case d.stockAgent(d.lease):
		w.Message = fmt.Sprintf("node %s, which KubeVirt's own agent reports for, has not reported the guest as running; it is waited for without bound", node)
	case l.Deadline != nil:
		w.Message = fmt.Sprintf("node %s has not accepted the guest", node)
		if !hindered || d.silent(l.Holder) { // one that says why it cannot tries again for as long as it is alive
			w.Deadline = &l.Deadline.Time
		}
	}
	if hindered {
		w.Reason, w.Message, w.Condition = hindrance.Reason, hindrance.Message, ""
		w.Until = "the node gets over it, which it tries without bound, or the guest is deleted"
	}
	d.wait(w)
}

// vmiObject names a VirtualMachineInstance as waits do.
func vmiObject(vmi *v1.VirtualMachineInstance) string {
	return "VirtualMachineInstance " + vmi.Namespace + "/" + vmi.Name
}
