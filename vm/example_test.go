// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vm"
	"github.com/virtloom/virtloom/vm/instancetype"
)

// A VM that is to run gets a revision of its spec and a VMI, in this order.
func ExampleDecide() {
	fmt.Println(vm.Decide(vm.Snapshot{VM: newVM()}, now))
	// Output:
	// printableStatus=Starting
	//   do CreateRevision revision-start-vm-uid-vm-3 (it remembers what the VMI is made from)
	//   do CreateVMI vm (the run strategy is Always)
}

// A controller reads what a plan needs, and decides again.
func ExamplePlan() {
	o := newVM()
	o.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "large"}
	s := vm.Snapshot{VM: o, Objects: instancetype.Objects{}}
	plan := vm.Decide(s, now)
	for len(plan.Need) > 0 {
		for _, ref := range plan.Need {
			fmt.Println("read", ref)
			s.Objects[ref] = nil // does not exist
			if ref == largeRef {
				s.Objects[ref] = large(4)
			}
		}
		plan = vm.Decide(s, now)
	}
	for _, a := range plan.Actions {
		// Each action has what must hold when it arrives, and what to report.
		switch a.Verb {
		case vm.CreateRevision:
			fmt.Println("create", a.Revision.Name)
		case vm.CreateVMI:
			fmt.Println("create a VMI with", a.VMI.Spec.Domain.CPU.Sockets, "sockets, if its owner is live:", a.If.OwnerLive)
			fmt.Println("then emit", a.Done.Reason, "or report", a.Fault.Reason)
		}
	}
	// Output:
	// read VirtualMachineClusterInstancetype large
	// read ControllerRevision ns/vm-large-v1beta1-uid-large-1
	// create vm-large-v1beta1-uid-large-1
	// create revision-start-vm-uid-vm-3
	// create a VMI with 4 sockets, if its owner is live: true
	// then emit SuccessfulCreate or report FailedCreate
}

// While an own write is pending, nothing else is written, and that is what the VM waits for.
func ExampleExplain() {
	s := vm.Snapshot{VM: newVM(), Pending: []vm.Write{{Verb: vm.CreateVMI, Name: "vm"}}}
	for _, w := range vm.Explain(s, now) {
		fmt.Printf("%s: %s\nuntil %s, by the %s: %t\n", w.Reason, w.Message, w.Until, handoff.ByController, w.Responsible == handoff.ByController)
	}
	// Output:
	// WaitingForCache: waiting for the cache to observe this controller's write: CreateVMI vm
	// until the cache observes the write, by the controller: true
}
