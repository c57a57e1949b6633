// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
)

const (
	hotplugContainer = "hotplug-disk"
	hotplugFolder    = "hotplug-disks" // the volume in which node agent and Pod meet
	hotplugPath      = "/path"         // where the container has it; node agents look there
	hotplugSecurity  = "spec.containers[" + hotplugContainer + "].securityContext"

	// KubeVirt's names of the annotations that lead from a hotplug Pod back to its guest.
	ownerNameAnnotation = "kubevirt.io/owner-vmi-name"
	ownerUIDAnnotation  = "kubevirt.io/owner-vmi-uid"
)

// hotplugPod gives a hotplug Pod its name, owner, container and security. Which service account it runs under and whether
// it restarts is left to the API server: KubeVirt's controller recognises attachment Pods by the number of their volumes,
// the mounted token among them.
func hotplugPod(d *Draft) error {
	if owner := d.input.Hotplug.Owner.Namespace; owner != "" && owner != d.vmi.Namespace {
		return invalid("Input.Hotplug.Owner.metadata.namespace", owner+" is not the namespace of the guest", "give the Pod of this guest")
	}
	volumes, err := pluggedVolumes(d)
	if err != nil {
		return err
	}
	hotplugMetadata(d, volumes)
	d.From("Config.LauncherImage").Container(hotplugDisk(d))
	d.From("Config.ImagePullSecret").PullSecret(d.config.ImagePullSecret)
	if class := d.vmi.Spec.PriorityClassName; class != "" {
		d.From("spec.priorityClassName").Set("spec.priorityClassName", func(p *corev1.Pod) { p.Spec.PriorityClassName = class })
	}
	d.Set("spec.terminationGracePeriodSeconds", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64) })
	return guestSELinuxLevel(d)
}

func hotplugMetadata(d *Draft, volumes []plugged) {
	owner := d.input.Hotplug.Owner
	d.From("Input.Hotplug, Facts.Claims").Set("metadata.name", func(p *corev1.Pod) { p.Name = hotplugName(d.kind, owner, volumes) })
	d.From("metadata.namespace").Set("metadata.namespace", func(p *corev1.Pod) { p.Namespace = d.vmi.Namespace })
	d.From("Input.Hotplug.Owner").Set("metadata.ownerReferences", func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("Pod"))}
	})
	d.Label(v1.AppLabel, hotplugContainer)
	d.From("metadata.name").Annotation(ownerNameAnnotation, d.vmi.Name)
	d.From("metadata.uid").Annotation(ownerUIDAnnotation, string(d.vmi.UID))
}

func hotplugName(kind PodKind, owner *corev1.Pod, volumes []plugged) string {
	if kind == TriggerPod {
		return TriggerName(owner, volumes[0].name, volumes[0].claim.UID)
	}
	claims := make(map[string]types.UID, len(volumes))
	for _, v := range volumes {
		claims[v.name] = v.claim.UID
	}
	return AttachmentName(owner, claims)
}

func hotplugDisk(d *Draft) corev1.Container {
	propagation := corev1.MountPropagationHostToContainer
	context := supportSecurity()
	context.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	context.SELinuxOptions = &corev1.SELinuxOptions{}
	return corev1.Container{
		Name:            hotplugContainer,
		Image:           d.config.LauncherImage,
		ImagePullPolicy: d.config.ImagePullPolicy,
		Command:         hotplugCommand(d),
		SecurityContext: context,
		Resources: configuredResources(d, v1.HotplugAttachment,
			amounts{cpu: "10m", memory: "2M"}, amounts{cpu: "100m", memory: "80M"}),
		VolumeMounts: []corev1.VolumeMount{{Name: hotplugFolder, MountPath: hotplugPath, MountPropagation: &propagation}},
	}
}

// hotplugCommand waits for the node agent, or ends at once where nothing is wanted but a provisioned claim.
func hotplugCommand(d *Draft) []string {
	if d.kind == TriggerPod && !d.input.Hotplug.KeepRunning {
		return []string{"/bin/bash", "-c", "exit", "0"}
	}
	return []string{"/bin/sh", "-c", "/usr/bin/container-disk --copy-path " + hotplugPath + "/hp"}
}

// guestSELinuxLevel gives the container the level of the guest, which is to open what the container holds. The context is
// that of the guest's own Pod; for a guest that is being received from another cluster, that of the sending one.
func guestSELinuxLevel(d *Draft) error {
	field, context := "status.selinuxContext", d.vmi.Status.SelinuxContext
	if m := d.vmi.Status.MigrationState; context == "" && m != nil && m.SourceState != nil && m.SourceState.SelinuxContext != "" {
		field, context = sourceContext, m.SourceState.SelinuxContext
	}
	level, err := selinuxLevel(field, context, "wait for the node agent to report it")
	if err != nil {
		return err
	}
	if level == "" {
		level = "s0"
	}
	setSELinuxOption(d.From(field), "level", func(o *corev1.SELinuxOptions) { o.Level = level })
	return nil
}

// setSELinuxOption sets one SELinux option of the container that holds the volumes. Stages of others may have added
// containers before it.
func setSELinuxOption(d Draft, option string, write func(*corev1.SELinuxOptions)) {
	if c, _ := d.container(hotplugContainer, "", ""); c == nil {
		return // container has noted that
	}
	d.Set(hotplugSecurity+".seLinuxOptions."+option, func(p *corev1.Pod) {
		c := containerOf(p, hotplugContainer)
		if c.SecurityContext == nil {
			c.SecurityContext = &corev1.SecurityContext{}
		}
		if c.SecurityContext.SELinuxOptions == nil {
			c.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{}
		}
		write(c.SecurityContext.SELinuxOptions)
	})
}
