// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// temporary replaces the guest by a command that ends at once. The Pod exists for scheduling only.
func temporary(d *render.Draft) error {
	d.From("metadata.uid").Set("metadata.name", func(p *corev1.Pod) { p.Name = TemporaryName(d.VMI()) })
	d.Annotation(v1.EphemeralProvisioningObject, "true")
	compute := d.Container(computeContainer)
	compute.Set("command", func(c *corev1.Container) { c.Command = []string{"/bin/bash"} })
	compute.Set("args", func(c *corev1.Container) { c.Args = []string{"-c", "echo", "bound PVCs"} })
	// Bash treats them as parameters of the command, which ignores them.
	behaviourFlags(d)
	return nil
}
