// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"slices"

	v1 "kubevirt.io/api/core/v1"
)

// stateChanges are the requests to start and stop the VMI. The first one counts, others wait for it.
type stateChanges []v1.VirtualMachineStateChangeRequest

// stop reports whether a VMI is to be stopped; false if there is none.
func (r stateChanges) stop(vmi *v1.VirtualMachineInstance) bool {
	return len(r) > 0 && r[0].Action == v1.StopRequest && r[0].UID != nil && vmi != nil && *r[0].UID == vmi.UID
}

// start reports whether a VMI is to be started.
func (r stateChanges) start() bool { return len(r) > 0 && r[0].Action == v1.StartRequest }

// startPaused reports whether a VMI is to be started with a paused guest.
func (r stateChanges) startPaused() bool {
	return r.start() && r[0].Data[v1.StartRequestDataPausedKey] == v1.StartRequestDataPausedTrue
}

// startQueued reports whether a start is requested at any place.
func (r stateChanges) startQueued() bool {
	return slices.ContainsFunc(r, func(c v1.VirtualMachineStateChangeRequest) bool { return c.Action == v1.StartRequest })
}

// fulfilled reports whether the first request has been carried out on the VMI, nil if there is none.
func (r stateChanges) fulfilled(vmi *v1.VirtualMachineInstance, s v1.VirtualMachineRunStrategy) bool {
	if len(r) == 0 {
		return false
	}
	switch r[0].Action {
	case v1.StopRequest:
		return !r.stop(vmi)
	case v1.StartRequest:
		return running(vmi) || r.overtaken(vmi, s)
	default: // an unknown request would block all that follow
		return true
	}
}

// overtaken reports whether the VMI that was started for the first request has ended before it was seen to run, and is not to be
// started again: the request would block all that follow, or start another VMI.
func (r stateChanges) overtaken(vmi *v1.VirtualMachineInstance, s v1.VirtualMachineRunStrategy) bool {
	if !r.start() || vmi == nil || vmi.DeletionTimestamp != nil || !vmi.IsFinal() {
		return false
	}
	return s == v1.RunStrategyManual || s == v1.RunStrategyRerunOnFailure && vmi.Status.Phase == v1.Succeeded
}
