// SPDX-License-Identifier: Apache-2.0

package main

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// fact is what KubeVirt's definition of one object says beyond the schema.
type fact struct {
	cluster    bool     // cluster scope instead of namespaced
	status     bool     // status is a subresource; if not, it is written with the object
	shortNames []string // for kubectl
	hidden     bool     // not part of "kubectl get all"
	columns    []column // what "kubectl get" prints
}

// column is a printer column: its heading, its JSON path and, unless it is a string, its type.
type column struct {
	name, path, kind string
	wide             bool // shown with -o wide only
}

// Columns that appear in more than one definition.
var (
	readyColumn = condition("Ready", "Ready", false)
	ageColumn   = column{name: "Age", path: ".metadata.creationTimestamp", kind: "date"}
	phaseColumn = column{name: "Phase", path: ".status.phase"}
)

func condition(heading, conditionType string, wide bool) column {
	return column{name: heading, path: ".status.conditions[?(@.type=='" + conditionType + "')].status", wide: wide}
}

// facts by name of the definition, of those kinds that virtloom reconciles or reads: an object of any other kind would
// be accepted by the API server and then ignored. The status of a VirtualMachineInstance is no subresource: its
// writers update object and status in one request, and rely on it.
var facts = map[string]fact{
	"virtualmachineinstances.kubevirt.io": {
		shortNames: []string{"vmi", "vmis"},
		columns: []column{
			ageColumn,
			phaseColumn,
			{name: "IP", path: ".status.interfaces[0].ipAddress"},
			{name: "NodeName", path: ".status.nodeName"},
			readyColumn,
			condition("Live-Migratable", "LiveMigratable", true),
			condition("Paused", "Paused", true),
		},
	},
	"virtualmachines.kubevirt.io": {
		status:     true,
		shortNames: []string{"vm", "vms"},
		columns:    []column{ageColumn, {name: "Status", path: ".status.printableStatus"}, readyColumn},
	},
	"virtualmachineinstancetypes.instancetype.kubevirt.io": {
		shortNames: []string{"vminstancetype", "vminstancetypes", "vmf", "vmfs"},
	},
	"virtualmachineclusterinstancetypes.instancetype.kubevirt.io": {
		cluster: true, hidden: true,
		shortNames: []string{"vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"},
	},
	"virtualmachinepreferences.instancetype.kubevirt.io": {
		shortNames: []string{"vmpref", "vmprefs", "vmp", "vmps"},
	},
	"virtualmachineclusterpreferences.instancetype.kubevirt.io": {
		cluster: true, hidden: true,
		shortNames: []string{"vmcp", "vmcps"},
	},
	"virtualmachineinstancemigrations.kubevirt.io": {
		status:     true,
		shortNames: []string{"vmim", "vmims"},
		columns:    []column{phaseColumn, {name: "VMI", path: ".spec.vmiName"}},
	},
	"kubevirts.kubevirt.io": {
		status:     true,
		shortNames: []string{"kv", "kvs"},
		columns:    []column{ageColumn, phaseColumn},
	},
	"migrationpolicies.migrations.kubevirt.io": {cluster: true, status: true, hidden: true},
}

// apply completes a definition of one version.
func (f fact) apply(definition *apiextensionsv1.CustomResourceDefinition) {
	spec := &definition.Spec
	spec.Scope = apiextensionsv1.NamespaceScoped
	if f.cluster {
		spec.Scope = apiextensionsv1.ClusterScoped
	}
	spec.Names.ShortNames = f.shortNames
	if !f.hidden {
		spec.Names.Categories = []string{"all"}
	}
	version := &spec.Versions[0]
	version.Subresources = f.subresources()
	for _, c := range f.columns {
		version.AdditionalPrinterColumns = append(version.AdditionalPrinterColumns, c.definition())
	}
}

func (f fact) subresources() *apiextensionsv1.CustomResourceSubresources {
	if !f.status {
		return nil
	}
	return &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
}

func (c column) definition() apiextensionsv1.CustomResourceColumnDefinition {
	d := apiextensionsv1.CustomResourceColumnDefinition{Name: c.name, Type: c.kind, JSONPath: c.path}
	if d.Type == "" {
		d.Type = "string"
	}
	if c.wide {
		d.Priority = 1
	}
	return d
}
