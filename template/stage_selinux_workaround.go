// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// selinuxWorkaround sets the SELinux level s0 on all containers but compute: container engines that label each of them
// separately would block their access to the domain's files.
func selinuxWorkaround(d *render.Draft) error {
	if !d.Config().GateEnabled(gateMCSWorkaround) {
		return nil
	}
	from := d.From("Config.FeatureGates, Config.SELinuxLauncherType")
	for i := range d.View().Spec.Containers {
		name := d.View().Spec.Containers[i].Name
		if name == computeContainer {
			continue
		}
		from.Container(name).Set("securityContext.seLinuxOptions", func(c *corev1.Container) {
			security := &corev1.SecurityContext{}
			if c.SecurityContext != nil {
				security = c.SecurityContext.DeepCopy()
			}
			security.SELinuxOptions = &corev1.SELinuxOptions{Type: d.Config().SELinuxLauncherType, Level: "s0"}
			c.SecurityContext = security
		})
	}
	return nil
}
