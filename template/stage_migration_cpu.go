// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// sameCPU restricts the target to nodes with the source's CPU vendor and, for host-model VMIs, to nodes that support the
// source's model.
func sameCPU(d *render.Draft) error {
	if cpu := d.VMI().Spec.Domain.CPU; cpu != nil && cpu.Model == v1.CPUModeHostModel {
		if err := sameHostModel(d); err != nil {
			return err
		}
	}
	if hasPrefix(d.View().Spec.NodeSelector, v1.CPUModelVendorLabel) {
		return nil
	}
	labels, from := sourceLabels(d)
	for _, key := range sortedKeys(labels) {
		if strings.HasPrefix(key, v1.CPUModelVendorLabel) {
			d.From(from).NodeSelector(key, "true")
			return nil
		}
	}
	return nil
}

// sourceLabels returns the labels of the source's node. A VMI that is received from another cluster carries the relevant
// ones.
func sourceLabels(d *render.Draft) (labels map[string]string, from string) {
	switch {
	case d.Migration().Receives:
		return source(d).NodeSelectors, "status.migrationState.sourceState.nodeSelectors"
	case d.Migration().SourceNode != nil:
		return d.Migration().SourceNode.Labels, "Input.Migration.SourceNode labels"
	default:
		return nil, ""
	}
}

func sameHostModel(d *render.Draft) error {
	// After a migration, a VMI keeps the model it was started with, not that of its current node.
	inherited := false
	var carried map[string]string
	if !d.Migration().Receives { // otherwise its Pod is in another namespace or cluster
		carried = d.Migration().SourcePod.Spec.NodeSelector
	}
	for _, key := range sortedKeys(carried) {
		if strings.HasPrefix(key, v1.SupportedHostModelMigrationCPU) || strings.HasPrefix(key, v1.CPUFeatureLabel) {
			d.From("Input.Migration.SourcePod spec.nodeSelector").NodeSelector(key, carried[key])
			inherited = true
		}
	}
	if inherited {
		return nil
	}
	labels, from := sourceLabels(d)
	if !hasPrefix(labels, v1.HostModelCPULabel) {
		return &render.Error{
			Field:  "spec.domain.cpu.model",
			Reason: fmt.Sprintf("the source node has no label %s<model>, so the CPU model of the migration is unknown", v1.HostModelCPULabel),
			Remedy: "label the node, or set a named CPU model on the VMI", Err: render.ErrMissingFact,
		}
	}
	for _, key := range sortedKeys(labels) {
		if model, ok := strings.CutPrefix(key, v1.HostModelCPULabel); ok {
			d.From(from).NodeSelector(v1.SupportedHostModelMigrationCPU+model, "true")
		}
		if feature, ok := strings.CutPrefix(key, v1.HostModelRequiredFeaturesLabel); ok {
			d.From(from).NodeSelector(v1.CPUFeatureLabel+feature, "true")
		}
	}
	return nil
}

func hasPrefix(m map[string]string, prefix string) bool {
	for key := range m {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}
