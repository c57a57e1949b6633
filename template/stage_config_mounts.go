// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// configMounts adds volumes with configuration objects. The guest gets them as disks, or as tables of its firmware, so they
// are mounted only if there is such a disk or table: the kubelet prepares no volume that no container mounts.
func configMounts(d *render.Draft) error {
	disks := map[string]bool{}
	for i := range d.VMI().Spec.Domain.Devices.Disks {
		disks[d.VMI().Spec.Domain.Devices.Disks[i].Name] = true
	}
	for i := range d.VMI().Spec.Volumes {
		v := &d.VMI().Spec.Volumes[i]
		source, folder := configSource(v)
		if folder == "" {
			continue
		}
		from := d.From(elementOf(vmiVolumes, i))
		from.Volume(corev1.Volume{Name: v.Name, VolumeSource: source})
		if disks[v.Name] || v.Secret != nil && isACPITable(d.VMI().Spec.Domain.Firmware, v.Name) {
			from.Container(computeContainer).Mount(corev1.VolumeMount{
				Name: v.Name, MountPath: privateDir + "/" + folder + "/" + v.Name, ReadOnly: true,
			})
		}
	}
	return nil
}

// isACPITable reports whether the firmware has a table from that volume.
func isACPITable(f *v1.Firmware, volume string) bool {
	return f != nil && f.ACPI != nil && (f.ACPI.SlicNameRef == volume || f.ACPI.MsdmNameRef == volume)
}

func configSource(v *v1.Volume) (source corev1.VolumeSource, folder string) {
	switch {
	case v.ConfigMap != nil:
		source.ConfigMap = &corev1.ConfigMapVolumeSource{
			LocalObjectReference: v.ConfigMap.LocalObjectReference, Optional: v.ConfigMap.Optional,
		}
		return source, "config-map"
	case v.Secret != nil:
		source.Secret = &corev1.SecretVolumeSource{SecretName: v.Secret.SecretName, Optional: v.Secret.Optional}
		return source, "secret"
	case v.DownwardAPI != nil:
		source.DownwardAPI = &corev1.DownwardAPIVolumeSource{Items: v.DownwardAPI.Fields}
		return source, "downwardapi"
	default:
		return source, ""
	}
}
