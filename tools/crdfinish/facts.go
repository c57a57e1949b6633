// SPDX-License-Identifier: Apache-2.0

package main

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// fact is what KubeVirt's definition of one object says beyond the schema.
type fact struct {
	cluster    bool     // cluster scope instead of namespaced
	status     bool     // status is a subresource; if not, it is written with the object
	scale      bool     // spec.replicas and status.replicas are behind the scale subresource
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

// facts by name of the definition. The status of a VirtualMachineInstance is no subresource: its
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
	"virtualmachineinstancereplicasets.kubevirt.io": {
		status: true, scale: true,
		shortNames: []string{"vmirs", "vmirss"},
		columns:    replicaColumns,
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
	"virtualmachinepools.pool.kubevirt.io": {
		status: true, scale: true,
		shortNames: []string{"vmpool", "vmpools"},
		columns:    replicaColumns,
	},
	"virtualmachinesnapshots.snapshot.kubevirt.io": {
		status:     true,
		shortNames: []string{"vmsnapshot", "vmsnapshots"},
		columns: []column{
			{name: "SourceKind", path: ".spec.source.kind"},
			{name: "SourceName", path: ".spec.source.name"},
			phaseColumn,
			{name: "ReadyToUse", path: ".status.readyToUse", kind: "boolean"},
			{name: "CreationTime", path: ".status.creationTime", kind: "date"},
			{name: "Error", path: ".status.error.message"},
		},
	},
	"virtualmachinesnapshotcontents.snapshot.kubevirt.io": {
		status:     true,
		shortNames: []string{"vmsnapshotcontent", "vmsnapshotcontents"},
		columns: []column{
			{name: "ReadyToUse", path: ".status.readyToUse", kind: "boolean"},
			{name: "CreationTime", path: ".status.creationTime", kind: "date"},
			{name: "Error", path: ".status.error.message"},
		},
	},
	"virtualmachinerestores.snapshot.kubevirt.io": {
		status:     true,
		shortNames: []string{"vmrestore", "vmrestores"},
		columns: []column{
			{name: "TargetKind", path: ".spec.target.kind"},
			{name: "TargetName", path: ".spec.target.name"},
			{name: "Complete", path: ".status.complete", kind: "boolean"},
			{name: "RestoreTime", path: ".status.restoreTime", kind: "date"},
		},
	},
	"virtualmachineexports.export.kubevirt.io": {
		status:     true,
		shortNames: []string{"vmexport", "vmexports"},
		columns: []column{
			{name: "SourceKind", path: ".spec.source.kind"},
			{name: "SourceName", path: ".spec.source.name"},
			phaseColumn,
		},
	},
	"virtualmachineclones.clone.kubevirt.io": {
		status:     true,
		shortNames: []string{"vmclone", "vmclones"},
		columns: []column{
			phaseColumn,
			{name: "SourceVirtualMachine", path: ".spec.source.name"},
			{name: "TargetVirtualMachine", path: ".spec.target.name"},
		},
	},
	"virtualmachinebackups.backup.kubevirt.io": {
		status:     true,
		shortNames: []string{"vmbackup", "vmbackups"},
		columns: []column{
			{name: "SourceKind", path: ".spec.source.kind"},
			{name: "SourceName", path: ".spec.source.name"},
			{name: "Type", path: ".status.type"},
			{name: "CheckpointName", path: ".status.checkpointName"},
		},
	},
	"virtualmachinebackuptrackers.backup.kubevirt.io": {
		status:     true,
		shortNames: []string{"vmbackuptracker", "vmbackuptrackers"},
		columns: []column{
			{name: "SourceKind", path: ".spec.source.kind"},
			{name: "SourceName", path: ".spec.source.name"},
			{name: "LatestCheckpoint", path: ".status.latestCheckpoint.name"},
			{name: "CheckpointTime", path: ".status.latestCheckpoint.creationTime", kind: "date"},
		},
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
}

var replicaColumns = []column{
	{name: "Desired", path: ".spec.replicas", kind: "integer"},
	{name: "Current", path: ".status.replicas", kind: "integer"},
	{name: "Ready", path: ".status.readyReplicas", kind: "integer"},
	ageColumn,
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
	if !f.status && !f.scale {
		return nil
	}
	s := &apiextensionsv1.CustomResourceSubresources{}
	if f.status {
		s.Status = &apiextensionsv1.CustomResourceSubresourceStatus{}
	}
	if f.scale {
		selector := ".status.labelSelector"
		s.Scale = &apiextensionsv1.CustomResourceSubresourceScale{
			SpecReplicasPath:   ".spec.replicas",
			StatusReplicasPath: ".status.replicas",
			LabelSelectorPath:  &selector,
		}
	}
	return s
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
