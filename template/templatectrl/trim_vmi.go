// SPDX-License-Identifier: Apache-2.0

package templatectrl

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// TrimVMI is a transform for cached VMIs (cache.Options.ByObject, or DefaultTransform: it returns other objects unchanged).
// It drops the managed fields only, and shares strings that many VMIs have in common. It modifies the object in place and
// never returns an error.
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

// trimMeta drops the managed fields, and shares strings.
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
