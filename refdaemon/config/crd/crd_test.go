// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/virtloom/virtloom/refdaemon/config/crd"
)

// shape is what a definition says beyond its schema.
type shape struct {
	Version string
	Cluster bool
	Status  bool
}

func TestDefinitions_MatchKubeVirt(t *testing.T) {
	want := map[string]shape{
		"kubevirts.kubevirt.io":                                       {Version: "v1", Status: true},
		"virtualmachines.kubevirt.io":                                 {Version: "v1", Status: true},
		"virtualmachineclusterinstancetypes.instancetype.kubevirt.io": {Version: "v1beta1", Cluster: true},
		"virtualmachineclusterpreferences.instancetype.kubevirt.io":   {Version: "v1beta1", Cluster: true},
		"virtualmachineinstancetypes.instancetype.kubevirt.io":        {Version: "v1beta1"},
		"virtualmachinepreferences.instancetype.kubevirt.io":          {Version: "v1beta1"},
		"migrationpolicies.migrations.kubevirt.io":                    {Version: "v1alpha1", Cluster: true, Status: true},
		"virtualmachineinstancemigrations.kubevirt.io":                {Version: "v1", Status: true},
		"virtualmachineinstances.kubevirt.io":                         {Version: "v1"},
	}
	got := map[string]shape{}
	for _, d := range definitions(t) {
		if len(d.Spec.Versions) != 1 {
			t.Fatalf("%s has %d versions, want 1", d.Name, len(d.Spec.Versions))
		}
		v := d.Spec.Versions[0]
		s := shape{Version: v.Name, Cluster: d.Spec.Scope == apiextensionsv1.ClusterScoped}
		if v.Subresources != nil {
			s.Status = v.Subresources.Status != nil
		}
		got[d.Name] = s
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDefinitions_Names(t *testing.T) {
	short := map[string]string{}
	for _, d := range definitions(t) {
		if want := d.Spec.Names.Plural + "." + d.Spec.Group; d.Name != want {
			t.Errorf("%s: want the name %s", d.Name, want)
		}
		if v := d.Spec.Versions[0]; !v.Served || !v.Storage {
			t.Errorf("%s: version %s: served %v, stored %v", d.Name, v.Name, v.Served, v.Storage)
		}
		for _, name := range d.Spec.Names.ShortNames {
			if other, taken := short[name]; taken {
				t.Errorf("short name %s of %s belongs to %s", name, d.Name, other)
			}
			short[name] = d.Name
		}
	}
}

// TestSchemas_Structural checks the rules by which the API server turns a schema down that are
// easily broken by a type: every node has a type or says why not, an array says what is in it, and
// an object does not mix fields with arbitrary keys.
func TestSchemas_Structural(t *testing.T) {
	for _, d := range definitions(t) {
		schema := d.Spec.Versions[0].Schema
		if schema == nil || schema.OpenAPIV3Schema == nil {
			t.Errorf("%s: no schema", d.Name)
			continue
		}
		for _, problem := range problems(schema.OpenAPIV3Schema, d.Name) {
			t.Error(problem)
		}
		if _, ok := schema.OpenAPIV3Schema.Properties["spec"]; !ok {
			t.Errorf("%s: no spec", d.Name)
		}
	}
}

func problems(s *apiextensionsv1.JSONSchemaProps, at string) []string {
	var found []string
	unknown := s.XPreserveUnknownFields != nil && *s.XPreserveUnknownFields
	if s.Type == "" && !s.XIntOrString && !unknown {
		found = append(found, at+" has no type")
	}
	if s.Type == "array" && (s.Items == nil || s.Items.Schema == nil) {
		found = append(found, at+" is an array of nothing")
	}
	if s.AdditionalProperties != nil && len(s.Properties) > 0 {
		found = append(found, at+" mixes fields and arbitrary keys")
	}
	for name := range s.Properties {
		property := s.Properties[name]
		found = append(found, problems(&property, fmt.Sprintf("%s.%s", at, name))...)
	}
	if s.Items != nil && s.Items.Schema != nil {
		found = append(found, problems(s.Items.Schema, at+"[]")...)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		found = append(found, problems(s.AdditionalProperties.Schema, at+"{}")...)
	}
	return found
}

// "kubectl explain" prints the descriptions.
func TestSchemas_Described(t *testing.T) {
	for _, d := range definitions(t) {
		spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		described := 0
		for name := range spec.Properties {
			if spec.Properties[name].Description != "" {
				described++
			}
		}
		if described == 0 {
			t.Errorf("%s: none of the %d fields of spec has a description", d.Name, len(spec.Properties))
		}
	}
}

func TestDefinitions_ReturnCopies(t *testing.T) {
	definitions(t)[0].Name = "changed"
	if name := definitions(t)[0].Name; name == "changed" {
		t.Error("the change of one caller is seen by the next")
	}
}

func definitions(t *testing.T) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	definitions, err := crd.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	return definitions
}
