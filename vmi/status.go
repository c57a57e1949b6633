// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// deprecatedFinalizer is the unqualified finalizer of old KubeVirt releases.
const deprecatedFinalizer = "foregroundDeleteVirtualMachine"

// status computes what the object shall say.
func (d *decision) status() error {
	d.activePods()
	d.ready()
	if err := d.phase(); err != nil {
		return err
	}
	d.synchronized()
	d.finalizers()
	return nil
}

// activePods records on which node each Pod of the guest is.
func (d *decision) activePods() {
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
	switch d.VMI.Status.Phase {
	case v1.VmPhaseUnset, v1.Pending:
		return d.fromPending()
	case v1.Scheduling:
		return d.fromScheduling()
	case v1.Scheduled, v1.Running:
		// The Pod is what the guest lives in: without it the guest is lost.
		if d.pod == nil && len(d.Unseen) == 0 {
			d.setPhase(v1.Failed)
		}
		return nil
	case v1.Succeeded, v1.Failed, v1.WaitingForSync:
		return nil
	default:
		return fmt.Errorf("vmi: VirtualMachineInstance %s/%s: status.phase %q is unknown; correct it or delete the object",
			d.VMI.Namespace, d.VMI.Name, d.VMI.Status.Phase)
	}
}

func (d *decision) fromPending() error {
	switch {
	case d.pod != nil:
		d.setPhase(v1.Scheduling)
	case d.VMI.DeletionTimestamp != nil:
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

// handOver offers the guest to the node of its Pod: phase, label, node name
// and lease go in one write, the label being what a stock virt-handler selects
// by.
func (d *decision) handOver() error {
	vmi, node := d.plan.VMI, d.pod.Spec.NodeName
	within := d.Config.AcceptWithin
	if within == 0 {
		within = DefaultAcceptWithin
	}
	if err := d.step(handoff.Event{Kind: handoff.Offer, Epoch: d.lease.Epoch, Node: node, Within: within}); err != nil {
		return err
	}
	d.setPhase(v1.Scheduled)
	if vmi.Labels == nil {
		vmi.Labels = map[string]string{}
	}
	vmi.Labels[v1.NodeNameLabel] = node
	vmi.Status.NodeName = node
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
	if d.lease.State != handoff.Unclaimed && d.lease.State != handoff.Offered {
		return nil
	}
	return d.step(handoff.Event{Kind: handoff.Release, Epoch: d.lease.Epoch, Message: why})
}

func (d *decision) step(e handoff.Event) error {
	lease, err := handoff.Step(d.lease, e, d.now)
	if err != nil {
		return fmt.Errorf("vmi: hand over %s/%s: %w", d.VMI.Namespace, d.VMI.Name, err)
	}
	return handoff.Put(d.plan.VMI, lease)
}

// finalizers lets the object go once the guest has ended, its phase says so
// and no Pod of it is left.
func (d *decision) finalizers() {
	if !d.VMI.IsFinal() || len(d.Pods) > 0 || len(d.Unseen) > 0 || !d.guestEnded() {
		return
	}
	d.plan.VMI.Finalizers = slices.DeleteFunc(d.plan.VMI.Finalizers, func(f string) bool {
		return f == v1.VirtualMachineInstanceFinalizer || f == deprecatedFinalizer
	})
}

func (d *decision) setPhase(p v1.VirtualMachineInstancePhase) {
	vmistatus.SetPhase(d.plan.VMI, p, d.now)
}
