// SPDX-License-Identifier: Apache-2.0

// Package dump is a cluster at one moment, as far as virtloom decides by it: taken from its API
// server, kept in a file, and read from there as from a cluster.
//
//	d, err := dump.Take(ctx, dump.Cluster{Client: c, Now: time.Now()})  all kinds listed, one after the other
//	err = d.Complete(ctx)                                               what single guests refer to, by name
//	err = d.WriteFile("cluster.dump.gz")                                without what is nobody's business
//	d, err = dump.ReadFile("cluster.dump.gz", scheme)
//	d.Client()                                                          a client.Client that reads only
//
// A Dump is a client.FieldIndexer as well, so that a controller's reconciler can be set up over it
// as over a manager's cache.
//
// # What is in it
//
// VirtualMachineInstances, their migrations, migration policies, KubeVirt's configuration, Pods,
// Nodes, Namespaces, PersistentVolumeClaims, ResourceQuotas, StorageClasses; of CDI, where the
// cluster has it, DataVolumes, StorageProfiles and what it says of file systems; the metadata of
// VirtualMachines, and of the ConfigMaps and NetworkAttachmentDefinitions that guests name. The kinds
// are listed one after the other, those that refer before those that are referred to.
//
// A file never has Secrets or the data of ConfigMaps, which are not read at all, and neither
//
//   - user data and network data of cloud-init, arguments of kernels, commands and headers of probes
//   - environment, commands, arguments, probes and hooks of containers, attributes of CSI volumes
//   - the specs of DataVolumes and CDI, with what is imported from where; parameters of StorageClasses
//   - values of annotations that this module does not read: tokens of CDI, Ignition, kubectl's copies
//   - users, passwords and queries in what looks like a URL, wherever it is
//   - who wrote which field, and which images nodes have
//
// It does have names, labels, messages of conditions, addresses, selectors and resources. Instead of a
// value that was taken out there is a mark, the same for the same value within one file: what is compared
// stays equal or different. It cannot be told from the mark what was there.
//
// # The file
//
// One JSON document a line, compressed with gzip if the name ends in .gz: first the header with
// apiVersion, kind, time and how many objects there are of which kind, or why they could not be
// read; then the objects. A file that was cut off is refused. Of a version that is not known nothing
// is read.
package dump
