// SPDX-License-Identifier: Apache-2.0

// Package domaintest is a [domain.Hypervisor] in memory, for tests and for
// trying things out without a daemon, and [Conformance], the suite that every
// driver has to pass.
//
// A [Hypervisor] behaves as the contract says. Guests obey at once unless told
// otherwise, and what goes wrong is scripted: slow and hanging calls, errors
// before or after the deed, lost events, crashed guests, a lost connection.
package domaintest
