// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// endedGrace is the grace period, in seconds, a Pod is left with once its guest
// has ended: there is nothing more to wait for.
const endedGrace = 1

// Decide says what must happen next. It is deterministic and touches nothing
// but its result. The error tells of a lease annotation that cannot be
// understood; nothing may then be done to the guest.
func Decide(s Snapshot, now time.Time) (Plan, error) {
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return Plan{}, err
	}
	d := &decision{Snapshot: s, now: now, lease: lease, next: lease, plan: Plan{VMI: s.VMI.DeepCopy()}}
	d.pod = s.Launcher()

	d.claim()
	if d.claimed() {
		d.act()
	}
	if err := d.status(); err != nil {
		return Plan{}, err
	}
	return d.plan, nil
}

// decision is the working state of one Decide.
type decision struct {
	Snapshot
	now time.Time
	// lease is the one stored, next what it shall become.
	lease, next handoff.Lease
	pod         *corev1.Pod
	plan        Plan
}

// claim puts the finalizer and the first phase on a new object, as KubeVirt's
// mutating webhook does where there is one.
func (d *decision) claim() {
	vmi := d.plan.VMI
	if vmi.DeletionTimestamp != nil || vmi.IsFinal() {
		return
	}
	if !slices.Contains(vmi.Finalizers, v1.VirtualMachineInstanceFinalizer) {
		vmi.Finalizers = append(vmi.Finalizers, v1.VirtualMachineInstanceFinalizer)
	}
	if vmi.Status.Phase == v1.VmPhaseUnset {
		d.setPhase(v1.Pending)
	}
}

// claimed tells whether the stored object already carries the finalizer: only
// then may something exist that must be cleaned up after it.
func (d *decision) claimed() bool {
	return d.VMI.DeletionTimestamp != nil || slices.Contains(d.VMI.Finalizers, v1.VirtualMachineInstanceFinalizer)
}

// act chooses the actions. The order is the order of precedence.
func (d *decision) act() {
	switch {
	case len(d.Unseen) > 0:
		d.plan.Checks = append(d.plan.Checks, Check{Name: "expectations", Wait: &Wait{
			Reason: "WaitingForCache", Message: d.Unseen[0],
		}})
	case d.VMI.DeletionTimestamp != nil:
		d.deletePods()
	case d.VMI.IsFinal():
		d.deleteUseless()
	case d.pod != nil:
		d.syncUnpaused()
	case unprocessed(d.VMI) && d.unplaced():
		d.plan.Checks = evaluate(d.Snapshot)
		if d.plan.Blocked() == nil && d.Failure == nil {
			d.do(Action{Verb: CreateLauncher, Why: "the guest has no Pod"})
		}
	}
}

// deletePods deletes every Pod of a VMI that is being deleted.
func (d *decision) deletePods() {
	for _, p := range d.Pods {
		d.deletePod(p, "the VirtualMachineInstance is being deleted")
	}
}

// deletePod deletes a Pod with its own grace period while its guest may run. One
// whose guest has ended has nothing to be patient for: it is hurried, also if it
// is terminating already.
func (d *decision) deletePod(p *corev1.Pod, why string) {
	ended := unheld(d.lease)
	switch {
	case p.DeletionTimestamp == nil && ended:
		d.do(Action{Verb: DeletePod, Pod: p, GraceSeconds: ptr.To[int64](endedGrace), Why: why})
	case p.DeletionTimestamp == nil:
		d.do(Action{Verb: DeletePod, Pod: p, Why: why})
	case ended && ptr.Deref(p.DeletionGracePeriodSeconds, 0) > endedGrace:
		d.do(Action{Verb: DeletePod, Pod: p, GraceSeconds: ptr.To[int64](endedGrace), Why: "the guest has ended"})
	}
}

// deleteUseless deletes the Pods of a guest that has ended by its lease and is
// kept to be looked at: where the guest does not live inside of the Pod nothing
// else ends it, and it holds the resources of its node. A Pod that has ended by
// itself stays, with its logs.
func (d *decision) deleteUseless() {
	if d.lease.State != handoff.Released || d.lease.Epoch == 0 {
		return
	}
	for _, p := range d.Pods {
		if !PodDown(p) {
			d.deletePod(p, "the guest has ended")
		}
	}
}

// syncUnpaused mirrors the Paused condition to the Pod's readiness gate.
func (d *decision) syncUnpaused() {
	paused := vmistatus.IsTrue(d.VMI, v1.VirtualMachineInstancePaused)
	value, known := unpaused(d.pod)
	switch {
	case paused && known && value:
		d.do(Action{Verb: SetUnpaused, Pod: d.pod, Unpaused: false, Why: "the guest is paused"})
	case !paused && !value:
		d.do(Action{Verb: SetUnpaused, Pod: d.pod, Unpaused: true, Why: "the guest is not paused"})
	}
}

// unplaced tells whether no node was asked to run the guest.
func (d *decision) unplaced() bool {
	return d.lease.State == handoff.Unclaimed || d.lease.State == handoff.Claimed
}

func (d *decision) do(a Action) { d.plan.Actions = append(d.plan.Actions, a) }

func unprocessed(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Status.Phase == v1.VmPhaseUnset || vmi.Status.Phase == v1.Pending
}
