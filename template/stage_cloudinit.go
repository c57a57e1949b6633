// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// cloudInit adds the secrets that cloud-init data comes from. Data in the VMI itself needs no volume.
func cloudInit(d *Draft) error {
	for i := range d.vmi.Spec.Volumes {
		v := &d.vmi.Spec.Volumes[i]
		from := d.From(fmt.Sprintf("spec.volumes[%d]", i))
		if c := v.CloudInitNoCloud; c != nil {
			addCloudInit(from, v.Name, c.UserDataSecretRef, c.NetworkDataSecretRef)
		}
		if c := v.CloudInitConfigDrive; c != nil {
			addCloudInit(from, v.Name, c.UserDataSecretRef, c.NetworkDataSecretRef)
		}
	}
	return nil
}

// addCloudInit mounts the secrets that user and network data come from. Both spellings of a key are in use.
func addCloudInit(d Draft, name string, user, network *corev1.LocalObjectReference) {
	for _, s := range []struct {
		ref    *corev1.LocalObjectReference
		suffix string
		keys   []string
	}{
		{user, "-udata", []string{"userdata", "userData"}}, {network, "-ndata", []string{"networkdata", "networkData"}},
	} {
		if s.ref == nil {
			continue
		}
		d.Volume(corev1.Volume{Name: name + s.suffix, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: s.ref.Name},
		}})
		for _, key := range s.keys {
			d.Mount(computeContainer, corev1.VolumeMount{
				Name: name + s.suffix, MountPath: privateDir + "/secret/" + name + "/" + key, SubPath: key, ReadOnly: true,
			})
		}
	}
}
