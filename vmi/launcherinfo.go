// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/launcherpod"
)

// launcherImage returns the image of the Pod's compute container, for
// status.launcherContainerImageVersion, and whether it differs from the configured one, for
// the label kubevirt.io/outdatedLauncherImage. Without a Pod or a configured image, nothing
// is outdated.
// (specs: VMI reconciliation 2.3)
func launcherImage(pod *corev1.Pod, configured string) (version string, outdated bool) {
	if pod == nil {
		return "", false
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == launcherpod.Compute {
			return c.Image, c.Image != "" && configured != "" && c.Image != configured
		}
	}
	return "", false
}

// setLauncherImage stores the result of launcherImage in a VMI, which must be a copy. An
// empty version clears the field.
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

// memoryOverhead returns the new status.memory.memoryOverhead from the Pod's annotation
// kubevirt.io/memory-overhead-bytes; nil if the stored value must stay: the annotation is
// missing, invalid or equal. The caller checks the feature gate VmiMemoryOverheadReport.
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
