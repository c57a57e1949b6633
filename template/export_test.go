// SPDX-License-Identifier: Apache-2.0

package template

import corev1 "k8s.io/api/core/v1"

// StageByStage renders a Pod and calls visit with it before and after each stage, with the fields that the stage owns then.
func StageByStage(kind PodKind, in Input, visit func(stage string, before, after *corev1.Pod, owned []string)) error {
	d, err := newRendering(kind, in)
	if err != nil {
		return err
	}
	defer d.ledger.release()
	stages := Default().stages
	for i := range stages {
		if !stages[i].appliesTo(kind) {
			continue
		}
		d.stage = &stages[i]
		before := d.pod.DeepCopy()
		if err := stages[i].Apply(&Draft{rendering: d}); err != nil {
			return err
		}
		if d.conflict != nil {
			return d.conflict
		}
		var owned []string
		for _, entry := range d.ledger.owners.entries {
			if entry.origin.stage == stages[i].Name {
				owned = append(owned, entry.field.String())
			}
		}
		visit(stages[i].Name, before, d.pod, owned)
	}
	return nil
}

// HeldToTheirWord returns the stock stages as if they were custom ones.
func HeldToTheirWord() *Renderer { return &Renderer{stages: stockStages()} }
