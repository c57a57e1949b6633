// SPDX-License-Identifier: Apache-2.0

// Package domain is the node plane as a library: which libvirt domain is a
// VirtualMachineInstance, what differs between the two, and how the one is
// brought to match the other.
//
// The parts, in the order data flows through them:
//
//   - [Convert] turns a VirtualMachineInstance and the [Facts] of one node into
//     a libvirt domain, by an ordered list of [Pass] values. It reads nothing
//     but its arguments.
//   - [Diff] compares the wanted domain with the running one and tells for each
//     difference when it can take effect.
//   - [Decide] says what a node does about a guest, from what it sees of it and from
//     the lease of package handoff: what to store, and what to do after that.
//   - [DecideRequest] says what a node does when a user asks for something now: to
//     pause the guest, to reset it, to freeze its file systems.
//   - [Hypervisor] is what a virtualisation daemon has to offer: five methods.
//     Further abilities, such as [Migrator], are found by type assertion.
//   - [Informer] knows the domains of a hypervisor at any time: events are hints to
//     it, listings the truth, and one domain that hangs delays no other.
//   - [Reflect] brings what was found back into the status of the
//     VirtualMachineInstance, by [Phase], [Interfaces], [VolumeStatus],
//     [LiveMigratable] and others that can be called alone.
//
// The package has no cgo and knows no cluster: the driver for libvirt is
// domain/libvirt, an in-memory hypervisor and the suite every driver has to
// pass are in domain/domaintest.
//
// What has to survive a restart of the node agent, the epoch and the grace
// deadline among it, is kept in the domain itself, as [Metadata].
package domain
