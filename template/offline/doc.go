// SPDX-License-Identifier: Apache-2.0

// Package offline makes the input of package template from manifests: what a controller gathers from a cluster is read
// from files here, so that every Pod of a guest can be rendered, compared and explained without a cluster.
//
// [Read] decodes manifests strictly, [New] puts the objects of all files together, [Cluster.Input] chooses those that
// belong to the guest:
//
//   - the only VirtualMachineInstance is the guest; the only KubeVirt is the cluster's configuration
//   - PersistentVolumeClaims, ConfigMaps and ResourceQuotas are those of its namespace, labels those of its Namespace
//   - the VirtualMachineInstanceMigration names it in spec.vmiName
//   - its Pods are controlled by it, or labelled as created by it
//   - the source Node is the one its Pod is on
//   - a VirtualMachineExport is rendered without any guest, to the bare exporter: claims, certificate and token that it
//     serves with are chosen by its controller and are in no manifest
//
// [Default] gives a guest what KubeVirt's webhooks would.
//
// # What is read
//
// A typing error must not become a Pod that lacks something. So an unknown field, a value of the wrong type, an object
// that is there twice, an unknown kind and a second guest are errors, all of type *[Error] with file, document, object,
// field and remedy. A VirtualMachine is refused, since instance types and preferences make the guest out of it.
//
// Kinds that often lie in the same files and from which no Pod takes anything but a name are skipped: Secret, Service,
// ServiceAccount and NetworkPolicy, as well as DataVolume, because the claim that it makes, not the DataVolume, has the
// volume and access modes by which a disk is mounted. Every other kind is refused: it may be a mistake in the list of
// files, and it would be silent.
//
// Manifests kept in git lack what an API server adds. A missing namespace is default, and a missing UID is a stand-in
// that follows from kind, namespace and name, so that the same files give the same Pod always and everywhere.
//
// Everything is pure: no API, clock, environment or file but the given readers.
package offline
