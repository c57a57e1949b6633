// SPDX-License-Identifier: Apache-2.0

package template

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	defaultGraceSeconds = int64(30)
	// The launcher waits a little longer than the VMI's grace period, and the kubelet a little longer than the launcher.
	launcherGraceMargin = int64(15)
	podGraceMargin      = launcherGraceMargin + 15
)

func graceSeconds(vmi *v1.VirtualMachineInstance) int64 {
	if g := vmi.Spec.TerminationGracePeriodSeconds; g != nil {
		return *g
	}
	return defaultGraceSeconds
}

// podSettings sets the fields of the Pod outside of its containers.
func podSettings(d *render.Draft) error {
	spec := &d.VMI().Spec
	d.Set("spec.restartPolicy", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	d.From("spec.hostname, metadata.name").Set("spec.hostname", func(p *corev1.Pod) { p.Spec.Hostname = hostname(d.VMI()) })
	d.From("spec.terminationGracePeriodSeconds").Set("spec.terminationGracePeriodSeconds", func(p *corev1.Pod) {
		seconds := graceSeconds(d.VMI()) + podGraceMargin
		p.Spec.TerminationGracePeriodSeconds = &seconds
	})
	d.Set("spec.enableServiceLinks", func(p *corev1.Pod) { p.Spec.EnableServiceLinks = new(bool) })
	d.Set("spec.readinessGates", func(p *corev1.Pod) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: v1.VirtualMachineUnpaused}}
	})
	if spec.Subdomain != "" {
		d.From("spec.subdomain").Set("spec.subdomain", func(p *corev1.Pod) { p.Spec.Subdomain = spec.Subdomain })
	}
	if spec.DNSPolicy != "" {
		d.From("spec.dnsPolicy").Set("spec.dnsPolicy", func(p *corev1.Pod) { p.Spec.DNSPolicy = spec.DNSPolicy })
	}
	if spec.DNSConfig != nil {
		d.From("spec.dnsConfig").Set("spec.dnsConfig", func(p *corev1.Pod) { p.Spec.DNSConfig = spec.DNSConfig })
	}
	if spec.PriorityClassName != "" {
		d.From("spec.priorityClassName").Set("spec.priorityClassName", func(p *corev1.Pod) { p.Spec.PriorityClassName = spec.PriorityClassName })
	}
	if class := d.Config().DefaultRuntimeClass; class != "" {
		d.From("Config.DefaultRuntimeClass").Set("spec.runtimeClassName", func(p *corev1.Pod) { p.Spec.RuntimeClassName = &class })
	}
	for _, c := range spec.ResourceClaims {
		d.From("spec.resourceClaims").ResourceClaim(corev1.PodResourceClaim{
			Name: c.Name, ResourceClaimName: c.ResourceClaimName, ResourceClaimTemplateName: c.ResourceClaimTemplateName,
		})
	}
	serviceAccount(d)
	return nil
}

// serviceAccount mounts a token only for VMIs with a volume of it, or for a mesh that needs one.
func serviceAccount(d *render.Draft) {
	name, mount := d.VMI().Spec.ServiceAccountName, strings.EqualFold(d.VMI().Annotations[istioInject], "true")
	for i := range d.VMI().Spec.Volumes {
		v := &d.VMI().Spec.Volumes[i]
		if v.ServiceAccount == nil {
			continue
		}
		mount = true
		if name == "" {
			name = v.ServiceAccount.ServiceAccountName
		}
	}
	if name != "" {
		d.From("spec.serviceAccountName, spec.volumes").Set("spec.serviceAccountName", func(p *corev1.Pod) { p.Spec.ServiceAccountName = name })
	}
	d.From("spec.volumes, metadata.annotations[sidecar.istio.io/inject]").Set("spec.automountServiceAccountToken", func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = &mount })
}
