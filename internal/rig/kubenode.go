// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	virtv1 "kubevirt.io/api/core/v1"
)

// NodeSpec describes a Kubernetes Node whose Pods kwok brings to Running.
type NodeSpec struct {
	// Name of the Node; required.
	Name string
	// Address becomes its InternalIP; 127.0.0.1 if empty.
	Address string
	// Labels are added to those every node gets, and win over them: "kubevirt.io/schedulable": "false"
	// makes a node that takes no guest.
	Labels map[string]string
	// Annotations are added to those every node gets, and win over them.
	Annotations map[string]string
	// CPU that Pods may request; 16 if zero.
	CPU resource.Quantity
	// Memory that Pods may request; 64Gi if zero.
	Memory resource.Quantity
}

// Machines and CPU models that every node claims to offer. They are what QEMU of Debian 12 offers
// without hardware virtualisation; the node agent reports the truth about a real one.
const (
	machineType = "q35"
	machineName = "pc-q35-7.2"
	cpuModel    = "Nehalem"
	cpuVendor   = "AMD"
)

// devices is how many of each device a node has. KubeVirt's device plugin says the same number: they
// are not used up, a request merely requires that they exist.
const devices = 1000

// podsPerNode is the most Pods a node takes.
const podsPerNode = 250

// addNode creates a Node with the labels and devices of one that runs guests, and waits until the
// scheduler may place Pods there.
func (r *Rig) addNode(ctx context.Context, spec NodeSpec) error {
	if spec.Name == "" {
		return errors.New("add a node: NodeSpec.Name is empty")
	}
	client, err := kubernetes.NewForConfig(r.Config(UserAdmin))
	if err != nil {
		return fmt.Errorf("add node %s: %w", spec.Name, err)
	}
	nodes := client.CoreV1().Nodes()
	if _, err := nodes.Create(ctx, spec.node(), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("add node %s: %w", spec.Name, err)
	}
	state := "no status yet"
	err = wait.PollUntilContextCancel(ctx, 2*probeInterval, false, func(ctx context.Context) (bool, error) {
		node, err := nodes.Get(ctx, spec.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		var ready bool
		ready, state = takesPods(node)
		return ready, nil
	})
	if err != nil {
		return fmt.Errorf("add node %s: %s: %w", spec.Name, state, err)
	}
	return nil
}

// takesPods reports whether a node is Ready and free of the taint of new nodes; if not, why.
func takesPods(node *corev1.Node) (ready bool, state string) {
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeNotReady {
			return false, "tainted " + taint.ToString()
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, "condition Ready is " + string(c.Status)
		}
	}
	return false, "no condition Ready yet"
}

// node is the object to create. The API server takes the status of a Node at creation as it is.
func (s NodeSpec) node() *corev1.Node {
	address := s.Address
	if address == "" {
		address = "127.0.0.1"
	}
	labels := map[string]string{
		corev1.LabelHostname:                           s.Name,
		corev1.LabelArchStable:                         "amd64",
		corev1.LabelOSStable:                           "linux",
		virtv1.NodeSchedulable:                         "true",
		virtv1.SupportedMachineTypeLabel + machineType: "true",
		virtv1.SupportedMachineTypeLabel + machineName: "true",
		virtv1.CPUModelLabel + cpuModel:                "true",
		virtv1.CPUModelVendorLabel + cpuVendor:         "true",
	}
	maps.Copy(labels, s.Labels)
	annotations := map[string]string{kwokAnnotation: kwokManaged}
	maps.Copy(annotations, s.Annotations)
	resources := s.resources()
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Labels: labels, Annotations: annotations},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: address},
				{Type: corev1.NodeHostName, Address: s.Name},
			},
			Capacity:    resources,
			Allocatable: resources,
			NodeInfo: corev1.NodeSystemInfo{
				Architecture:            "amd64",
				OperatingSystem:         "linux",
				ContainerRuntimeVersion: "kwok://simulated",
				KubeletVersion:          "kwok",
			},
		},
	}
}

func (s NodeSpec) resources() corev1.ResourceList {
	cpu, memory := s.CPU, s.Memory
	if cpu.IsZero() {
		cpu = resource.MustParse("16")
	}
	if memory.IsZero() {
		memory = resource.MustParse("64Gi")
	}
	count := *resource.NewQuantity(devices, resource.DecimalSI)
	none := resource.Quantity{Format: resource.BinarySI}
	return corev1.ResourceList{
		corev1.ResourceCPU:                     cpu,
		corev1.ResourceMemory:                  memory,
		corev1.ResourcePods:                    *resource.NewQuantity(podsPerNode, resource.DecimalSI),
		corev1.ResourceEphemeralStorage:        resource.MustParse("200Gi"),
		corev1.ResourceHugePagesPrefix + "2Mi": none,
		"devices.kubevirt.io/kvm":              count,
		"devices.kubevirt.io/tun":              count,
		"devices.kubevirt.io/vhost-net":        count,
	}
}
