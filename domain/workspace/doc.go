// SPDX-License-Identifier: Apache-2.0

// Package workspace prepares the files of VirtualMachineInstances (VMIs) on one node: disks, kernel,
// cloud-init data, disks made of ConfigMaps and Secrets, and the facts of the node that package
// domain/convert makes a domain from.
//
// [Workspace] is what a node agent uses, package domain/domainctrl. What a kubelet would provide is
// behind interfaces: [Images], [Claims] and [Objects]; and what it does provide, where VMIs run in
// their launcher Pods, behind [Pods], [Volumes], [Devices] and [Networks].
//
// With [Pods] every file that the hypervisor opens is in its Pod. What the node makes is made in its
// own directory first, and copied once:
//
//	/var/run/kubevirt-private/UID                       sockets, logs, firmware's variables
//	/var/run/kubevirt-private/vmi-disks/VOLUME          a claim with a file system, disk.img in it
//	/var/run/kubevirt-ephemeral-disks                   overlays, generated disks, kernel, ACPI tables
//	/var/run/kubevirt-image-volume/disk_INDEX           a containerDisk as an image volume
//	/dev/VOLUME                                         a claim in Block mode
//
// Tenants write what lies in claims and images, and may change it at any moment. So the content of
// tenants' volumes is opened below its directory, by descriptor, no link is followed, and an image
// that names other files is rejected (docs/security.md).
package workspace
