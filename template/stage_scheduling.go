// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// scheduling copies the VMI's scheduling fields.
func scheduling(d *render.Draft) error {
	spec := &d.VMI().Spec
	if len(spec.Tolerations) > 0 {
		d.From("spec.tolerations").Set("spec.tolerations", func(p *corev1.Pod) { p.Spec.Tolerations = spec.Tolerations })
	}
	if len(spec.TopologySpreadConstraints) > 0 {
		d.From("spec.topologySpreadConstraints").Set("spec.topologySpreadConstraints", func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = spec.TopologySpreadConstraints
		})
	}
	if spec.SchedulerName != "" {
		d.From("spec.schedulerName").Set("spec.schedulerName", func(p *corev1.Pod) { p.Spec.SchedulerName = spec.SchedulerName })
	}
	return nil
}
