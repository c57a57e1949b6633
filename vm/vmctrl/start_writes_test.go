// SPDX-License-Identifier: Apache-2.0

package vmctrl_test

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/vm"
)

// admitted makes a VM what the webhooks make of it.
func admitted(m *v1.VirtualMachine) {
	vm.Register(m)
	m.Spec.Template.Spec.Domain.Firmware = &v1.Firmware{UUID: "5d307ca9-b3ef-428c-8861-06e72d69f223"}
}

// wrote counts the writes of the controllers in the namespace by what they are, and their live reads of VMs.
func (w *world) wrote() map[string]int {
	w.t.Helper()
	out := map[string]int{}
	for _, q := range w.audit() {
		if q.User.Username == rig.UserController && q.ObjectRef.Resource != "events" && (!q.ReadOnly() || q.Verb == "get") {
			out[q.What()]++
		}
	}
	return out
}

// reports lets the VMI of a VM report what it does while its VM needs not to be changed for it.
func (w *world) reports(vmi *v1.VirtualMachineInstance) {
	w.change(vmi, false, func() {
		vmi.Status.Phase = v1.Scheduled
		vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{
			{Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionFalse, Reason: v1.GuestNotRunningReason},
			{Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionTrue},
		}
	})
}

// startWrites counts the requests of a start: revision, VMI, and a status for Starting and for Running. Conditions in between are not
// stored by themselves.
func startWrites(w *world) {
	w.start()
	vm := w.machine("vm", v1.RunStrategyAlways, admitted)
	w.eventually(func() string { return starting(w, vm) })
	vmi := w.vmi(vm)
	w.reports(vmi)
	w.phase(vmi, v1.Running)
	w.awaitStatus(vm, v1.VirtualMachineStatusRunning)
	want := map[string]int{"create controllerrevisions": 1, "create virtualmachineinstances": 1, "patch virtualmachines/status": 2, "get virtualmachines": 2}
	if got := w.wrote(); !maps.Equal(got, want) {
		w.t.Errorf("a start takes the requests %v, want %v", got, want)
	}
	if len(vm.Status.Conditions) < 1 || !vm.Status.Ready || vm.Status.ObservedGeneration != vm.Generation || vm.Status.RunStrategy != v1.RunStrategyAlways {
		w.t.Errorf("status %+v", vm.Status)
	}
}

// startUnseen starts a VM whose controller does not see the VMI that it has created: it stores what that leads to once, and takes
// nothing of it back.
func startUnseen(w *world) {
	h := &held{suffix: "/virtualmachineinstances"}
	w.start(h.wrap)
	other := w.machine("other", v1.RunStrategyHalted, admitted)
	w.awaitStatus(other, v1.VirtualMachineStatusStopped)
	release := h.hold()
	vm := w.machine("vm", v1.RunStrategyAlways, admitted)
	w.eventually(func() string { return starting(w, vm) })
	w.change(vm, false, func() { metav1.SetMetaDataAnnotation(&vm.ObjectMeta, "example.test/poked", "1") })
	w.change(other, true, func() { // is observed after it
		other.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StopRequest}}
	})
	w.eventually(func() string {
		if d := w.describe(other); len(other.Status.StateChangeRequests) > 0 {
			return d
		}
		return ""
	})
	release()
	w.phase(w.vmi(vm), v1.Running)
	w.awaitStatus(vm, v1.VirtualMachineStatusRunning)
	if got := w.wrote()["patch virtualmachines/status"]; got != 4 {
		w.t.Errorf("%d statuses were stored, want two for each VM", got)
	}
}

// othersWait is a controller beside which others always wait.
func othersWait(w *world) *world {
	w.beside = func() bool { return true }
	return w
}

// startBehindOthers starts a VM while others wait: the first that is stored is that it runs.
func startBehindOthers(w *world) {
	othersWait(w).start()
	vm := w.machine("vm", v1.RunStrategyAlways, admitted)
	vmi := w.awaitVMI(vm)
	w.reports(vmi)
	w.phase(vmi, v1.Running)
	w.awaitStatus(vm, v1.VirtualMachineStatusRunning)
	want := map[string]int{"create controllerrevisions": 1, "create virtualmachineinstances": 1, "patch virtualmachines/status": 1, "get virtualmachines": 2}
	if got := w.wrote(); !maps.Equal(got, want) {
		w.t.Errorf("a start takes the requests %v, want %v", got, want)
	}
}

// startToldLate starts a VM while others wait, and to whose VMI nothing happens: its status has a deadline.
func startToldLate(w *world) {
	othersWait(w).start()
	vm := w.machine("vm", v1.RunStrategyAlways, admitted)
	w.awaitVMI(vm)
	w.eventually(func() string { return starting(w, vm) })
	if got := w.wrote()["patch virtualmachines/status"]; got != 1 {
		w.t.Errorf("%d statuses were stored, want 1", got)
	}
}

// runsElsewhere has two controllers that both believe to lead. The VMI runs and only one of them sees it, while the other one has
// deferred that it starts.
func runsElsewhere(w *world) {
	h := &held{suffix: "/virtualmachineinstances"}
	othersWait(w).start(h.wrap)
	vm := w.machine("vm", v1.RunStrategyAlways, admitted)
	vmi := w.awaitVMI(vm)
	release := h.hold()
	stop := w.start()
	w.phase(vmi, v1.Running)
	w.awaitStatus(vm, v1.VirtualMachineStatusRunning)
	stop()
	release()
	w.change(vm, false, func() { vm.Spec.RunStrategy = new(v1.RunStrategyHalted) }) // the first one is at work, and has forgotten nothing
	w.awaitStatus(vm, v1.VirtualMachineStatusStopping)
	w.ended(vm, vmi)
	w.awaitStatus(vm, v1.VirtualMachineStatusStopped)
	w.created(1)
}

// killedBehindOthers kills a controller that defers what it stores, and has another one go on.
func killedBehindOthers(w *world) {
	killed(w, path{
		begin: func(w *world) *v1.VirtualMachine { return othersWait(w).machine("vm", v1.RunStrategyAlways, admitted) },
		arrived: func(w *world, vm *v1.VirtualMachine) string {
			if vmi := w.vmi(vm); vmi != nil && vmi.Status.Phase != v1.Running {
				w.phase(vmi, v1.Running)
			}
			if d := w.describe(vm); vm.Status.PrintableStatus != v1.VirtualMachineStatusRunning || !vm.Status.Created || !vm.Status.Ready {
				return d
			}
			return ""
		},
		created: 1,
	})
}
