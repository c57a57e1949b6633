// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

func ExampleDecide() {
	g := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "guest", UID: "uid-1", ResourceVersion: "7",
			Finalizers: []string{v1.VirtualMachineInstanceFinalizer},
		},
		Status: v1.VirtualMachineInstanceStatus{Phase: v1.Pending},
	}
	fmt.Println(vmi.Decide(vmi.Snapshot{VMI: g}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)))
	// Output:
	// phase=Pending
	//   do CreateLauncher (the VirtualMachineInstance has no Pod)
}

func ExampleExplain() {
	g := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "guest", UID: "uid-1", ResourceVersion: "7",
			Finalizers: []string{v1.VirtualMachineInstanceFinalizer},
		},
		Status: v1.VirtualMachineInstanceStatus{Phase: v1.Pending},
	}
	g.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}}}}
	for _, w := range vmi.Explain(vmi.Snapshot{VMI: g}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) {
		fmt.Printf("%s: %s\nuntil %s, by the %s\n", w.Reason, w.Message, w.Until, w.By)
	}
	// Output:
	// FailedPvcNotFound: spec.volumes[0].dataVolume.name: neither PersistentVolumeClaim ns/root nor a DataVolume of the same name exists; create the DataVolume or correct the name
	// until the claim is created, by the user
}
