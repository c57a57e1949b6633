// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"fmt"

	"github.com/virtloom/virtloom/refdaemon/config/crd"
)

// Print what a cluster without KubeVirt needs for virtual machine instances.
func ExampleDefinitions() {
	definitions, err := crd.Definitions()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range definitions {
		if d.Spec.Names.Kind == "VirtualMachineInstance" {
			v := d.Spec.Versions[0]
			fmt.Println(d.Name, v.Name, d.Spec.Names.ShortNames, "status is a subresource:", v.Subresources != nil)
		}
	}
	// Output: virtualmachineinstances.kubevirt.io v1 [vmi vmis] status is a subresource: false
}
