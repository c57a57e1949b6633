// SPDX-License-Identifier: Apache-2.0

package templatectrl

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// computeContainer is the container that runs the guest.
const computeContainer = "compute"

// lastApplied is kubectl's annotation with the whole object.
const lastApplied = corev1.LastAppliedConfigAnnotation

// TrimPod is a transform for cached Pods (cache.Options.ByObject, or DefaultTransform: it returns other objects unchanged).
// It drops in place the fields of a running Pod that no controller of this module reads, which are most of it: commands,
// environment and mounts of containers, sources of volumes other than claims and images, irrelevant conditions, and managed
// fields. It keeps the fields that determine the Pod's placement and those from which other Pods are rendered
// (Migration.SourcePod, Hotplug.Owner). Pods with equal containers share them, so cached Pods must not be modified in
// place. A trimmed Pod may be patched, since a difference of two of them does not include the dropped fields; it must not
// be updated or created. TrimPod never returns an error.
func TrimPod(object any) (any, error) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	delete(p.Annotations, lastApplied)
	trimMeta(&p.ObjectMeta)
	trimSpec(&p.Spec)
	st := &p.Status
	st.InitContainerStatuses, st.ContainerStatuses = mapped(st.InitContainerStatuses, trimStatus), mapped(st.ContainerStatuses, trimStatus)
	st.Conditions = slices.Clone(slices.DeleteFunc(st.Conditions, idle))
	st.EphemeralContainerStatuses, st.PodIPs, st.HostIPs = nil, nil, nil
	return p, nil
}

func trimSpec(s *corev1.PodSpec) {
	s.InitContainers = share(&sharedContainers, mapped(s.InitContainers, trimContainer))
	s.Containers = share(&sharedContainers, mapped(s.Containers, trimContainer))
	s.EphemeralContainers, s.ImagePullSecrets, s.HostAliases = nil, nil, nil
	s.SecurityContext, s.DNSConfig, s.ReadinessGates = nil, nil, nil
	s.DNSPolicy, s.DeprecatedServiceAccount = "", ""
	s.NodeName, s.ServiceAccountName, s.SchedulerName = one(s.NodeName), one(s.ServiceAccountName), one(s.SchedulerName)
	s.Tolerations = share(&sharedTolerations, s.Tolerations)
	s.Affinity = shareAffinity(s.Affinity)
	s.Volumes = slices.Clone(slices.DeleteFunc(s.Volumes, unread))
	if !slices.ContainsFunc(s.Volumes, claims) { // they are specific to their VMI
		s.Volumes = share(&sharedVolumes, s.Volumes)
	}
}

// mapped returns a list without spare capacity, so that dropped elements take no memory.
func mapped[T any](list []T, to func(T) T) []T {
	if len(list) == 0 {
		return nil
	}
	out := make([]T, len(list))
	for i := range list {
		out[i] = to(list[i])
	}
	return out
}

// trimContainer keeps name, resources and image of a container.
func trimContainer(c corev1.Container) corev1.Container {
	var taken []corev1.ContainerPort
	for _, p := range c.Ports {
		if p.HostPort != 0 {
			taken = append(taken, p)
		}
	}
	r := corev1.ResourceRequirements{Requests: c.Resources.Requests}
	if c.Name == computeContainer {
		r.Limits = c.Resources.Limits
	}
	if key, err := r.Marshal(); err == nil {
		r = sharedResources.of(string(key), r)
	}
	r.Claims = c.Resources.Claims
	return corev1.Container{Name: one(c.Name), Image: one(c.Image), Ports: taken, Resources: r, RestartPolicy: c.RestartPolicy}
}

// idle reports whether the condition is irrelevant: the node of a scheduled Pod implies it.
func idle(c corev1.PodCondition) bool {
	switch c.Type {
	case corev1.PodReady, v1.VirtualMachineUnpaused:
		return false
	case corev1.PodScheduled:
		return c.Status != corev1.ConditionFalse
	default:
		return true
	}
}

// unread reports whether the volume is irrelevant: it is neither a claim nor an image.
func unread(v corev1.Volume) bool { return !claims(v) && v.Image == nil }

func claims(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }

func trimStatus(s corev1.ContainerStatus) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: one(s.Name), State: s.State, Ready: s.Ready, RestartCount: s.RestartCount, Image: one(s.Image), ImageID: one(s.ImageID), Started: s.Started,
	}
}
