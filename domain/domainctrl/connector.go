// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// Connector finds the hypervisor of a VMI, where one serves this VMI alone, in its launcher Pod.
type Connector interface {
	// Connect returns the hypervisor that runs the VMI or is to start it. pod is the VMI's
	// Pod on this node; nil if it is not known. If the hypervisor is not ready yet, the
	// error wraps [domain.ErrNotReady] and the caller retries later. The hypervisor of a VMI does
	// not change while the VMI exists. Connect is safe for concurrent use.
	Connect(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) (domain.Hypervisor, error)
}
