// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"

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

// now is the time of the decisions.
var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newVM returns a VM that lacks nothing but a VMI.
func newVM() *v1.VirtualMachine {
	o := &v1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "uid-vm", Generation: 3, ResourceVersion: "7", Finalizers: []string{v1.VirtualMachineControllerFinalizer},
			Annotations: map[string]string{v1.ControllerAPILatestVersionObservedAnnotation: "v1"}},
		Spec: v1.VirtualMachineSpec{RunStrategy: new(v1.RunStrategyAlways), Template: &v1.VirtualMachineInstanceTemplateSpec{}},
	}
	o.Spec.Template.Spec.Domain.Firmware = &v1.Firmware{UUID: "given"}
	return o
}

var largeRef = instancetype.Ref{Kind: instancetype.KindClusterInstancetype, Name: "large"}

func large(vCPUs uint32) *v1beta1.VirtualMachineClusterInstancetype {
	return &v1beta1.VirtualMachineClusterInstancetype{ObjectMeta: metav1.ObjectMeta{Name: "large", UID: "uid-large", Generation: 1},
		Spec: v1beta1.VirtualMachineInstancetypeSpec{CPU: v1beta1.CPUInstancetype{Guest: vCPUs}, Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse("1Gi")}}}
}
