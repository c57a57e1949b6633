// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// Connector finds the hypervisor of a guest: the node's own, or one that serves this
// guest alone, in its launcher Pod.
type Connector interface {
	// Connect returns the hypervisor that runs the guest, or shall. pod is the guest's
	// Pod on this node; nil if it is not known. A hypervisor that is not there yet is an
	// error that wraps [ErrNotReady], and asking again later is all a caller does.
	// What it returns for a guest is the same for as long as it lives; it may be called
	// from many goroutines.
	Connect(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (Hypervisor, error)
}

// NodeHypervisor returns a connector for a node whose own hypervisor runs all guests.
func NodeHypervisor(h Hypervisor) Connector { return oneHypervisor{h} }

type oneHypervisor struct{ Hypervisor }

// Connect returns the node's hypervisor.
func (o oneHypervisor) Connect(context.Context, *v1.VirtualMachineInstance, *corev1.Pod) (Hypervisor, error) {
	return o.Hypervisor, nil
}
