// SPDX-License-Identifier: Apache-2.0

package template

// MultusAnnotations generates the annotations by which Multus attaches secondary networks.
type MultusAnnotations struct{}

// Annotations implements AnnotationGenerator.
func (MultusAnnotations) Annotations(Input) (map[string]string, error) { return nil, nil }
