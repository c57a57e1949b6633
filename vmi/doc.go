// SPDX-License-Identifier: Apache-2.0

// Package vmi decides what must happen next to a VirtualMachineInstance (VMI). It
// renders no Pod and is independent of the hypervisor.
//
// A [Snapshot] holds the complete input of one decision. [Decide] is pure: it takes
// the snapshot and the time and returns a [Plan]: the actions, the new state of the
// object (status, conditions, labels, the handoff lease), the events to emit, the
// pending waits and when to requeue. A Plan can be printed, compared, dry-run and tested
// without a client. [Explain] returns the waits alone: each names its object, the event
// that ends it and the responsible actor.
//
//	gather ─▶ Snapshot ─▶ Decide ─▶ Plan ─▶ act ─▶ Snapshot with the results ─▶ Decide ─▶ one patch
//
// Decide is table-driven: the ordered checks before the launcher Pod is created, the
// phase transitions and the condition rules; further parts decide about claims and
// imports, backend storage, hotplugged volumes, missing prerequisites of a running VMI,
// and labels and annotations of its Pod. Package vmictrl is the controller that gathers
// snapshots and executes plans, package vmi/diagnose explains a plan to people, package
// vmi/admit validates and defaults new VMIs in clusters without KubeVirt's webhooks.
//
// # Phases
//
//	           ┌─▶ WaitingForSync ◀──┐ (target of a migration from another cluster)
//	           │         │           │
//	           │         ▼           │
//	(none) ─▶ Pending ─▶ Scheduling ─▶ Scheduled ─▶ Running ─▶ Succeeded
//	              └──────────┴─────────────┴───────────┴─────▶ Failed
//
// Every transition and who makes it. Those of the controller are decided here, those of
// the node agent in package domain:
//
//	(none)          ─▶ Pending         controller  the object is observed for the first time
//	(none)          ─▶ Scheduling      controller  it already has a Pod
//	(none)          ─▶ Scheduled       controller  its status was lost, and a node holds its lease
//	(none)          ─▶ WaitingForSync  controller  it is a migration target, and its node is not known yet
//	(none)          ─▶ Failed          controller  its lease is released, it is being deleted, or an import failed
//	Pending         ─▶ Scheduling      controller  it has a Pod
//	Pending         ─▶ Scheduled       controller  its status was lost, and a node holds its lease
//	Pending         ─▶ WaitingForSync  controller  it is a migration target, and its node is not known yet
//	Pending         ─▶ Failed          controller  it is being deleted, or an import or the first consumer of its claims failed
//	Scheduling      ─▶ Scheduled       controller  its Pod is ready: handoff to the node
//	Scheduling      ─▶ WaitingForSync  controller  the target Pod is gone
//	Scheduling      ─▶ Failed          controller  its Pod ended before the handoff
//	Scheduled       ─▶ Running         node        the domain runs
//	Scheduled       ─▶ Succeeded       node        the domain ended before the node reported it as running
//	Scheduled       ─▶ WaitingForSync  controller  the incoming migration failed
//	Scheduled       ─▶ Failed          controller  its Pod is gone, the node did not accept it or is dead; or the node could not start it
//	Running         ─▶ Succeeded       node        the domain was shut down or migrated to another cluster
//	Running         ─▶ Failed          node        the domain crashed or was killed; or the controller found its node dead
//	WaitingForSync  ─▶ Scheduling      controller  the target Pod exists
//
// Succeeded and Failed are final.
//
// Phases, conditions, reasons and labels are KubeVirt's, so that a stock
// virt-handler can take over from here. Intentional differences from KubeVirt:
//
//   - the finalizer is kept until the node that owns the VMI has reported its end
//     (see package handoff);
//   - a Pod that outlives its domain is deleted, and the grace period of one that is
//     already terminating is shortened;
//   - a VMI that its node does not accept in time fails with the reason
//     NodeUnresponsive, so that it can be started elsewhere;
//   - only the API server, not a cache, can confirm that the launcher Pod is gone;
//   - finalizer, first phase and observed API versions are stored in the write that
//     records the Pod; readiness gate and labels of the Pod with the handoff;
//   - every phase transition has a timestamp, whoever makes it, and the memory overhead
//     and the end of a migration are stored while the VMI runs;
//   - after a migration, the launcher's image is stored in one write with the end of the
//     old Pod;
//   - hotplugged volumes are batched by time, their Pods compared as sets of claims, and
//     every decision about them is reported in the status once;
//   - an object with an invalid lease or an unknown phase is not acted on and has the
//     condition virtloom.dev/Understood;
//   - the target of a migration from another cluster is not offered to a node: its
//     handoff consists of KubeVirt's fields alone.
package vmi
