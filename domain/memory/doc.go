// SPDX-License-Identifier: Apache-2.0

// Package memory is a [domain.Hypervisor] in memory, for tests and experiments without a
// daemon.
//
// A [Hypervisor] behaves as the contract requires. Guests obey at once by default, and faults
// are scripted: slow and hanging calls, errors before or after the effect, lost events,
// crashed guests, a lost connection. A domain can have an agent ([Hypervisor.SetGuestInfo],
// [Hypervisor.SetAgents]), a serial console that echoes, snapshots and counters.
//
// Migrations to a peer ([Hypervisor.Connect]) take no time at first. With a load on the
// guest's memory ([Hypervisor.SetLoad]) and a [Link] of limited bandwidth they behave like
// real ones: in passes, until the rest fits into the maximal downtime, throttled by
// auto-converge, ended by post-copy, or never. Links break while a guest is copied, at the
// switch, and after it.
package memory
