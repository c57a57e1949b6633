// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// hugepages mounts hugepages for qemu, both at its own path and at libvirt's.
func hugepages(d *render.Draft) error {
	if m := d.VMI().Spec.Domain.Memory; m == nil || m.Hugepages == nil {
		return nil
	}
	for _, v := range []struct{ name, path string }{
		{"hugepages", "/dev/hugepages"}, {"hugetblfs-dir", "/dev/hugepages/libvirt/qemu"},
	} {
		d.From("spec.domain.memory.hugepages").Volume(corev1.Volume{Name: v.name, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumHugePages},
		}})
		d.From("spec.domain.memory.hugepages").Container(computeContainer).Mount(corev1.VolumeMount{Name: v.name, MountPath: v.path})
	}
	return nil
}

// hotplugDir adds the folder of hotplugged volumes.
func hotplugDir(d *render.Draft) error {
	if d.VMI().Spec.Domain.Devices.DisableHotplug {
		return nil
	}
	d.From("spec.domain.devices.disableHotplug").EmptyDir("hotplug-disks")
	propagation := corev1.MountPropagationHostToContainer
	d.From("spec.domain.devices.disableHotplug").Container(computeContainer).Mount(corev1.VolumeMount{
		Name: "hotplug-disks", MountPath: hotplugDisks, MountPropagation: &propagation,
	})
	return nil
}
