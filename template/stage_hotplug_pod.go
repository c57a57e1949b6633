// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	hotplugContainer = "hotplug-disk"
	hotplugFolder    = "hotplug-disks" // the volume shared by node agent and Pod
	hotplugPath      = "/path"         // its mount path, which node agents rely on

	// KubeVirt's annotations that reference the VMI of a hotplug Pod.
	ownerNameAnnotation = "kubevirt.io/owner-vmi-name"
	ownerUIDAnnotation  = "kubevirt.io/owner-vmi-uid"
)

// hotplugPod sets the name, owner, container and security of a hotplug Pod. Service account and restart policy are left to
// the API server: KubeVirt's controller recognizes attachment Pods by the number of their volumes, including the mounted
// token.
func hotplugPod(d *render.Draft) error {
	if owner := d.Input().Hotplug.Owner.Namespace; owner != "" && owner != d.VMI().Namespace {
		return render.Invalid("Input.Hotplug.Owner.metadata.namespace", owner+" must be the namespace of the VMI", "use the Pod of this VMI")
	}
	volumes, err := hotplugVolumes(d)
	if err != nil {
		return err
	}
	hotplugMetadata(d, volumes)
	d.From("Config.LauncherImage").AddContainer(hotplugDisk(d))
	d.From("Config.ImagePullSecret").PullSecret(d.Config().ImagePullSecret)
	if class := d.VMI().Spec.PriorityClassName; class != "" {
		d.From("spec.priorityClassName").Set("spec.priorityClassName", func(p *corev1.Pod) { p.Spec.PriorityClassName = class })
	}
	d.Set("spec.terminationGracePeriodSeconds", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64) })
	return guestSELinuxLevel(d)
}

func hotplugMetadata(d *render.Draft, volumes []hotplugVolume) {
	owner := d.Input().Hotplug.Owner
	d.From("Input.Hotplug, Facts.Claims").Set("metadata.name", func(p *corev1.Pod) { p.Name = hotplugName(d.Kind(), owner, volumes) })
	d.From("metadata.namespace").Set("metadata.namespace", func(p *corev1.Pod) { p.Namespace = d.VMI().Namespace })
	d.From("Input.Hotplug.Owner").Set("metadata.ownerReferences", func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("Pod"))}
	})
	d.Label(v1.AppLabel, hotplugContainer)
	d.From("metadata.name").Annotation(ownerNameAnnotation, d.VMI().Name)
	d.From("metadata.uid").Annotation(ownerUIDAnnotation, string(d.VMI().UID))
}

func hotplugName(kind render.PodKind, owner *corev1.Pod, volumes []hotplugVolume) string {
	if kind == render.TriggerPod {
		return TriggerName(owner, volumes[0].name, volumes[0].claim.UID)
	}
	claims := make(map[string]types.UID, len(volumes))
	for _, v := range volumes {
		claims[v.name] = v.claim.UID
	}
	return AttachmentName(owner, claims)
}

func hotplugDisk(d *render.Draft) corev1.Container {
	propagation := corev1.MountPropagationHostToContainer
	context := supportSecurity()
	context.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	context.SELinuxOptions = &corev1.SELinuxOptions{}
	return corev1.Container{
		Name:            hotplugContainer,
		Image:           d.Config().LauncherImage,
		ImagePullPolicy: d.Config().ImagePullPolicy,
		Command:         hotplugCommand(d),
		SecurityContext: context,
		Resources: configuredResources(d, v1.HotplugAttachment,
			amounts{cpu: "10m", memory: "2M"}, amounts{cpu: "100m", memory: "80M"}),
		VolumeMounts: []corev1.VolumeMount{{Name: hotplugFolder, MountPath: hotplugPath, MountPropagation: &propagation}},
	}
}

// hotplugCommand waits for the node agent, or ends at once if only provisioning is needed.
func hotplugCommand(d *render.Draft) []string {
	if d.Kind() == render.TriggerPod && !d.Input().Hotplug.KeepRunning {
		return []string{"/bin/bash", "-c", "exit", "0"}
	}
	return []string{"/bin/sh", "-c", "/usr/bin/container-disk --copy-path " + hotplugPath + "/hp"}
}

// guestSELinuxLevel sets the level of the domain, which opens the volumes, on the container. The context is that of the
// VMI's own Pod; for a VMI that is received from another cluster, that of the source.
func guestSELinuxLevel(d *render.Draft) error {
	field, context := "status.selinuxContext", d.VMI().Status.SelinuxContext
	if m := d.VMI().Status.MigrationState; context == "" && m != nil && m.SourceState != nil && m.SourceState.SelinuxContext != "" {
		field, context = sourceContext, m.SourceState.SelinuxContext
	}
	level, err := selinuxLevel(field, context, "wait for the node agent's report")
	if err != nil {
		return err
	}
	if level == "" {
		level = "s0"
	}
	setSELinuxOption(d.From(field), "level", func(o *corev1.SELinuxOptions) { o.Level = level })
	return nil
}

// setSELinuxOption sets one SELinux option of the container that holds the volumes.
func setSELinuxOption(d render.Draft, option string, write func(*corev1.SELinuxOptions)) {
	d.Container(hotplugContainer).Set("securityContext.seLinuxOptions."+option, func(c *corev1.Container) {
		if c.SecurityContext == nil {
			c.SecurityContext = &corev1.SecurityContext{}
		}
		if c.SecurityContext.SELinuxOptions == nil {
			c.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{}
		}
		write(c.SecurityContext.SELinuxOptions)
	})
}
