// SPDX-License-Identifier: Apache-2.0

// Package domaintest is a [domain.Hypervisor] in memory, for tests and for
// trying things out without a daemon, and [Conformance], the suite that every
// driver has to pass.
//
// A [Hypervisor] behaves as the contract says. Guests obey at once unless told
// otherwise, and what goes wrong is scripted: slow and hanging calls, errors
// before or after the deed, lost events, crashed guests, a lost connection.
// Guests have an agent when they are given one ([Hypervisor.SetGuestInfo],
// [Hypervisor.SetAgents]), a serial console that echoes, snapshots and counters.
//
// Migrations to a peer ([Hypervisor.Connect]) take no time at first. With a guest that
// writes ([Hypervisor.SetLoad]) over a [Link] of some bandwidth they go as real ones do:
// in passes, until the rest fits into the allowed standstill, slowed down by
// auto-converge, ended by post-copy, or never. Links break while a guest is copied, at
// the switch, and after it.
//
// # How to write a driver
//
// Implement the five methods of [domain.Hypervisor]; skeleton_test.go beside this
// package is a complete driver to begin with, of 150 lines.
//
//  1. Let Apply call [domain.Operation.Validate] first and answer
//     [domain.ErrUnsupported] to the verbs you do not offer.
//  2. Return errors that wrap the sentinels of package domain. Nobody reads the text.
//  3. Embed [domain.Hints] for Watch and call its Tell from wherever your daemon
//     tells you about a change; it never blocks. After a lost connection tell Lost,
//     and Resync when it is back.
//  4. Make every call end with its context: run what cannot be interrupted in a
//     goroutine of its own.
//  5. Pass [Core]. Then add abilities, each an interface of package domain
//     ([domain.Migrator], [domain.GuestAgent], [domain.StatsReader]) or a verb, and
//     pass [Conformance], declaring in [Driver].Unsupported what is still missing.
//
// A suite's Driver needs little for the core:
//
//	domaintest.Core(t, func(t testing.TB) domaintest.Driver {
//		return domaintest.Driver{Hypervisor: mydriver.New(), Definition: definition}
//	})
package domaintest
