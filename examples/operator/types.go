// SPDX-License-Identifier: Apache-2.0

package main

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	v1 "kubevirt.io/api/core/v1"
)

var groupVersion = schema.GroupVersion{Group: "example.com", Version: "v1"}

// Desktop is a machine that a person works at; crd.yaml defines it.
type Desktop struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   DesktopSpec   `json:"spec"`
	Status DesktopStatus `json:"status,omitzero"`
}

// DesktopSpec is what a person asks for.
type DesktopSpec struct {
	// Memory of the machine, such as 4Gi.
	Memory resource.Quantity `json:"memory"`
	// Image of its disk, a container disk.
	Image string `json:"image"`
	// Seat is where the person sits; the devices there are brought to the machine.
	Seat string `json:"seat,omitempty"`
}

// DesktopStatus is what became of it.
type DesktopStatus struct {
	// Phase is that of the VirtualMachineInstance.
	Phase v1.VirtualMachineInstancePhase `json:"phase,omitempty"`
	// Node is where it runs.
	Node string `json:"node,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (d *Desktop) DeepCopyObject() runtime.Object {
	c := *d
	d.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Spec.Memory = d.Spec.Memory.DeepCopy()
	return &c
}

// DesktopList is a list of them.
type DesktopList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Desktop `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *DesktopList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	c.Items = make([]Desktop, len(l.Items))
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*Desktop)
	}
	return &c
}

func addToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(groupVersion, &Desktop{}, &DesktopList{})
	metav1.AddToGroupVersion(s, groupVersion)
	return nil
}
