// SPDX-License-Identifier: Apache-2.0

package offline

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// migration returns the Pod input of the VMI's only migration.
func (c *Cluster) migration() (*render.Migration, error) {
	m, err := c.current()
	if err != nil {
		return nil, err
	}
	if m == nil {
		_, err := only[*v1.VirtualMachineInstanceMigration](c, nil, c.vmiName(),
			"unfinished VirtualMachineInstanceMigration with spec.vmiName "+c.VMI.Name)
		return nil, err
	}
	var source *corev1.Pod
	if !m.IsDecentralizedTarget() { // otherwise the source's Pod is in another cluster
		if source, err = c.sourcePod(); err != nil {
			return nil, err
		}
	}
	result := &render.Migration{
		UID: m.UID, Name: m.Name, AddedNodeSelector: m.Spec.AddedNodeSelector, SourcePod: source, SourceNode: c.node(source),
		Receives: m.IsDecentralizedTarget(),
	}
	if s := m.Status.MigrationState; s != nil {
		result.StateClaim = s.TargetPersistentStatePVCName
	}
	return result, nil
}

// current returns the VMI's migration that is not final; nil if there is none.
func (c *Cluster) current() (*v1.VirtualMachineInstanceMigration, error) {
	var mine []*v1.VirtualMachineInstanceMigration
	for _, m := range every[*v1.VirtualMachineInstanceMigration](c) {
		if m.Namespace == c.VMI.Namespace && m.Spec.VMIName == c.VMI.Name && !m.IsFinal() {
			mine = append(mine, m)
		}
	}
	if len(mine) == 0 {
		return nil, nil //nolint:nilnil // absence is an answer
	}
	return only(c, mine, c.vmiName(), "migration of the same VMI")
}

// sourcePod returns the Pod that the domain runs in.
func (c *Cluster) sourcePod() (*corev1.Pod, error) {
	m, err := c.current()
	if err != nil {
		return nil, err
	}
	var pods, here []*corev1.Pod
	for _, p := range every[*corev1.Pod](c) {
		if !c.owns(p) || m != nil && c.madeFor(p, m) {
			continue
		}
		pods = append(pods, p)
		if p.Spec.NodeName != "" && p.Spec.NodeName == c.VMI.Status.NodeName {
			here = append(here, p)
		}
	}
	if len(here) > 0 { // of several Pods, the one on the VMI's node
		pods = here
	}
	return only(c, pods, c.vmiName(), "launcher Pod")
}

// targetPod returns the target Pod of a migration; nil if no manifest has it.
func (c *Cluster) targetPod(m *v1.VirtualMachineInstanceMigration) *corev1.Pod {
	for _, p := range every[*corev1.Pod](c) {
		if c.owns(p) && c.madeFor(p, m) {
			return p
		}
	}
	return nil
}

// owns reports whether a Pod is a running launcher of the VMI. A VMI with a stand-in UID is matched by name.
func (c *Cluster) owns(p *corev1.Pod) bool {
	if p.Namespace != c.VMI.Namespace || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return false
	}
	if app, labelled := p.Labels[v1.AppLabel]; labelled && app != "virt-launcher" {
		return false
	}
	owner := metav1.GetControllerOf(p)
	if !c.vmi.StandIn {
		return owner != nil && owner.UID == c.VMI.UID || p.Labels[v1.CreatedByLabel] == string(c.VMI.UID)
	}
	if owner != nil {
		return owner.Kind == "VirtualMachineInstance" && owner.Name == c.VMI.Name
	}
	return p.Labels[v1.CreatedByLabel] == string(c.VMI.UID) || p.Annotations[v1.DomainAnnotation] == c.VMI.Name
}

// madeFor reports whether a Pod is the target of a migration. A migration with a stand-in UID is matched by name.
func (c *Cluster) madeFor(p *corev1.Pod, m *v1.VirtualMachineInstanceMigration) bool {
	if c.object(m).StandIn && p.Annotations[v1.MigrationJobNameAnnotation] == m.Name {
		return true
	}
	return p.Labels[v1.MigrationJobLabel] == string(m.UID)
}
