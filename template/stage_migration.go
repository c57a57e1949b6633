// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

// migrationDeltas makes a launcher Pod a migration target: its own name, marked with the migration, on another node
// whose CPU can take the guest over.
func migrationDeltas(d *Draft) error {
	m := d.migration
	if m == nil {
		return nil
	}
	d.Set("metadata.name", func(p *corev1.Pod) { p.Name = TargetName(d.vmi, m.UID) })
	d.Label(v1.MigrationJobLabel, string(m.UID))
	d.Annotation(v1.MigrationJobNameAnnotation, m.Name)
	for _, key := range slices.Sorted(maps.Keys(m.AddedNodeSelector)) {
		if _, rendered := d.pod.Spec.NodeSelector[key]; !rendered {
			d.NodeSelector(key, m.AddedNodeSelector[key])
		}
	}
	avoidSource(d)
	if err := sameCPU(d); err != nil {
		return err
	}
	return sameSELinuxLevel(d)
}

// avoidSource keeps the target off every node that has a Pod of the same guest.
func avoidSource(d *Draft) {
	d.Set("spec.affinity", func(p *corev1.Pod) {
		if p.Spec.Affinity == nil {
			p.Spec.Affinity = &corev1.Affinity{}
		}
		if p.Spec.Affinity.PodAntiAffinity == nil {
			p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		anti := p.Spec.Affinity.PodAntiAffinity
		anti.RequiredDuringSchedulingIgnoredDuringExecution = append(anti.RequiredDuringSchedulingIgnoredDuringExecution,
			corev1.PodAffinityTerm{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{v1.CreatedByLabel: string(d.vmi.UID)}},
				TopologyKey:   corev1.LabelHostname,
			})
	})
}

// sameCPU restricts the target to nodes with the source's CPU vendor and, for a guest that sees the host's model, to nodes
// that can show it the same model.
func sameCPU(d *Draft) error {
	if cpu := d.vmi.Spec.Domain.CPU; cpu != nil && cpu.Model == v1.CPUModeHostModel {
		if err := sameHostModel(d); err != nil {
			return err
		}
	}
	if d.migration.SourceNode == nil || hasPrefix(d.pod.Spec.NodeSelector, v1.CPUModelVendorLabel) {
		return nil
	}
	labels := d.migration.SourceNode.Labels
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if strings.HasPrefix(key, v1.CPUModelVendorLabel) {
			d.NodeSelector(key, "true")
			return nil
		}
	}
	return nil
}

func sameHostModel(d *Draft) error {
	// A guest that has migrated before keeps the model it was started with, not that of the node it is on now.
	inherited := false
	source := d.migration.SourcePod.Spec.NodeSelector
	for _, key := range slices.Sorted(maps.Keys(source)) {
		if strings.HasPrefix(key, v1.SupportedHostModelMigrationCPU) || strings.HasPrefix(key, v1.CPUFeatureLabel) {
			d.NodeSelector(key, source[key])
			inherited = true
		}
	}
	if inherited {
		return nil
	}
	var labels map[string]string
	if d.migration.SourceNode != nil {
		labels = d.migration.SourceNode.Labels
	}
	if !hasPrefix(labels, v1.HostModelCPULabel) {
		return &Error{
			Field:  "spec.domain.cpu.model",
			Reason: fmt.Sprintf("the source node has no label %s<model>, so the model to migrate is not known", v1.HostModelCPULabel),
			Remedy: "label the node, or give the guest a named CPU model", Err: ErrMissingFact,
		}
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if model, ok := strings.CutPrefix(key, v1.HostModelCPULabel); ok {
			d.NodeSelector(v1.SupportedHostModelMigrationCPU+model, "true")
		}
		if feature, ok := strings.CutPrefix(key, v1.HostModelRequiredFeaturesLabel); ok {
			d.NodeSelector(v1.CPUFeatureLabel+feature, "true")
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

// sameSELinuxLevel gives the target the categories of the source, without which it may not open shared disks.
func sameSELinuxLevel(d *Draft) error {
	const field = "status.selinuxContext"
	context := d.vmi.Status.SelinuxContext
	if d.config.IgnoreSELinuxLevel || context == "none" {
		return nil
	}
	if context == "" {
		return &Error{
			Field: field, Reason: "is not known yet", Err: ErrMissingFact,
			Remedy: "wait for the node agent to report it, or set Config.IgnoreSELinuxLevel",
		}
	}
	parts := strings.SplitN(context, ":", 4)
	if len(parts) < 4 {
		return invalid(field, fmt.Sprintf("%q is no SELinux context", context), "report user:role:type:level")
	}
	d.Set("spec.securityContext", func(p *corev1.Pod) {
		if p.Spec.SecurityContext.SELinuxOptions == nil {
			p.Spec.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{}
		}
		p.Spec.SecurityContext.SELinuxOptions.Level = parts[3]
	})
	return nil
}
