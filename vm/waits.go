// SPDX-License-Identifier: Apache-2.0

package vm

import (
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// waits is what the VM waits for.
type waits struct{ *decision }

// collect lists it: own writes, a failure, what the stages found, the VMI, and a restart.
func (d waits) collect() {
	add := func(w Wait) { d.plan.Waits = append(d.plan.Waits, w) }
	for _, w := range d.Pending {
		add(Wait{Reason: "WaitingForCache", Message: "waiting for the cache to observe this controller's write: " + string(w.Verb) + " " + w.Name,
			Object: vmObject(d.VM), Until: "the cache observes the write", Responsible: handoff.ByController})
	}
	if f := d.currentFailure(); f != nil {
		by := handoff.ByController
		if d.Failure == nil {
			by = handoff.ByUser
		}
		add(Wait{Reason: f.Reason, Message: f.Message, Object: vmObject(d.VM), Until: "the cause is removed", Responsible: by})
	}
	d.plan.Waits = append(d.plan.Waits, d.found...)
	if d.vmi != nil && d.vmi.Status.Phase != v1.Running {
		add(Wait{Reason: "VMINotRunning", Object: vmiObject(d.vmi), Responsible: handoff.ByController,
			Message: "the VirtualMachineInstance is in phase " + string(d.vmi.Status.Phase), Until: "its phase changes"})
	}
	if conditionTrue(d.plan.VM, v1.VirtualMachineRestartRequired) {
		add(Wait{Reason: string(v1.VirtualMachineRestartRequired), Object: vmObject(d.VM), Responsible: handoff.ByUser,
			Message: "a change of the template needs a restart", Until: "the VirtualMachine is restarted"})
	}
}
