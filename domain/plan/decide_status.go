// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// eventIOError is KubeVirt's event reason for a VMI that was paused by a disk error.
const eventIOError = "IOerror"

// report writes conditions and status.
type report struct{ *decision }

// observation returns the input of the status.
func (d report) observation() status.Observation {
	return status.Observation{
		Node: d.Node, State: d.State, Guest: d.Guest, Facts: d.Facts, Credentials: d.Credentials, Failures: d.Failures,
		Checksums: d.Checksums,
	}
}

// reflect updates the status of a running domain, and emits events about the changes.
func (d report) reflect() {
	status.Mirror(d.plan.VMI, d.observation(), d.now)
	if d.VMI.IsFinal() {
		return
	}
	if d.PrepareError != nil {
		d.synchronized()
	}
	if len(d.Facts.Missing) > 0 {
		d.requeueAfter(prepareRetry)
	}
	d.emitPause()
	d.emitVolumes()
}

// synchronized sets the condition Synchronized to the PrepareError or the failures, or removes
// it.
func (d report) synchronized() {
	if d.PrepareError == nil {
		status.FailureStatus(d.plan.VMI, d.Failures, d.now)
		return
	}
	if d.settling() {
		d.requeueAfter(settleRetry)
		return
	}
	d.requeueAfter(prepareRetry)
	reason := status.ReasonNotReady
	var spec *convert.Error
	switch {
	case errors.Is(d.PrepareError, errUnproven):
		reason = status.ReasonUnproven
	case errors.As(d.PrepareError, &spec) && spec.Field != "":
		reason = status.ReasonInvalidSpec
	}
	d.outOfSync(reason, d.PrepareError.Error())
}

// hindered sets the condition Synchronized, and reports whether the VMI cannot run here. A
// start also requires the hotplugged volumes.
func (d report) hindered(start bool) bool {
	d.synchronized()
	return d.PrepareError != nil || start && !d.ready()
}

// ready reports whether the hotplugged volumes of a VMI that is to start are mounted on the
// node, and updates their status.
func (d report) ready() bool {
	o := d.observation()
	o.State = nil // a domain of an earlier attempt does not run
	d.plan.VMI.Status.VolumeStatus = status.VolumeStatus(d.VMI, o)
	for i := range d.VMI.Status.VolumeStatus {
		s := &d.VMI.Status.VolumeStatus[i]
		if status.Hotplugged(d.VMI, s) && status.InSpec(d.VMI, s.Name) && !status.InUse(s.Phase) {
			d.requeueAfter(settleRetry)
			if d.plan.VMI.Status.SelinuxContext == "" {
				// Their Pods are not created without a context, nor is the domain without them.
				d.plan.VMI.Status.SelinuxContext = status.NoSELinux
			}
			return false
		}
	}
	return true
}

func (d report) outOfSync(reason, message string) {
	if c := vmistatus.Condition(d.VMI, v1.VirtualMachineInstanceSynchronized); c != nil && c.Reason == reason {
		message = vmistatus.Steady(c.Message, message)
	}
	vmistatus.SetCondition(d.plan.VMI, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: reason, Message: message,
	}, d.now)
}

// emitPause emits an event when a disk error has paused the VMI.
func (d report) emitPause() {
	was, is := vmistatus.Condition(d.VMI, v1.VirtualMachineInstancePaused), vmistatus.Condition(d.plan.VMI, v1.VirtualMachineInstancePaused)
	if is != nil && is.Reason == status.ReasonPausedIOError && (was == nil || was.Reason != is.Reason) {
		d.emit(true, eventIOError, is.Message)
	}
}

// emitVolumes emits events about new phases and new failures of volumes.
func (d report) emitVolumes() {
	was := map[string]v1.VolumeStatus{}
	for _, s := range d.VMI.Status.VolumeStatus {
		was[s.Name] = s
	}
	for _, s := range d.plan.VMI.Status.VolumeStatus {
		old := was[s.Name]
		failed := s.Reason == status.ReasonHotplugFailed || s.Reason == status.ReasonResizeFailed
		if s.Phase != old.Phase && s.Reason != "" || failed && s.Reason != old.Reason {
			d.emit(failed, s.Reason, s.Message)
		}
	}
}
