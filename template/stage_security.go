// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// runtimeUser is the field of the VMI with the launcher's user.
const runtimeUser = "status.runtimeUser"

// nonRoot reports whether the VMI's launcher runs as qemu's user.
func nonRoot(vmi *v1.VirtualMachineInstance) bool {
	_, annotated := vmi.Annotations[v1.DeprecatedNonRootVMIAnnotation]
	return annotated || vmi.Status.RuntimeUser != 0
}

// security sets the Pod's security context.
func security(d *render.Draft) error {
	set := func(from, part string, write func(*corev1.PodSecurityContext)) {
		d.From(from).Set("spec.securityContext."+part, func(p *corev1.Pod) {
			if p.Spec.SecurityContext == nil {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{}
			}
			write(p.Spec.SecurityContext)
		})
	}
	// Every field has its own value, so that changing one later does not change another.
	user, yes := int64(0), true
	set("", "fsGroup", func(c *corev1.PodSecurityContext) { c.FSGroup = new(render.QEMUUser) })
	if nonRoot(d.VMI()) {
		user = render.QEMUUser
		set(runtimeUser, "runAsGroup", func(c *corev1.PodSecurityContext) { c.RunAsGroup = new(render.QEMUUser) })
		set(runtimeUser, "runAsNonRoot", func(c *corev1.PodSecurityContext) { c.RunAsNonRoot = &yes })
	}
	set(runtimeUser, "runAsUser", func(c *corev1.PodSecurityContext) { c.RunAsUser = &user })
	if t := d.Config().SELinuxLauncherType; t != "" {
		set("Config.SELinuxLauncherType", "seLinuxOptions", func(c *corev1.PodSecurityContext) {
			c.SELinuxOptions = &corev1.SELinuxOptions{Type: t}
		})
	}
	if profile := seccomp(d.Config().Seccomp); profile != nil {
		set("Config.Seccomp", "seccompProfile", func(c *corev1.PodSecurityContext) { c.SeccompProfile = profile })
	}
	return nil
}

func seccomp(s *v1.CustomProfile) *corev1.SeccompProfile {
	switch {
	case s == nil:
		return nil
	case s.LocalhostProfile != nil:
		path := *s.LocalhostProfile
		return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &path}
	case s.RuntimeDefaultProfile:
		return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	default:
		return nil
	}
}

// computeSecurity returns the security context of the compute container.
func computeSecurity(vmi *v1.VirtualMachineInstance) *corev1.SecurityContext {
	yes, no := true, false
	if nonRoot(vmi) {
		return &corev1.SecurityContext{
			RunAsUser: new(render.QEMUUser), RunAsGroup: new(render.QEMUUser), RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no,
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

// supportSecurity returns the security context of support containers: never root, no capabilities.
func supportSecurity() *corev1.SecurityContext {
	user, yes, no := render.QEMUUser, true, false
	return &corev1.SecurityContext{
		RunAsUser: &user, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}
