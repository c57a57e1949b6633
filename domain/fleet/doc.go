// SPDX-License-Identifier: Apache-2.0

// Package fleet answers how a node with one hypervisor per VirtualMachineInstance, each in a launcher
// Pod, appears as a single [domain.Hypervisor].
//
// A [Fleet] routes each call about a domain to its member, merges the listings and the events of all
// members, and implements all abilities; an ability that a member lacks is [domain.ErrUnsupported].
// Members join and leave at any time. The fleet never starts or closes a member, never believes it
// about the domain of another one, and never takes its silence as evidence: an unresponsive member
// keeps the last known state of its domain, marked as stale, and a domain without a member is
// [domain.ErrNoHypervisor], which does not mean that it does not run.
//
//	f := &fleet.Fleet{Node: local}
//	defer f.Close()
//	f.Join(ctx, domain.Name(vmi.Namespace, vmi.Name), hypervisor)
//	states, err := f.List(ctx)
package fleet
