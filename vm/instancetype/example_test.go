// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"

	"github.com/virtloom/virtloom/vm/instancetype"
)

// What is missing is read until there is an answer.
func ExampleFind() {
	vm := newVM()
	cluster := instancetype.Objects{largeRef: large(4, "8Gi")} // stands for the API server
	read := instancetype.Objects{}
	for {
		found, missing, err := instancetype.Find(vm, read)
		if err != nil {
			fmt.Println(err)
			return
		}
		if len(missing) == 0 {
			fmt.Println(found.Instancetype.CPU.Guest, "vCPUs")
			return
		}
		for _, ref := range missing {
			fmt.Println("read", ref)
			read[ref] = cluster[ref]
		}
	}
	// Output:
	// read VirtualMachineClusterInstancetype large
	// 4 vCPUs
}

// A VMI is completed with the devices that it did not ask for before both are applied.
func ExampleToVMI() {
	vm := newVM()
	d := instancetype.Definitions{Instancetype: &large(4, "8Gi").Spec,
		Preference: &v1beta1.VirtualMachinePreferenceSpec{Devices: &v1beta1.DevicePreferences{PreferredInterfaceModel: "virtio"}}}
	vmi := &v1.VirtualMachineInstance{Spec: vm.Spec.Template.Spec}
	if err := instancetype.Complete(&vmi.Spec, d, instancetype.Cluster{}); err != nil {
		fmt.Println(err)
	}
	if err := instancetype.ToVMI(vm, vmi, d); err != nil {
		fmt.Println(err)
	}
	fmt.Println(vmi.Spec.Domain.CPU.Sockets, vmi.Spec.Domain.Memory.Guest, vmi.Spec.Domain.Devices.Interfaces[0].Model)
	// Output:
	// 4 8Gi virtio
}

// All fields that a template may not set are named at once.
func ExampleToTemplate() {
	template := &v1.VirtualMachineInstanceTemplateSpec{}
	template.Spec.Domain.CPU = &v1.CPU{Cores: 2}
	template.Spec.Domain.Memory = &v1.Memory{Guest: quantity("1Gi")}
	err := instancetype.ToTemplate(template, instancetype.Definitions{Instancetype: &large(4, "8Gi").Spec})
	if conflicts := new(instancetype.Conflicts); errors.As(err, &conflicts) {
		for _, field := range conflicts.Fields {
			fmt.Println(field)
		}
	}
	// Output:
	// spec.template.spec.domain.cpu.cores
	// spec.template.spec.domain.memory.guest
}

func ExampleInfer() {
	vm := newVM(func(vm *v1.VirtualMachine) {
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{InferFromVolume: "root"}
		root := v1.Volume{Name: "root"}
		root.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{}
		root.PersistentVolumeClaim.ClaimName = "disk"
		vm.Spec.Template.Spec.Volumes = []v1.Volume{root}
	})
	_, missing, _ := instancetype.Infer(vm, nil)
	fmt.Println("read", missing[0])
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"instancetype.kubevirt.io/default-instancetype": "large"}}}
	vm, _, err := instancetype.Infer(vm, instancetype.Objects{missing[0]: claim})
	fmt.Println(vm.Spec.Instancetype.Name, err)
	// Output:
	// read PersistentVolumeClaim ns/disk
	// large <nil>
}

// A controller creates the revisions first, then stores what the status refers to.
func ExampleSync() {
	vm := newVM()
	read := instancetype.Objects{largeRef: large(4, "8Gi"), revRef: nil}
	change, missing, err := instancetype.Sync(vm, read, instancetype.Reference, instancetype.Cluster{})
	fmt.Println(len(missing), err)
	for _, revision := range change.Create {
		fmt.Println("create", revision.Name)
	}
	fmt.Println("refer to", change.InstancetypeRef.ControllerRevisionRef.Name)

	change, _, err = instancetype.Sync(vm, read, instancetype.ExpandAll, instancetype.Cluster{})
	fmt.Println("or store", change.Expanded.Spec.Template.Spec.Domain.CPU.Sockets, "sockets", err)

	vm.Spec.Instancetype.Kind = "Pod"
	_, _, err = instancetype.Sync(vm, read, instancetype.Expand, instancetype.Cluster{})
	if e := new(instancetype.Error); errors.As(err, &e) {
		fmt.Println(e.Reason == instancetype.ReasonFailedFindInstancetype, e.Message)
	}
	// Output:
	// 0 <nil>
	// create vm-large-v1beta1-uid-large-3
	// refer to vm-large-v1beta1-uid-large-3
	// or store 4 sockets <nil>
	// true got unexpected kind in InstancetypeMatcher: Pod
}

func ExampleCheck() {
	preference := &v1beta1.VirtualMachinePreferenceSpec{Requirements: &v1beta1.PreferenceRequirements{CPU: &v1beta1.CPUPreferenceRequirement{Guest: 8}}}
	for _, unmet := range instancetype.Check(&v1.VirtualMachineInstanceSpec{}, instancetype.Definitions{Instancetype: &large(4, "8Gi").Spec, Preference: preference}) {
		fmt.Println(unmet.Fields, unmet.Message)
	}
	// Output:
	// [spec.instancetype] insufficient CPU resources of 4 vCPU provided by instance type, preference requires 8 vCPU
}
