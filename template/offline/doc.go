// SPDX-License-Identifier: Apache-2.0

// Package offline builds the input of package template from manifests: it reads from files what a controller gathers from a
// cluster, so that every Pod of a VMI can be rendered, compared and explained without a cluster.
//
// [Read] decodes manifests strictly, [New] combines the objects of all files, [Cluster.Input] selects those that belong to
// the VMI:
//
//   - the only VirtualMachineInstance is the VMI; the only KubeVirt is the cluster's configuration
//   - PersistentVolumeClaims, ConfigMaps and ResourceQuotas are those of its namespace, labels are those of its Namespace
//   - the VirtualMachineInstanceMigration references it in spec.vmiName
//   - its Pods are controlled by it, or labeled as created by it
//   - the source Node is the node of its Pod
//   - of the only VirtualMachine, which replaces a VirtualMachineInstance, [Cluster.Start] makes the VMI, with the instance type,
//     preference and ControllerRevisions that it refers to; [Cluster.From] returns which of them has set a field
//   - a VirtualMachineExport is rendered without a VMI, to the bare exporter: its claims, certificate and token are chosen
//     by its controller and are in no manifest
//
// [Default] sets the defaults of KubeVirt's webhooks on a VMI.
//
// # Strictness
//
// A typo must not result in a Pod that lacks something. So an unknown field, a value of the wrong type, a duplicate object,
// an unknown kind and a second VMI are errors, all of type *[Error] with file, document, object, field and remedy.
//
// Kinds that are often in the same files, and of which a Pod uses the name only, are skipped: Secret, Service,
// ServiceAccount and NetworkPolicy. Of a DataVolume only the name of an instance type or preference is used, because its claim,
// not the DataVolume, has the volume and access modes of the disk. Every other kind is rejected: it may be a mistake in the
// list of files, which would be silent.
//
// Manifests in git lack fields that an API server sets. A missing namespace is default, and a missing UID is a stand-in
// derived from kind, namespace and name, so that the same files always result in the same Pod.
//
// All functions are pure: they read no API, clock, environment or file but the given readers.
package offline
