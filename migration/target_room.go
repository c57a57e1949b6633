// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/launcherpod"
)

// roomLabels returns the labels that report to the target node how much the new Pod has of the
// dedicated CPUs and the memory that are added to the VMI with the migration.
func (s Snapshot) roomLabels() map[string]string {
	var compute *corev1.Container
	for i := range s.TargetPod.Spec.Containers {
		if c := &s.TargetPod.Spec.Containers[i]; c.Name == launcherpod.Compute {
			compute = c
		}
	}
	if compute == nil {
		return nil
	}
	out := map[string]string{}
	for i := range s.VMI.Status.Conditions {
		switch s.VMI.Status.Conditions[i].Type {
		case v1.VirtualMachineInstanceVCPUChange:
			if s.VMI.IsCPUDedicated() {
				out[v1.VirtualMachinePodCPULimitsLabel] = strconv.FormatInt(compute.Resources.Limits.Cpu().Value(), 10)
			}
		case v1.VirtualMachineInstanceMemoryChange:
			memory := compute.Resources.Requests.Memory().DeepCopy()
			for _, size := range []corev1.ResourceName{"2Mi", "1Gi"} {
				memory.Add(compute.Resources.Requests[corev1.ResourceHugePagesPrefix+size])
			}
			out[v1.VirtualMachinePodMemoryRequestsLabel] = memory.String()
		}
	}
	return out
}
