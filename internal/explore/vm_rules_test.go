// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"
)

// TestMachine_Violations looks at worlds of a VirtualMachine in which something is wrong: at rest, or in what is about to be done.
func TestMachine_Violations(t *testing.T) {
	edited := func(w *world, change func(*v1.VirtualMachine)) {
		vm := w.api[slotVM].vm.obj.DeepCopy()
		change(vm)
		w.store(w.api[slotVM].with(func(o *object) { o.vm = w.known.principal(vm) }))
	}
	for name, tc := range map[string]struct {
		spoil func(*machine, *world)
		want  string
	}{
		"all is well": {spoil: func(*machine, *world) {}},
		"no guest":    {func(_ *machine, w *world) { w.nodes[nodeA].domain = noDomain; w.vanish(w.api[slotVMI]) }, "is to run, and there is no guest"},
		"it is halted": {func(_ *machine, w *world) {
			edited(w, func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = new(v1.RunStrategyHalted) })
		}, "the object does not go"},
		"a request is left": {func(_ *machine, w *world) {
			edited(w, func(vm *v1.VirtualMachine) {
				vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StartRequest}}
			})
		}, "requests are left"},
		"its revision is gone": {func(_ *machine, w *world) { w.vanish(w.api[slotRev2]) }, "there are the revisions []"},
		"two revisions": {func(_ *machine, w *world) {
			w.store(w.api[slotRev2].with(func(o *object) { o.slot = slotRev3 }))
		}, "there are the revisions"},
		"a restart that is not said": {func(_ *machine, w *world) {
			edited(w, func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Hostname = "another" })
		}, "needs a restart is false"},
		"a start that is not wanted": {func(m *machine, w *world) {
			edited(w, func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = new(v1.RunStrategyHalted) })
			rules{m}.judgeOrdered(w, act{verb: create, slot: slotVMI})
		}, "started although its VirtualMachine is not to run"},
		"a stop that is not wanted": {func(m *machine, w *world) {
			rules{m}.judgeOrdered(w, act{verb: remove, slot: slotVMI, uid: 1})
		}, "stopped although its VirtualMachine is to run"},
		"one guest too many": {func(m *machine, w *world) {
			w.vanish(w.api[slotVMI])
			m.carry(w, request{verb: create, slot: slotVMI, want: object{slot: slotVMI, vmi: m.known.guest(wanted())}.sealed()})
		}, "a guest is created that nobody has asked for"},
		"the next one beside it": {func(m *machine, w *world) {
			w.vanish(w.api[slotVMI])
			w.past.due++
			m.carry(w, request{verb: create, slot: slotVMI, want: object{slot: slotVMI, vmi: m.known.guest(wanted())}.sealed()})
			rules{m}.judge(w)
		}, "the object is gone while the guest lives on a"},
	} {
		t.Run(name, func(t *testing.T) {
			m, w := begun(t, &Scenario{machine: v1.RunStrategyAlways, Start: runs})
			m.broken = ""
			tc.spoil(m, &w)
			got := m.broken
			if err := (resting{&w}).right(); err != nil && got == "" {
				got = err.Error()
			}
			if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
