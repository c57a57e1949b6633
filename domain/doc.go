// SPDX-License-Identifier: Apache-2.0

// Package domain is the contract between a node agent and the hypervisor that runs its VirtualMachineInstances
// (VMIs): the methods and abilities of a hypervisor, and the data that pass through them. It answers which
// operations there are, what each of them guarantees, and what a driver has to report.
//
// The package has no cgo, reads no cluster, makes no decision and carries out no operation.
//
//   - [Hypervisor] has the five methods that every driver implements. Further abilities, such as [Migrator],
//     [GuestAgent] and [Snapshotter], are interfaces that are found by type assertion. [Hints] implements
//     [Hypervisor.Watch] for drivers.
//   - [State] is a domain as its hypervisor reports it, [Host] the node, [Progress] a migration.
//   - [Operation] is one change of one domain.
//   - [Metadata] is the state that survives a restart of the node agent; it is stored in the domain itself.
//   - [ErrNotFound] and the other sentinels are the errors of a hypervisor.
//
// An author of a driver needs this package, domain/stats for the counters of [StatsReader], and domain/guestagent
// for the reports of [GuestAgent].
//
// The packages that use the contract, in the order in which data pass through them: domain/convert converts a
// VMI to a libvirt domain, domain/informer caches the domains of a hypervisor, domain/diff compares a wanted
// domain with the running one, domain/plan decides what a node has to do, as effects of domain/action,
// domain/migrate monitors live migrations, which domain/transport carries between nodes, and domain/status
// reflects the result in the status of the VMI. domain/fleet presents the hypervisors of many launcher Pods as one.
// The driver for libvirt is domain/libvirt; the controller that gathers facts and carries out plans is
// domain/domainctrl; domain/memory is an in-memory hypervisor, and domain/domaintest has the conformance suite
// that every driver has to pass.
package domain
