// SPDX-License-Identifier: Apache-2.0

// Package migration answers one question: may this migration start, with which
// policy, in which order, and what comes next? It copies no memory and calls no API
// server.
//
// [Decide] takes a [Snapshot] and the time and returns a [Plan]: the status the
// migration should have, the writes that lead to it, and the soonest moment at which
// time alone would change the answer. It uses parts that can also be used, or replaced,
// separately:
//
//   - [Evaluator], an ordered list of checks that report whether a VMI can migrate now,
//     later, or never, and why;
//   - package policy: the MigrationPolicy in force for a VMI, and its options;
//   - package queue: the order of waiting migrations, and the slots they wait for;
//   - package placement: the nodes that could take a target Pod, and the quotas.
//
// Package evacuation decides which migrations to create without a user's request, package explain
// describes where a migration stands.
//
//	Pending ──▶ Scheduling ──▶ Scheduled ──▶ PreparingTarget ──▶ TargetReady ──▶ Running ──▶ Succeeded
//	 queue,      scheduler,     handoff       target node        source node      hypervisors
//	 slots       kubelet
//	   └────────────┴──────────────┴───────── cancel ──┴──────────────┘               │ abort is requested
//	                               ▼                                                  ▼ from the nodes
//	                             Failed ◀─────────────────────────────────────────────┘
//
// The owner of each phase, and the reason with which the migration fails at the phase's
// deadline; without a reason, the reason depends on what it waits for, as an unschedulable Pod:
//
//	                  local                             sender                            receiver
//	Synchronizing     -                                 other cluster SynchronizeTimeout  -
//	WaitingForSync    -                                 -                                 other cluster SynchronizeTimeout
//	Pending           controller    PendingTimeout      controller    PendingTimeout      controller    PendingTimeout
//	Scheduling        scheduler                         other cluster ReceiverTimeout     scheduler
//	Scheduled         controller    HandOffTimeout      other cluster HandOffTimeout      controller    HandOffTimeout
//	PreparingTarget   target node   PrepareTimeout      other cluster PrepareTimeout      target node   PrepareTimeout
//	TargetReady       source node   BeginTimeout        source node   BeginTimeout        other cluster BeginTimeout
//	Running           source node   MoveTimeout         source node   MoveTimeout         other cluster MoveTimeout
//
// Every phase has an owner, a deadline and a typed reason, reported in the condition
// [ConditionWaiting] of the migration. Until the source node has begun (handoff.Moving) the
// controller can cancel a migration alone; from then on only the nodes know where the VMI
// runs, so the controller requests an abort and waits for their answer without a deadline, as it
// does for their report that a VMI which has arrived is settled. There is no deadline either while
// the VMI's lease cannot be read. A migration of a VMI with a lease that ends before the handoff,
// as far as the caches show, is first recorded as failed on the VMI, so that a handoff in flight
// is rejected.
//
// Nodes without lease support, those of a stock virt-handler, follow KubeVirt's protocol alone:
// where a VMI has no lease, or one that was only offered and never accepted.
//
// Deciding is safe at any point after a crash: Decide reads what is stored, never what an
// earlier pass remembered, and each of its writes is guarded by the object's resourceVersion,
// or by all of the object that the decision depended on, or repeatable under a fixed name.
//
// # Migrations between clusters
//
// A VMI that leaves its cluster or its namespace becomes another object there. The migration
// with spec.sendTo accompanies the one, that with spec.receive the other, and KubeVirt's
// synchronization controllers copy what each writes into its half of status.migrationState.
// With both fields a migration is local.
//
//	sender    Synchronizing  ──▶ Pending ──▶ Scheduling ──▶ Scheduled ──▶ PreparingTarget ──▶ TargetReady ──▶ Running
//	receiver  WaitingForSync ──▶ Pending ──▶ Scheduling ──▶ Scheduled ──▶ PreparingTarget ──▶ TargetReady ──▶ Running
//
// Before its address is published ([v1.MigrationTargetReady]) a receiver can end alone. From
// then on the sender's node may begin at any moment and reports it later, so the receiver
// requests an abort and waits for the answer: without a deadline once anything of the VMI has
// arrived, else for Timeouts.Synchronize, by when the sender's own deadline has passed. A sender
// can end alone until its node has begun. Each notifies the other by a closed state, which a
// synchronization controller copies unchanged from the receiver, and as an ended abort from the
// sender.
//
// The VMI's lease stays with its node until the target is reported ready, and then targets
// [handoff.Elsewhere], which no node claims. It ends (Released) when that node knows that the
// VMI runs there; where the node is lost or has lost track, this controller records the other
// side's report. So with this module's node agent a migration of a sender begins only with its
// controller's consent, which can be withdrawn until then, and its VMI ends as Succeeded only
// when the other side has reported the VMI. A stock virt-handler follows migrationState alone:
// it may begin before this controller has recorded that the target is ready, and the API server
// rejects a cancellation once it has. Nothing here can prevent a stock sender from failing its
// VMI when 60 seconds after its departure nothing was heard of it; nor can either side prove to
// the other that a link is down and not slow. This module's node agent does not receive: it
// rejects such a VMI, so a receiver needs a stock virt-handler.
//
// The VMI that was to be received is never deleted here. Without its target Pod it returns to
// phase WaitingForSync; its creator may delete it or retry with it.
//
// Differences from KubeVirt:
//
//   - All phases have deadlines, see [Timeouts]; KubeVirt waits forever in Synchronizing and
//     WaitingForSync. A report that came too early or too late is sent to the other side.
//   - A receiver takes no outbound slot of a node of this cluster. It shares outbound slots with
//     migrations from the same node of the same cluster; KubeVirt counts all receivers without a
//     node as leaving one that they share.
//   - A receiver's VMI must be created to receive (kubevirt.io/create-migration-target), and the
//     images of its container disks named by digest, as the source's are not reported.
//   - A migration that goes before others of its VMI does so from its first half on.
//   - VMIs with hotplugged volumes, persistent TPM or EFI state are neither sent nor received
//     ([ReasonUnsupported]).
//   - status.synchronizationAddresses is kept for migrations between clusters only.
//
// # Target Pods: differences from KubeVirt
//
//   - A migration is in phase Scheduling from the creation of its target Pod on, also while an
//     attachment Pod for hotplugged volumes is created beside it; KubeVirt's stays in Pending
//     meanwhile, without a deadline. A migration whose target or attachment Pod is lost ends, and
//     the Pod is not recreated.
//   - Hotplugged volumes are followed until the handoff, so a late volume is attached too. Volumes
//     being unplugged are waited for.
//   - TPM and firmware state and changed block tracking move to a claim like the current one, of
//     the same class, where only one node at a time can use that. Its name is derived from the UIDs
//     of VMI and migration, so a long name of the migration does no harm; a VMI whose own name is
//     too long for the claim's label is not migrated. The VMI's lease decides which claim has the
//     state: no Job looks for a marker. Where the outcome is unknown, both claims stay and the one
//     used before is labeled.
//   - The Pod that a VMI has left is deleted at once, even if the VMI has since returned to the
//     node, and so is the target Pod of a failed migration; KubeVirt keeps both until the migration
//     is collected.
//   - A live update (CPUs, memory, another Pod) that the VMI's conditions require delays the end of
//     a migration only if it was requested before the migration began, and no longer than
//     Timeouts.Complete; KubeVirt's then stays in phase Running, and keeps its slot, without end.
//   - Another Pod of the VMI is waited for only if it is not being deleted, and is named.
//   - A waiting migration whose VMI is deleted fails before it is deleted; one that never had a
//     VMI stays and reports so.
//
// # Checks: differences from KubeVirt
//
//   - A second migration of a VMI is not rejected at its creation: it waits for the first.
//     Permissions for spec.priority and the immutability of a spec are left to admission; a
//     controller cannot know who wrote what.
//   - A VMI of which no node reports whether it is live migratable is judged by its object, as far
//     as possible, and not assumed to be migratable.
//   - A user's migration overtakes an automatic one that backs off. The back-off is capped, runs from
//     the last failure, and ends with any success, a user's too.
//   - A target Pod that no node can ever match, or that exceeds a quota, is not created: the
//     migration fails at once, or waits for the quota without retrying in between.
//   - Critical migrations abort backups only where KubeVirt's virt-api can be called, as there is
//     no other way; see [Config.AbortBackups].
//   - status.runtimeUser of a VMI that changes its user is written with the handoff, not before the
//     target Pod is created: a migration that fails earlier leaves it unchanged.
package migration
