// SPDX-License-Identifier: Apache-2.0

// Package domaintest has [Conformance], the suite that every driver, a [domain.Hypervisor], has to
// pass. [Memory] is a driver for it whose hypervisors are in memory.
//
// # How to write a driver
//
// Implement the five methods of [domain.Hypervisor]; skeleton_test.go beside this package is
// a complete driver to begin with, of 150 lines.
//
//  1. Let Apply call [domain.Operation.Validate] first and return
//     [domain.ErrUnsupported] for the verbs you do not offer.
//  2. Return errors that wrap the sentinels of package domain. No caller parses the text.
//  3. Embed [domain.Hints] for Watch and call its Tell for every change that your daemon
//     reports; it never blocks. After a lost connection pass Lost, and Resync when it is
//     restored.
//  4. Make every call end with its context: run uninterruptible calls in a goroutine of
//     their own.
//  5. Pass [Core]. Then add abilities, each an interface of package domain
//     ([domain.Migrator], [domain.GuestAgent], [domain.StatsReader]) or a verb, and
//     pass [Conformance], declaring missing ones in [Driver].Unsupported.
//
// A suite's Driver needs little for the core:
//
//	domaintest.Core(t, func(t testing.TB) domaintest.Driver {
//		return domaintest.Driver{Hypervisor: mydriver.New(), Definition: definition}
//	})
package domaintest
