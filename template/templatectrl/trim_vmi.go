// SPDX-License-Identifier: Apache-2.0

package templatectrl

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// TrimVMI is a transform for the guests of a cache (cache.Options.ByObject, or DefaultTransform: it passes on what is no
// VirtualMachineInstance). Nothing is dropped of a guest except who wrote which field; what many guests say in the same
// words takes memory once. It changes the object in place and never returns an error.
func TrimVMI(object any) (any, error) {
	g, ok := object.(*v1.VirtualMachineInstance)
	if !ok {
		return object, nil
	}
	trimMeta(&g.ObjectMeta)
	g.Kind, g.APIVersion = one(g.Kind), one(g.APIVersion)
	s := &g.Spec
	s.Tolerations = share(&sharedTolerations, s.Tolerations)
	s.Affinity = shareAffinity(s.Affinity)
	s.SchedulerName, s.PriorityClassName, s.Architecture = one(s.SchedulerName), one(s.PriorityClassName), one(s.Architecture)
	st := &g.Status
	st.Phase, st.NodeName, st.Reason = one(st.Phase), one(st.NodeName), one(st.Reason)
	st.SelinuxContext, st.LauncherContainerImageVersion = one(st.SelinuxContext), one(st.LauncherContainerImageVersion)
	for i := range st.Conditions {
		c := &st.Conditions[i]
		c.Type, c.Status, c.Reason, c.Message = one(c.Type), one(c.Status), one(c.Reason), one(c.Message)
	}
	return g, nil
}

// trimMeta drops who wrote which field, and shares the words.
func trimMeta(m *metav1.ObjectMeta) {
	m.ManagedFields = nil
	m.Namespace = one(m.Namespace)
	m.Labels, m.Annotations = ones(m.Labels), ones(m.Annotations)
	for i := range m.Finalizers {
		m.Finalizers[i] = one(m.Finalizers[i])
	}
	for i := range m.OwnerReferences {
		o := &m.OwnerReferences[i]
		o.APIVersion, o.Kind = one(o.APIVersion), one(o.Kind)
	}
}
