// SPDX-License-Identifier: Apache-2.0

package template

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// attachment puts the volumes into the Pod, on the node of its owner.
func attachment(d *render.Draft) error {
	volumes, err := hotplugVolumes(d)
	if err != nil {
		return err
	}
	owner := d.Input().Hotplug.Owner
	if t := d.Config().SELinuxLauncherType; t != "" {
		setSELinuxOption(d.From("Config.SELinuxLauncherType"), "type", func(o *corev1.SELinuxOptions) { o.Type = t })
	}
	d.From("Input.Hotplug.Owner").Affinity().RequireNode(corev1.NodeSelectorRequirement{
		Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{owner.Spec.NodeName},
	})
	d.From("Input.Hotplug.Owner").Set("spec.tolerations", func(p *corev1.Pod) {
		p.Spec.Tolerations = attachmentTolerations(owner.Spec.Tolerations)
	})
	d.EmptyDir(hotplugFolder)
	for _, v := range volumes {
		v.put(d)
		if err := attach(d.From(v.field), v); err != nil {
			return err
		}
	}
	return nil
}

// rootFolders are the root folders of the container's image that the container requires.
var rootFolders = []string{"bin", "dev", "etc", "lib", "lib64", "path", "proc", "sbin", "sys", "usr"}

// attach makes a volume visible to the node agent, which looks for a device under the claim's UID and for a file system
// under the volume's name. A file system that the guest already has is not mounted: the VMI's Pod has it.
func attach(d render.Draft, v hotplugVolume) error {
	if isBlock(v.claim) {
		d.Container(hotplugContainer).Device(corev1.VolumeDevice{
			Name: v.name, DevicePath: fmt.Sprintf("%s/%s/%s", hotplugPath, v.name, v.claim.UID),
		})
		return nil
	}
	if reachedGuest(d, v.name) {
		return nil
	}
	if slices.Contains(rootFolders, v.name) {
		return render.Invalid(v.at+".name", fmt.Sprintf("a mount at /%s would hide a folder of the attachment Pod", v.name),
			"use another name, or a claim with volumeMode Block")
	}
	d.Container(hotplugContainer).Mount(corev1.VolumeMount{Name: v.name, MountPath: "/" + v.name})
	return nil
}

// reachedGuest reports whether the volume is attached to the guest. It never is on a migration's target.
func reachedGuest(d render.Draft, name string) bool {
	return d.Migration() == nil && slices.ContainsFunc(d.VMI().Status.VolumeStatus, func(s v1.VolumeStatus) bool {
		return s.Name == name && s.HotplugVolume != nil && (s.Phase == v1.VolumeReady || s.Phase == v1.HotplugVolumeMounted)
	})
}

// attachmentTolerations returns those of the owner and those of taints that are added to its node at runtime.
func attachmentTolerations(owner []corev1.Toleration) []corev1.Toleration {
	var all []corev1.Toleration
	for _, taint := range []string{
		corev1.TaintNodeUnschedulable, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeDiskPressure,
		corev1.TaintNodeMemoryPressure, corev1.TaintNodePIDPressure,
	} {
		all = append(all, corev1.Toleration{Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	all = append(all, copyTolerations(owner)...)
	slices.SortStableFunc(all, func(a, b corev1.Toleration) int { return cmp.Compare(a.Key, b.Key) })
	return slices.CompactFunc(all, func(a, b corev1.Toleration) bool { return equality.Semantic.DeepEqual(a, b) })
}

func copyTolerations(from []corev1.Toleration) []corev1.Toleration {
	all := make([]corev1.Toleration, len(from))
	for i := range from {
		from[i].DeepCopyInto(&all[i])
	}
	return all
}
