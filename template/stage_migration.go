// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// migrationMarks marks the Pods of a migration. A target has its own name and avoids nodes with a Pod of the same VMI.
func migrationMarks(d *render.Draft) error {
	m := d.Migration()
	if m == nil {
		return nil
	}
	d.From("Input.Migration.UID").Label(v1.MigrationJobLabel, string(m.UID))
	d.From("Input.Migration.Name").Annotation(v1.MigrationJobNameAnnotation, m.Name)
	if d.Kind() != render.TargetPod {
		return nil
	}
	d.From("metadata.uid, Input.Migration.UID").Set("metadata.name", func(p *corev1.Pod) { p.Name = TargetName(d.VMI(), m.UID) })
	for _, key := range sortedKeys(m.AddedNodeSelector) {
		if _, rendered := d.View().Spec.NodeSelector[key]; !rendered {
			d.From("Input.Migration.AddedNodeSelector").NodeSelector(key, m.AddedNodeSelector[key])
		}
	}
	if m.Receives {
		return avoidSourceNode(d)
	}
	d.From("metadata.uid").Affinity().AvoidPods(corev1.PodAffinityTerm{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{v1.CreatedByLabel: string(d.VMI().UID)}},
		TopologyKey:   corev1.LabelHostname,
	})
	return nil
}

// avoidSourceNode keeps the target off the source's node by name: the Pod there belongs to another VMI, perhaps of another
// cluster. The node is excluded in all required terms, since they are alternatives.
func avoidSourceNode(d *render.Draft) error {
	const field = "status.migrationState.sourceState.node"
	node := source(d).Node
	if node == "" {
		return &render.Error{
			Field: field, Reason: "must be set", Remedy: "wait for the source's report", Err: render.ErrMissingFact,
		}
	}
	d.From(field).Affinity().RequireNode(corev1.NodeSelectorRequirement{
		Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{node},
	})
	return nil
}

// source returns the state that the source has reported about a VMI that is received.
func source(d *render.Draft) v1.VirtualMachineInstanceMigrationSourceState {
	if m := d.VMI().Status.MigrationState; m != nil && m.SourceState != nil {
		return *m.SourceState
	}
	return v1.VirtualMachineInstanceMigrationSourceState{}
}
