// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

// NodeSpec describes a Kubernetes Node whose Pods kwok brings to Running.
type NodeSpec struct {
	// Name of the Node; required.
	Name string
	// Address becomes its InternalIP; 127.0.0.1 if empty.
	Address string
	// Labels are added to those every node gets, and win over them.
	Labels map[string]string
	// Annotations are added to those every node gets, and win over them.
	Annotations map[string]string
	// CPU that Pods may request; 16 if zero.
	CPU resource.Quantity
	// Memory that Pods may request; 64Gi if zero.
	Memory resource.Quantity
}
