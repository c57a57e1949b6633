// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmistatus"
)

// Reasons of the Synchronized condition that a node sets.
const (
	// ReasonInvalidSpec: the spec asks for something no domain can be, or that
	// is not supported; the message names field and remedy.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonSyncFailed: the hypervisor refused something; it is tried again.
	ReasonSyncFailed = "SyncFailed"
	// ReasonNotReady: something the guest needs on the node is missing.
	ReasonNotReady = "NodeNotReady"
	// ReasonUnproven: no launcher Pod on the node shows that a controller meant the
	// guest for it; see [Sight.Proof].
	ReasonUnproven = "NoLauncherPod"
	// ReasonUnresponsive: the hypervisor does not answer about the guest.
	ReasonUnresponsive = "GuestUnresponsive"
)

// noticeIOError is KubeVirt's event reason for a guest that a disk has stopped.
const noticeIOError = "IOerror"

// observation is what the status reflects.
func (d *decision) observation() Observation {
	return Observation{
		Node: d.Node, State: d.State, Guest: d.Guest, Facts: d.Facts, Credentials: d.Credentials, Troubles: d.Troubles,
	}
}

// reflect writes what the living guest shows into the status, and tells what is
// new about it.
func (d *decision) reflect() {
	mirror(d.plan.VMI, d.observation(), d.now)
	if d.VMI.IsFinal() {
		return
	}
	if d.Obstacle != nil {
		d.synchronized()
	}
	d.tellPause()
	d.tellVolumes()
}

// synchronized tells what keeps the guest from running here as it should, or that
// nothing does.
func (d *decision) synchronized() {
	if d.Obstacle == nil {
		troubleStatus(d.plan.VMI, d.Troubles, d.now)
		return
	}
	d.again(obstacleRetry)
	reason := ReasonNotReady
	var spec *Error
	switch {
	case errors.Is(d.Obstacle, errUnproven):
		reason = ReasonUnproven
	case errors.As(d.Obstacle, &spec) && spec.Field != "":
		reason = ReasonInvalidSpec
	}
	d.outOfSync(reason, d.Obstacle.Error())
}

// hindered tells what keeps the guest from running here, and whether anything does.
// One that is to be started now needs its volumes as well.
func (d *decision) hindered(start bool) bool {
	d.synchronized()
	return d.Obstacle != nil || start && !d.ready()
}

// ready tells whether the hotplugged volumes that the guest is to start with have
// arrived on the node, and notes those that just have.
func (d *decision) ready() bool {
	o := d.observation()
	o.State = nil // what is left of an earlier try is no guest
	d.plan.VMI.Status.VolumeStatus = VolumeStatus(d.VMI, o)
	for i := range d.VMI.Status.VolumeStatus {
		s := &d.VMI.Status.VolumeStatus[i]
		if hotplugged(d.VMI, s) && inSpec(d.VMI, s.Name) && !inUse(s.Phase) {
			d.again(time.Second)
			if d.plan.VMI.Status.SelinuxContext == "" {
				// Their Pods are not made before it is known, and the guest is not before they are.
				d.plan.VMI.Status.SelinuxContext = noSELinux
			}
			return false
		}
	}
	return true
}

func (d *decision) outOfSync(reason, message string) {
	if c := conditionOf(d.VMI, v1.VirtualMachineInstanceSynchronized); c != nil && c.Reason == reason {
		message = steady(c.Message, message)
	}
	vmistatus.SetCondition(d.plan.VMI, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: reason, Message: message,
	}, d.now)
}

// tellPause tells of a guest that an error of a disk has stopped.
func (d *decision) tellPause() {
	was, is := conditionOf(d.VMI, v1.VirtualMachineInstancePaused), conditionOf(d.plan.VMI, v1.VirtualMachineInstancePaused)
	if is != nil && is.Reason == ReasonPausedIOError && (was == nil || was.Reason != is.Reason) {
		d.tell(true, noticeIOError, is.Message)
	}
}

// tellVolumes tells of hotplugged volumes that have come a step further, and of
// those that cannot.
func (d *decision) tellVolumes() {
	was := map[string]v1.VolumeStatus{}
	for _, s := range d.VMI.Status.VolumeStatus {
		was[s.Name] = s
	}
	for _, s := range d.plan.VMI.Status.VolumeStatus {
		old := was[s.Name]
		failed := s.Reason == ReasonHotplugFailed || s.Reason == ReasonResizeFailed
		if s.Phase != old.Phase && s.Reason != "" || failed && s.Reason != old.Reason {
			d.tell(failed, s.Reason, s.Message)
		}
	}
}

func conditionOf(vmi *v1.VirtualMachineInstance, t v1.VirtualMachineInstanceConditionType) *v1.VirtualMachineInstanceCondition {
	for i := range vmi.Status.Conditions {
		if vmi.Status.Conditions[i].Type == t {
			return &vmi.Status.Conditions[i]
		}
	}
	return nil
}
