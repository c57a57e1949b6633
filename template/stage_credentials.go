// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const vmiCredentials = "spec.accessCredentials"

// accessCredentials mounts the secrets with keys and passwords, which the launcher passes to the guest. Credentials of one
// secret share its volume.
func accessCredentials(d *render.Draft) error {
	for i := range d.VMI().Spec.AccessCredentials {
		from := d.From(elementOf(vmiCredentials, i))
		for _, s := range credentialsOf(&d.VMI().Spec.AccessCredentials[i]) {
			name := credentialVolume(s.secret.SecretName)
			from.Volume(corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
				Secret: &corev1.SecretVolumeSource{SecretName: s.secret.SecretName},
			}})
			from.Container(computeContainer).Mount(corev1.VolumeMount{Name: name, MountPath: privateDir + "/secret/" + name, ReadOnly: true})
		}
	}
	return nil
}

func credentialVolume(secret string) string { return secret + "-access-cred" }

// credential is one source of keys or of a password.
type credential struct {
	kind   string
	secret *v1.AccessCredentialSecretSource
}

func credentialsOf(c *v1.AccessCredential) (sources []credential) {
	if c.SSHPublicKey != nil {
		sources = append(sources, credential{"sshPublicKey", c.SSHPublicKey.Source.Secret})
	}
	if c.UserPassword != nil {
		sources = append(sources, credential{"userPassword", c.UserPassword.Source.Secret})
	}
	return sources
}
