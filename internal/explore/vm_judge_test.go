// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	v1 "kubevirt.io/api/core/v1"
)

// judgeCreated looks whether the guest of a VirtualMachine is created more often than there is cause to: each order, each end of a
// guest that is to be started again, and each deletion by its user is one.
func (m rules) judgeCreated(w *world) {
	if w.uids[slotVMI] > w.past.due {
		m.breaks("a guest is created that nobody has asked for")
	}
}

// judgeOrdered looks whether a controller is about to start or stop what its VirtualMachine, as it is stored, wants otherwise.
func (m rules) judgeOrdered(w *world, a act) {
	o, g := w.api[slotVM], w.api[slotVMI]
	switch {
	case a.slot != slotVMI || a.verb == update:
	case a.verb == create && (o == nil || o.deleting || !starts(o.vm.obj)):
		m.breaks("a guest is started although its VirtualMachine is not to run")
	case a.verb == remove && o != nil && !o.deleting && g != nil && g.uid == a.uid && !stops(o.vm.obj, g):
		m.breaks("a guest is stopped although its VirtualMachine is to run")
	}
}

// firstRequest is the request that counts.
func firstRequest(vm *v1.VirtualMachine) v1.VirtualMachineStateChangeRequest {
	if all := vm.Status.StateChangeRequests; len(all) > 0 {
		return all[0]
	}
	return v1.VirtualMachineStateChangeRequest{}
}

// starts reports whether a VirtualMachine without a guest is to get one.
func starts(vm *v1.VirtualMachine) bool {
	asked := firstRequest(vm).Action == v1.StartRequest
	switch *vm.Spec.RunStrategy {
	case v1.RunStrategyAlways, v1.RunStrategyOnce:
		return true
	case v1.RunStrategyRerunOnFailure:
		return asked || vm.Status.RunStrategy != v1.RunStrategyRerunOnFailure
	default:
		return asked && *vm.Spec.RunStrategy == v1.RunStrategyManual
	}
}

// stops reports whether the guest of a VirtualMachine may be ended.
func stops(vm *v1.VirtualMachine, g *object) bool {
	r := firstRequest(vm)
	asked := r.Action == v1.StopRequest && r.UID != nil && *r.UID == g.fullUID()
	return *vm.Spec.RunStrategy == v1.RunStrategyHalted || asked && *vm.Spec.RunStrategy != v1.RunStrategyOnce || g.vmi.obj.IsFinal()
}

// machineRight returns the violation of a VirtualMachine at rest.
func (w resting) machineRight(runs place) error {
	o, g := w.api[slotVM], w.api[slotVMI]
	var left []string
	for s := slotRev2; s < slotCount; s++ {
		if w.api[s] != nil {
			left = append(left, w.api[s].rev.obj.Name)
		}
	}
	switch {
	case o != nil && o.deleting:
		return errors.New("the VirtualMachine does not go")
	case o == nil && len(left) > 0:
		return fmt.Errorf("revisions %v are left of a VirtualMachine that is gone", left)
	case o == nil:
		return w.rightlyGone(g, runs)
	case len(o.vm.obj.Status.StateChangeRequests) > 0:
		return fmt.Errorf("requests are left: %+v", o.vm.obj.Status.StateChangeRequests)
	case g != nil && !slices.Equal(left, []string{g.vmi.obj.Status.VirtualMachineRevisionName}), len(left) > 1:
		return fmt.Errorf("there are the revisions %v", left)
	}
	return w.follows(o.vm.obj, g, runs)
}

// follows returns the violation of what the run strategy wants.
func (w resting) follows(vm *v1.VirtualMachine, g *object, runs place) error {
	strategy := *vm.Spec.RunStrategy
	switch ended := g != nil && g.vmi.obj.IsFinal() && !g.deleting; {
	case strategy == v1.RunStrategyHalted, g == nil && !starts(vm):
		return w.rightlyGone(g, runs)
	case g == nil, ended && strategy == v1.RunStrategyAlways, ended && strategy == v1.RunStrategyRerunOnFailure:
		return fmt.Errorf("the VirtualMachine is to run, and there is no guest: %s", vm.Status.PrintableStatus)
	case ended && runs == nowhere:
		return nil
	}
	if err := w.guestRight(runs); err != nil {
		return err
	}
	return applied(vm, g.vmi.obj)
}

// applied returns the violation of what has become of changes of the template.
func applied(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) error {
	waits := slices.ContainsFunc(vm.Status.Conditions, func(c v1.VirtualMachineCondition) bool {
		return c.Type == v1.VirtualMachineRestartRequired && c.Status == corev1.ConditionTrue
	})
	want := vm.Spec.Template.Spec
	switch {
	case waits != (want.Hostname != vmi.Spec.Hostname):
		return fmt.Errorf("that the VirtualMachine needs a restart is %t, with host names %q and %q", waits, want.Hostname, vmi.Spec.Hostname)
	case !waits && !equality.Semantic.DeepEqual(want.Tolerations, vmi.Spec.Tolerations):
		return errors.New("a live update is lost")
	}
	return nil
}

// restartsUnasked reports whether a guest that has ended is followed by another one without being asked for.
func (w *world) restartsUnasked(vmi *v1.VirtualMachineInstance) bool {
	o := w.api[slotVM]
	if o == nil {
		return false
	}
	s := *o.vm.obj.Spec.RunStrategy
	return s == v1.RunStrategyAlways || s == v1.RunStrategyRerunOnFailure && vmi.Status.Phase == v1.Failed
}
