// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

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
)

// Reasons of the Paused condition, as KubeVirt spells them.
const (
	reasonPausedByUser = "PausedByUser"
	reasonPausedIOErr  = "PausedIOError"
)

// hindered tells whether something keeps the guest from running here.
func (d *decision) hindered() bool { return d.Obstacle != nil }

// synchronized tells what keeps the guest from running here, or that nothing
// does.
func (d *decision) synchronized() {
	if d.Obstacle == nil {
		d.trouble()
		return
	}
	d.again(obstacleRetry)
	reason := ReasonNotReady
	var spec *Error
	if errors.As(d.Obstacle, &spec) && spec.Field != "" {
		reason = ReasonInvalidSpec
	}
	d.outOfSync(reason, d.Obstacle.Error())
}

// trouble tells what the hypervisor refused to do for the guest, if anything.
func (d *decision) trouble() {
	if len(d.Troubles) == 0 {
		vmistatus.RemoveCondition(d.plan.VMI, v1.VirtualMachineInstanceSynchronized)
		return
	}
	d.outOfSync(ReasonSyncFailed, troublesText(d.Troubles))
}

func (d *decision) outOfSync(reason, message string) {
	vmistatus.SetCondition(d.plan.VMI, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: reason, Message: message,
	}, d.now)
}

// reflect writes what the living guest shows into the status.
func (d *decision) reflect() {
	vmi := d.plan.VMI
	if vmi.IsFinal() {
		return
	}
	if p := Phase(vmi, d.State); p != vmi.Status.Phase && p != v1.Succeeded && p != v1.Failed {
		vmistatus.SetPhase(vmi, p, d.now)
	}
	d.trouble()
	d.paused()
	if d.State.Domain == nil {
		return
	}
	live := d.State.Domain
	vmi.Status.Interfaces = Interfaces(vmi, live)
	vmi.Status.VolumeStatus = VolumeStatus(vmi, live)
	if live.OS != nil && live.OS.Type != nil && live.OS.Type.Machine != "" {
		vmi.Status.Machine = &v1.Machine{Type: live.OS.Type.Machine}
	}
	vmi.Status.SelinuxContext = selinuxContext(live)
	if d.Facts.Dir != "" {
		cond, method := LiveMigratable(vmi, d.Facts)
		vmi.Status.MigrationMethod = method
		vmistatus.SetCondition(vmi, cond, d.now)
	}
}

// selinuxContext is the context the guest's process runs in, or what KubeVirt
// writes where there is none.
func selinuxContext(live *libvirtxml.Domain) string {
	for _, l := range live.SecLabel {
		if l.Model == "selinux" && l.Label != "" {
			return l.Label
		}
	}
	return "none"
}

// paused mirrors a guest that stands still, for the reasons KubeVirt reports.
func (d *decision) paused() {
	reason, message := "", ""
	if d.State.Status == StatusPaused {
		switch d.State.Reason {
		case ReasonUser:
			reason, message = reasonPausedByUser, "the guest was paused by a user"
		case ReasonIOError:
			reason, message = reasonPausedIOErr, "the guest was paused by an error of a disk"
		}
	}
	if reason == "" {
		vmistatus.RemoveCondition(d.plan.VMI, v1.VirtualMachineInstancePaused)
		return
	}
	vmistatus.SetCondition(d.plan.VMI, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstancePaused, Status: corev1.ConditionTrue, Reason: reason, Message: message,
	}, d.now)
}
