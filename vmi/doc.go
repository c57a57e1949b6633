// SPDX-License-Identifier: Apache-2.0

// Package vmi answers one question: what must happen next to this
// VirtualMachineInstance? It assembles no Pod and knows no hypervisor.
//
// A [Snapshot] holds everything one decision may see. [Decide] is pure: it
// reads the snapshot and the time and returns a [Plan], which says what to do
// (actions), what the object shall say (status, conditions, labels, the
// hand-over lease), which events to tell, what is waited for and when to look again. A
// Plan can be printed, compared, dry-run and tested without a client. [Explain] is the
// list of waits alone: each names its object, what ends it and whose turn it is.
//
//	gather ─▶ Snapshot ─▶ Decide ─▶ Plan ─▶ act ─▶ Snapshot with the results ─▶ Decide ─▶ one patch
//
// Decide is made of tables: the ordered checks before a guest gets its Pod, the
// transitions between phases, the rules of the conditions; and of parts: what claims
// and imports are awaited, the claim that keeps a guest's state, what is plugged in and
// how far each volume has come, what a running guest should have and has not, what its
// Pod should carry. Package vmictrl is the controller that does the gathering and
// acting, package vmi/admit what a cluster without KubeVirt's webhooks asks about new
// guests.
//
// # Phases
//
//	           ┌─▶ WaitingForSync ◀──┐ (to be received from another cluster)
//	           │         │           │
//	           │         ▼           │
//	(none) ─▶ Pending ─▶ Scheduling ─▶ Scheduled ─▶ Running ─▶ Succeeded
//	              └──────────┴─────────────┴───────────┴─────▶ Failed
//
// Who makes which change, and when. The controller's are decided here, the node's in
// package domain:
//
//	(none)          ─▶ Pending         controller  the object is seen for the first time
//	(none)          ─▶ Scheduling      controller  it has a Pod already
//	(none)          ─▶ Scheduled       controller  its status was lost, and a node has it
//	(none)          ─▶ WaitingForSync  controller  it is to be received, and nobody has said where
//	(none)          ─▶ Failed          controller  its lease says that it has ended, or it is deleted, or an import failed
//	Pending         ─▶ Scheduling      controller  it has a Pod
//	Pending         ─▶ Scheduled       controller  its status was lost, and a node has it
//	Pending         ─▶ WaitingForSync  controller  it is to be received, and nobody has said where
//	Pending         ─▶ Failed          controller  deleted, or an import or the first consumer of its claims failed
//	Scheduling      ─▶ Scheduled       controller  its Pod is ready: it is handed over to the node
//	Scheduling      ─▶ WaitingForSync  controller  the Pod that was to receive it is gone
//	Scheduling      ─▶ Failed          controller  its Pod ended before the hand-over
//	Scheduled       ─▶ Running         node        the domain runs
//	Scheduled       ─▶ Succeeded       node        the guest has ended before the node told that it ran
//	Scheduled       ─▶ WaitingForSync  controller  the migration that was to bring it failed
//	Scheduled       ─▶ Failed          controller  its Pod vanished, the node does not accept it or has died; or the node could not start it
//	Running         ─▶ Succeeded       node        the guest has shut down, or has moved to another cluster
//	Running         ─▶ Failed          node        the guest has crashed or was killed, or, by the controller, its node has died
//	WaitingForSync  ─▶ Scheduling      controller  a Pod is there to receive it
//
// Succeeded and Failed are final.
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
//   - that a guest's Pod is gone is believed the API server only, not a cache;
//   - finalizer, first phase and observed API versions go with the write that tells of
//     the Pod; the readiness gate and the labels of the Pod with the hand-over;
//   - every change of phase has its timestamp, whoever makes it, and what is computed
//     while the guest runs is stored: the memory overhead, the end of a migration;
//   - hotplugged volumes are gathered by time, their Pods compared as sets of claims,
//     and what is decided about them is told in the status, once;
//   - an object that cannot be understood, an unreadable lease or an unknown phase, is
//     let alone and says so in the condition virtloom.dev/Understood;
//   - a guest that is to be received from another cluster is not offered to a node: it
//     is handed over in KubeVirt's words alone.
package vmi
