// SPDX-License-Identifier: Apache-2.0

// Package dump takes snapshots of the objects that virtloom decides by: from an API server, into a
// file, and back into a client that reads them as from a cluster.
//
//	d, err := dump.Take(ctx, dump.Cluster{Client: c, Now: time.Now()})  lists all kinds, one after the other
//	err = d.Complete(ctx)                                               gets the objects that single VMIs refer to
//	err = d.WriteFile("cluster.dump.gz")                                without sensitive data
//	d, err = dump.ReadFile("cluster.dump.gz", scheme)
//	d.Client()                                                          a read-only client.Client
//
// A Dump is a client.FieldIndexer as well, so that a controller's reconciler can be set up on it as
// on a manager's cache.
//
// # Content
//
// VirtualMachines with their ControllerRevisions, instance types and preferences,
// VirtualMachineInstances, their migrations, migration policies, KubeVirt's configuration, Pods,
// Nodes, Namespaces, PersistentVolumeClaims, ResourceQuotas, StorageClasses; of CDI, where the
// cluster has it, DataVolumes, StorageProfiles and the file system overhead; the metadata of
// the ConfigMaps and NetworkAttachmentDefinitions that VMIs name. The kinds
// are listed one after the other, referring kinds before the kinds that they refer to.
//
// A file never holds Secrets or the data of ConfigMaps, which are not read at all, nor
//
//   - user data and network data of cloud-init, arguments of kernels, commands and headers of probes
//   - environment, commands, arguments, probes and hooks of containers, attributes of CSI volumes
//   - the same in the templates of VirtualMachines and in the ControllerRevisions that hold them; other ControllerRevisions
//   - the specs of DataVolumes, of their templates and of CDI, with the sources of imports; parameters of StorageClasses
//   - values of annotations that this module does not read: tokens of CDI, Ignition, kubectl's copies
//   - users, passwords and queries in anything that looks like a URL
//   - managed fields, and the images of nodes
//
// It does hold names, labels, messages of conditions, addresses, selectors and resources. A mark
// replaces each removed value, the same for equal values within one file, so comparisons keep their
// result. The value cannot be derived from the mark.
//
// # The file
//
// One JSON document a line, compressed with gzip if the name ends in .gz: first the header with
// apiVersion, kind, time and the number of objects of each kind, or why they could not be read;
// then the objects. A truncated file is rejected, as is one of an unknown version.
package dump
