// SPDX-License-Identifier: Apache-2.0

// Package vmictrl is package vmi as a controller: it follows every
// VirtualMachineInstance from the first sight to a running guest's Pod, hands
// it to the node of that Pod, and lets it go when the guest has ended.
//
// [Reconciler] runs in any controller-runtime manager, beside other
// controllers. A pass gathers a vmi.Snapshot from caches, lets vmi.Decide
// decide, acts, lets vmi.Decide say what the results mean, and stores that in
// one patch. Own writes are noted in an expectations.Tracker before they are
// sent; until the caches show them nothing is created or deleted.
package vmictrl
