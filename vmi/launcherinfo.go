// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
)

// launcherImage returns the image of the Pod's compute container, for
// status.launcherContainerImageVersion, and whether it is another one than
// configured, for the label kubevirt.io/outdatedLauncherImage. Without a Pod, or
// with nothing configured to compare with, nothing is outdated.
// (specs: VMI reconciliation 2.3)
func launcherImage(pod *corev1.Pod, configured string) (version string, outdated bool) {
	if pod == nil {
		return "", false
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == computeContainer {
			return c.Image, c.Image != "" && configured != "" && c.Image != configured
		}
	}
	return "", false
}

// setLauncherImage writes what launcherImage returns to a guest, which must be a
// copy. Of no image nothing remains.
func setLauncherImage(vmi *v1.VirtualMachineInstance, version string, outdated bool) {
	vmi.Status.LauncherContainerImageVersion = version
	if !outdated {
		delete(vmi.Labels, v1.OutdatedLauncherImageLabel)
		return
	}
	if vmi.Labels == nil {
		vmi.Labels = map[string]string{}
	}
	vmi.Labels[v1.OutdatedLauncherImageLabel] = ""
}

// memoryOverhead returns what status.memory.memoryOverhead shall be by the Pod's
// annotation kubevirt.io/memory-overhead-bytes; nil if it shall stay: the Pod does
// not say, says it already, or says something that is no amount of memory. The
// feature gate VmiMemoryOverheadReport is for the caller to ask.
func memoryOverhead(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) *resource.Quantity {
	if pod == nil {
		return nil
	}
	bytes, err := strconv.ParseInt(pod.Annotations[v1.MemoryOverheadAnnotationBytes], 10, 64)
	if err != nil || bytes < 0 {
		return nil
	}
	if m := vmi.Status.Memory; m != nil && m.MemoryOverhead != nil && m.MemoryOverhead.Value() == bytes {
		return nil
	}
	return resource.NewQuantity(bytes, resource.BinarySI)
}
