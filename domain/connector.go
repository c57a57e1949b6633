// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// Connector finds the hypervisor of a VMI: the node's own, or one that serves this VMI
// alone in its launcher Pod.
type Connector interface {
	// Connect returns the hypervisor that runs the VMI or is to start it. pod is the VMI's
	// Pod on this node; nil if it is not known. If the hypervisor is not ready yet, the
	// error wraps [ErrNotReady] and the caller retries later. The hypervisor of a VMI does
	// not change while the VMI exists. Connect is safe for concurrent use.
	Connect(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (Hypervisor, error)
}

// NodeHypervisor returns a connector for a node whose own hypervisor runs all VMIs.
func NodeHypervisor(h Hypervisor) Connector { return oneHypervisor{h} }

type oneHypervisor struct{ Hypervisor }

// Connect returns the node's hypervisor.
func (o oneHypervisor) Connect(context.Context, *v1.VirtualMachineInstance, *corev1.Pod) (Hypervisor, error) {
	return o.Hypervisor, nil
}
