// SPDX-License-Identifier: Apache-2.0

// Package convert answers which libvirt domain a VirtualMachineInstance is on a given node.
//
// [Convert] runs an ordered list of [Pass] values over a [Conversion]. It reads nothing but its two
// arguments, the object and the [Facts] of the node, modifies neither, and always returns the same
// domain for the same arguments. It never accesses files, the cluster or a hypervisor, and it never
// substitutes a default for a value that it cannot convert: that is a [*Error] with the
// field and a remedy.
//
//	facts := convert.Facts{Dir: dir, Disks: disks, Layout: convert.LayoutOf(live)}
//	facts.Cluster, facts.SMBIOS = convert.ClusterFrom(kubevirt)
//	d, err := convert.Convert(vmi, facts)
//
// The main types and functions:
//
//   - [Facts] are everything about the node and its cluster that a domain depends on;
//     package assume makes them up for tools that run elsewhere.
//   - [Layout], part of the facts, holds the addresses of a running guest's devices, so that a
//     conversion while it runs moves none of them.
//   - [Passes] returns the standard passes; [ConvertWith] takes a modified list.
//   - [Allowed] is the check, run first, for what a cluster allows at all.
//
// # Differences from KubeVirt
//
// All are on purpose; any other difference is a bug.
//
//   - A value that cannot be converted is an error, where KubeVirt uses a default, logs it or leaves
//     it to libvirt. This includes architectures, disk buses and launch security.
//   - The domain has the UUID that the guest reads in its system information, since libvirt requires
//     them to be equal.
//   - PCI addresses and ports are computed, not read back from libvirt: they are known before the
//     domain exists, and are the same on every node.
//   - Backing chains are terminated explicitly, so that QEMU follows no path from within an image.
//   - Secure boot requires system management mode, or the guest could write UEFI variables directly.
//   - Without a CPU model in the spec, mpx is not disabled: the guest has it if the host has it.
//   - Guests with an isolated emulator thread start like any other, since libvirt pins all threads
//     before the first instruction. All I/O threads are pinned, so that none runs on dedicated CPUs.
//   - Hotplugged disks share the existing I/O threads, since none can be added to a running guest.
//   - Files of a VMI are in its own directory ([Facts].Dir), not at fixed paths in a Pod, and
//     KubeVirt's private elements in disks are omitted: libvirt does not read them.
package convert
