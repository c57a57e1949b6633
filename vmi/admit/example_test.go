// SPDX-License-Identifier: Apache-2.0

package admit_test

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi/admit"
)

// Unset fields are defaulted as in a cluster with KubeVirt's own webhooks.
func ExampleDefault() {
	memory := resource.MustParse("1Gi")
	vmi := &v1.VirtualMachineInstance{Spec: v1.VirtualMachineInstanceSpec{
		Domain:  v1.DomainSpec{Memory: &v1.Memory{Guest: &memory}},
		Volumes: []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "fedora:43"}}}},
	}}
	c := admit.ConfigFrom(nil)
	c.Request.Now = metav1.Now()
	admit.Default(vmi, c)
	fmt.Println(vmi.Spec.Architecture, vmi.Spec.Domain.Machine.Type, vmi.Spec.Domain.CPU.Model)
	fmt.Println(vmi.Spec.Domain.Devices.Disks[0].Name, vmi.Spec.Domain.Devices.Disks[0].Disk.Bus, vmi.Spec.Volumes[0].ContainerDisk.ImagePullPolicy)
	fmt.Println(vmi.Status.Phase, vmi.Finalizers)
	// Output:
	// amd64 q35 host-model
	// root sata IfNotPresent
	// Pending [kubevirt.io/foregroundDeleteVirtualMachine]
}

// Every error has field, value and remedy.
func ExampleValidate() {
	memory := resource.MustParse("1Gi")
	vmi := &v1.VirtualMachineInstance{Spec: v1.VirtualMachineInstanceSpec{
		Hostname: "Web_1",
		Domain: v1.DomainSpec{
			Memory:  &v1.Memory{Guest: &memory},
			Devices: v1.Devices{Disks: []v1.Disk{{Name: "root"}}},
		},
	}}
	for _, err := range admit.Validate(vmi, admit.ConfigFrom(nil)) {
		fmt.Println(err)
	}
	// Output:
	// spec.domain.devices.disks[0].name: Invalid value: "root": volume is not defined (add it to spec.volumes, or remove the disk)
	// spec.hostname: Invalid value: "Web_1": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (use at most 63 lower case letters, digits and dashes)
}

// A webhook for other objects, or a policy, rejects changes of the reserved keys.
func ExampleReservedOfVMIs() {
	reserved := admit.ReservedOfVMIs()
	fmt.Println(reserved.Annotations)
	fmt.Println(admit.ReservedPrefix)
	// Output:
	// [kubevirt.io/create-migration-target kubevirt.io/eviction-source]
	// virtloom.dev/
}
