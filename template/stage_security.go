// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// nonRoot tells whether the guest's launcher runs as qemu's user.
func nonRoot(vmi *v1.VirtualMachineInstance) bool {
	_, annotated := vmi.Annotations[v1.DeprecatedNonRootVMIAnnotation]
	return annotated || vmi.Status.RuntimeUser != 0
}

// security sets the Pod's security context.
func security(d *Draft) error {
	user, group, yes := int64(0), qemuUser, true
	c := &corev1.PodSecurityContext{FSGroup: &group, RunAsUser: &user}
	if nonRoot(d.vmi) {
		user = qemuUser
		c.RunAsGroup, c.RunAsNonRoot = &group, &yes
	}
	if t := d.config.SELinuxLauncherType; t != "" {
		c.SELinuxOptions = &corev1.SELinuxOptions{Type: t}
	}
	if s := d.config.Seccomp; s != nil {
		switch {
		case s.LocalhostProfile != nil:
			profile := *s.LocalhostProfile
			c.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &profile}
		case s.RuntimeDefaultProfile:
			c.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
		}
	}
	d.Set("spec.securityContext", func(p *corev1.Pod) { p.Spec.SecurityContext = c })
	return nil
}

// computeSecurity is the security context of the compute container.
func computeSecurity(vmi *v1.VirtualMachineInstance) *corev1.SecurityContext {
	user, yes, no := qemuUser, true, false
	if nonRoot(vmi) {
		return &corev1.SecurityContext{
			RunAsUser: &user, RunAsGroup: &user, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no,
			Capabilities: &corev1.Capabilities{
				Add:  []corev1.Capability{"NET_BIND_SERVICE"},
				Drop: []corev1.Capability{"ALL"},
			},
		}
	}
	root := int64(0)
	return &corev1.SecurityContext{
		RunAsUser: &root, RunAsNonRoot: &no,
		Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_BIND_SERVICE", "SYS_NICE"}},
	}
}

// supportSecurity is the security context of containers beside compute: never root, no capabilities.
func supportSecurity() *corev1.SecurityContext {
	user, yes, no := qemuUser, true, false
	return &corev1.SecurityContext{
		RunAsUser: &user, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}
