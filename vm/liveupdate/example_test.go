// SPDX-License-Identifier: Apache-2.0

package liveupdate_test

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm/liveupdate"
)

// A template has more sockets than its VMI, which gets them as soon as no migration runs.
func ExampleApply() {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 1, MaxSockets: 4}
	template := vmi.Spec.DeepCopy()
	template.Domain.CPU.Sockets = 2

	_, conflict := liveupdate.Apply(vmi, template, liveupdate.Options{CPURatio: 10, Migrating: true})
	fmt.Println(conflict.Reason+":", conflict.Message)
	updated, _ := liveupdate.Apply(vmi, template, liveupdate.Options{CPURatio: 10})
	fmt.Println(vmi.Spec.Domain.CPU.Sockets, "->", updated.Spec.Domain.CPU.Sockets)
	// Output:
	// HotPlugCPUError: CPU hotplug is not allowed while VMI is migrating
	// 1 -> 2
}

// Fewer sockets need a restart.
func ExampleBlocked() {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 2}
	template := vmi.Spec.DeepCopy()
	template.Domain.CPU.Sockets = 1
	fmt.Println(liveupdate.Blocked(vmi, template))
	// Output:
	// Reduction of CPU socket count requires a restart
}
