// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// trigger makes the Pod the first consumer of its claim on its owner's node, so that the claim is provisioned for that
// node.
func trigger(d *render.Draft) error {
	volumes, err := hotplugVolumes(d)
	if err != nil {
		return err
	}
	if err := joinOwner(d); err != nil {
		return err
	}
	if owner := d.Input().Hotplug.Owner; len(owner.Spec.Tolerations) > 0 {
		d.From("Input.Hotplug.Owner").Set("spec.tolerations", func(p *corev1.Pod) {
			p.Spec.Tolerations = copyTolerations(owner.Spec.Tolerations)
		})
	}
	if !d.Input().Hotplug.KeepRunning {
		d.From("Input.Hotplug.KeepRunning").Annotation(v1.EphemeralProvisioningObject, "true")
	}
	v := volumes[0]
	v.put(d)
	d.EmptyDir(hotplugFolder)
	from := d.From(v.field)
	if !isBlock(v.claim) {
		from.Container(hotplugContainer).Mount(corev1.VolumeMount{Name: v.name, MountPath: "/pvc"})
		return nil
	}
	from.Container(hotplugContainer).Device(corev1.VolumeDevice{Name: v.name, DevicePath: "/dev/hotplugblockdevice"})
	from.Set("spec.securityContext", func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64)}
	})
	return nil
}

// joinOwner selects the owner by the one label that never changes during its life. Other labels are synchronized with the
// VMI's, and a Pod with outdated ones would not be scheduled.
func joinOwner(d *render.Draft) error {
	if d.Input().Hotplug.Owner.Labels[v1.CreatedByLabel] != string(d.VMI().UID) {
		return render.Invalid("Input.Hotplug.Owner.metadata.labels["+v1.CreatedByLabel+"]", "must be the UID of the VMI", "use the Pod of this VMI")
	}
	d.From("metadata.uid").Affinity().JoinPods(corev1.PodAffinityTerm{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{v1.CreatedByLabel: string(d.VMI().UID)}},
		TopologyKey:   corev1.LabelHostname,
	})
	return nil
}
