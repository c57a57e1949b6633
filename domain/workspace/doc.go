// SPDX-License-Identifier: Apache-2.0

// Package workspace prepares the files of VirtualMachineInstances (VMIs) on one node: disks, kernel,
// cloud-init data, disks made of ConfigMaps and Secrets, and the facts of the node that package
// domain/convert makes a domain from.
//
// [Workspace] is what a node agent uses, package domain/domainctrl. What a kubelet would provide is
// behind interfaces: [Images], [Claims] and [Objects]; and what it does provide, where VMIs run in
// their launcher Pods, behind [Volumes], [Devices] and [Networks].
//
// Tenants write what lies in claims and images, and may change it at any moment. So the content of
// tenants' volumes is opened below its directory, by descriptor, no link is followed, and an image
// that names other files is rejected (docs/security.md).
package workspace
