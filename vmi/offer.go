// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// offer hands the VMI off to the node of its launcher Pod, until the node accepts it.
type offer struct{ *decision }

// ready reports whether the handoff to the node agent can be made. While own writes are
// unobserved, the hotplugged volumes are unknown, and the handoff includes them.
func (d offer) ready() bool {
	return d.VMI.DeletionTimestamp == nil && len(d.Pending) == 0 && PodReady(d.pod) && d.pod.Spec.NodeName != "" &&
		!d.lacksGuarantee() && !d.lacksAddress()
}

// lacksAddress reports whether the VMI requests a VSOCK CID and none is reserved for it.
func (d offer) lacksAddress() bool {
	wants := d.VMI.Spec.Domain.Devices.AutoattachVSOCK
	return wants != nil && *wants && d.CID == nil && d.VMI.Status.VSOCKCID == nil
}

// lacksGuarantee reports whether the VMI requests dedicated CPUs and its Pod is not of QoS
// class Guaranteed.
func (d offer) lacksGuarantee() bool {
	cpu := d.VMI.Spec.Domain.CPU
	return cpu != nil && cpu.DedicatedCPUPlacement && PodReady(d.pod) && d.pod.Status.QOSClass != corev1.PodQOSGuaranteed
}

// make offers the VMI to the node of its Pod: phase, lease, and the fields that stock
// KubeVirt reads instead are stored in one write. The handoff of a migration target consists of
// KubeVirt's fields alone, because no node of this cluster may start it.
//
// One write, because each half reads its own part of it: a crash between phase and lease would leave a
// VMI that a stock agent starts and that no lease protects.
func (d offer) make() error {
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

// overdue reports whether the node let an offer expire. A node that has reported what keeps it
// from accepting retries by itself, as long as it is alive. A stock agent accepts nothing: like
// KubeVirt, this controller waits for it without bound.
func (d offer) overdue() bool {
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
func (d offer) hindered() bool {
	c := problem(d).stored()
	return c != nil && c.Status == corev1.ConditionFalse
}

// withdraw withdraws an offer. That is safe: the node starts nothing before its acceptance is
// stored, and of two concurrent writes of one lease only one succeeds.
func (d offer) withdraw() error {
	message := fmt.Sprintf("node %s did not accept the VMI before %s; check the node agent, then recreate the VMI",
		d.lease.Holder, d.lease.Deadline.UTC().Format(time.RFC3339))
	if err := ownership(d).release(message); err != nil {
		return err
	}
	d.plan.VMI.Status.Reason = ReasonNodeUnresponsive
	problem(d).report(ReasonNodeUnresponsive, message)
	return nil
}
