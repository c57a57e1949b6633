// SPDX-License-Identifier: Apache-2.0

package template

import corev1 "k8s.io/api/core/v1"

// hugepages mounts hugepages for qemu, once for itself and once where libvirt looks for them.
func hugepages(d *Draft) error {
	if m := d.vmi.Spec.Domain.Memory; m == nil || m.Hugepages == nil {
		return nil
	}
	for _, v := range []struct{ name, path string }{
		{"hugepages", "/dev/hugepages"}, {"hugetblfs-dir", "/dev/hugepages/libvirt/qemu"},
	} {
		d.Volume(corev1.Volume{Name: v.name, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumHugePages},
		}})
		d.Mount(computeContainer, corev1.VolumeMount{Name: v.name, MountPath: v.path})
	}
	return nil
}

// hotplug adds the folder in which volumes appear that are plugged in later.
func hotplug(d *Draft) error {
	if d.vmi.Spec.Domain.Devices.DisableHotplug {
		return nil
	}
	d.EmptyDir("hotplug-disks")
	propagation := corev1.MountPropagationHostToContainer
	d.Mount(computeContainer, corev1.VolumeMount{
		Name: "hotplug-disks", MountPath: hotplugDir, MountPropagation: &propagation,
	})
	return nil
}
