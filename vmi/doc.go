// SPDX-License-Identifier: Apache-2.0

// Package vmi answers one question: what must happen next to this
// VirtualMachineInstance? It assembles no Pod and knows no hypervisor.
//
// A [Snapshot] holds everything one decision may see. [Decide] is pure: it
// reads the snapshot and the time and returns a [Plan], which says what to do
// (actions), what the object shall say (status, conditions, labels, the
// hand-over lease), which events to tell and when to look again. A Plan can be
// printed, compared, dry-run and tested without a client.
//
//	gather ─▶ Snapshot ─▶ Decide ─▶ Plan ─▶ act ─▶ Snapshot with the results ─▶ Decide ─▶ one patch
//
// Package vmictrl is the controller that does the gathering and acting.
//
// Phases, conditions, reasons and labels are KubeVirt's, so that a stock
// virt-handler can take over from here. Two things are done differently on
// purpose: the finalizer is kept until the node that owns the guest has
// reported that it ended (see package handoff), and a Pod that is terminating
// after its guest has ended gets its grace period shortened.
package vmi
