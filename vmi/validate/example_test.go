// SPDX-License-Identifier: Apache-2.0

package validate_test

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi/validate"
)

// A new VMI has to satisfy all rules; one that exists only those without which it cannot be rendered.
func ExampleSpec() {
	memory := resource.MustParse("1Gi")
	vmi := &v1.VirtualMachineInstance{Spec: v1.VirtualMachineInstanceSpec{Domain: v1.DomainSpec{
		Memory: &v1.Memory{Guest: &memory},
		Devices: v1.Devices{
			Disks: []v1.Disk{{Name: "root"}},
			Sound: &v1.SoundDevice{Name: "card", Model: "sb16"},
		},
	}}}
	for _, f := range validate.Spec(vmi, validate.Config{}) {
		fmt.Printf("%s: %s (%s)\n", f.Field, f.Text(), f.Remedy)
	}
	fmt.Println("for every reader:")
	for _, f := range validate.Structure(vmi) {
		fmt.Printf("%s: %s\n", f.Field, f.Text())
	}
	// Output:
	// spec.domain.devices.disks[0].name: "root" volume is not defined (add it to spec.volumes, or remove the disk)
	// spec.domain.devices.sound.model: "sb16" is not supported (use ich9, ac97)
	// for every reader:
	// spec.domain.devices.disks[0].name: "root" volume is not defined
}
