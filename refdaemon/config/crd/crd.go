// SPDX-License-Identifier: Apache-2.0

// Package crd holds the definitions of the KubeVirt kinds that virtloom reconciles or reads, for clusters without
// KubeVirt. Such a cluster rejects objects of other kinds instead of ignoring them.
// The YAML files are generated from the types of kubevirt.io/api ("make generate"), with the descriptions that
// "kubectl explain" prints, and serve the version that KubeVirt stores; scope, subresources, short names and printer
// columns are KubeVirt's.
package crd

import (
	"embed"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:embed *kubevirt.io_*.yaml
var files embed.FS

// Definitions returns all definitions, ordered by group and plural name. Every call decodes them
// anew, so the caller may modify them.
func Definitions() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("read definitions: %w", err)
	}
	definitions := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(entries))
	for _, entry := range entries {
		text, err := files.ReadFile(entry.Name())
		if err != nil {
			return nil, fmt.Errorf("read definitions: %w", err)
		}
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, definition); err != nil {
			return nil, fmt.Errorf("definition in %s: %w", entry.Name(), err)
		}
		definitions = append(definitions, definition)
	}
	return definitions, nil
}
