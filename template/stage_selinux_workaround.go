// SPDX-License-Identifier: Apache-2.0

package template

import corev1 "k8s.io/api/core/v1"

// selinuxWorkaround sets the SELinux level s0 on all containers but compute: container engines that label each of them
// separately would block their access to the domain's files.
func selinuxWorkaround(d *Draft) error {
	if !d.config.GateEnabled(gateMCSWorkaround) {
		return nil
	}
	for i := range d.pod.Spec.Containers {
		name := d.pod.Spec.Containers[i].Name
		if name == computeContainer {
			continue
		}
		d.From("Config.FeatureGates, Config.SELinuxLauncherType").Set(
			fieldContainers+"["+name+"].securityContext.seLinuxOptions", func(p *corev1.Pod) {
				c := containerOf(p, name)
				security := &corev1.SecurityContext{}
				if c.SecurityContext != nil {
					security = c.SecurityContext.DeepCopy()
				}
				security.SELinuxOptions = &corev1.SELinuxOptions{Type: d.config.SELinuxLauncherType, Level: "s0"}
				c.SecurityContext = security
			})
	}
	return nil
}
