// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// cloudInit adds the secrets with cloud-init data. Data in the VMI itself needs no volume. Both spellings of a key are in
// use.
func cloudInit(d *render.Draft) error {
	for i := range d.VMI().Spec.Volumes {
		v := &d.VMI().Spec.Volumes[i]
		from := d.From(elementOf(vmiVolumes, i))
		for _, s := range seedsOf(v) {
			from.Volume(corev1.Volume{Name: v.Name + s.suffix, VolumeSource: corev1.VolumeSource{
				Secret: &corev1.SecretVolumeSource{SecretName: s.secret},
			}})
			for _, key := range s.keys {
				from.Container(computeContainer).Mount(corev1.VolumeMount{
					Name: v.Name + s.suffix, MountPath: privateDir + "/secret/" + v.Name + "/" + key, SubPath: key, ReadOnly: true,
				})
			}
		}
	}
	return nil
}

// seed is a secret with user or network data.
type seed struct {
	secret, suffix, field string
	keys                  []string
}

// seedsOf returns the secrets of a cloud-init volume, user data first.
func seedsOf(v *v1.Volume) (seeds []seed) {
	add := func(source string, user, network *corev1.LocalObjectReference) {
		if user != nil {
			seeds = append(seeds, seed{user.Name, "-udata", source + ".secretRef.name", []string{"userdata", "userData"}})
		}
		if network != nil {
			seeds = append(seeds, seed{network.Name, "-ndata", source + ".networkDataSecretRef.name", []string{"networkdata", "networkData"}})
		}
	}
	if c := v.CloudInitNoCloud; c != nil {
		add("cloudInitNoCloud", c.UserDataSecretRef, c.NetworkDataSecretRef)
	}
	if c := v.CloudInitConfigDrive; c != nil {
		add("cloudInitConfigDrive", c.UserDataSecretRef, c.NetworkDataSecretRef)
	}
	return seeds
}
