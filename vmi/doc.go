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
// virt-handler can take over from here. Some things are done differently on
// purpose:
//
//   - the finalizer is kept until the node that owns the guest has reported
//     that it ended (see package handoff);
//   - a Pod that outlives its guest is deleted, and one that is terminating by
//     then gets its grace period shortened;
//   - a guest that its node does not accept in time fails with the reason
//     NodeUnresponsive, so that it can be started elsewhere;
//   - that a guest's Pod is gone is believed the API server only, not a cache.
package vmi
