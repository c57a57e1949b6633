// SPDX-License-Identifier: Apache-2.0

// Package migration answers one question: may this migration start, on whose
// policy, in which order, and what comes next? It copies no memory and talks to
// no API server.
//
// Four parts can be used, and replaced, one at a time:
//
//   - [Evaluator], an ordered list of checks that tell whether a guest can
//     migrate now, later, or never, and why;
//   - [Policies], which finds the MigrationPolicy for a guest, and tells when asked why
//     the other candidates lost; [Resolve] merges it over the cluster's configuration;
//   - [Queue], a work queue for anything that has a name in a namespace: priority,
//     raised by waiting, then turns between namespaces, then age or an order of the
//     caller's, with a bound on waiting;
//   - [Admission], the slots: per cluster, leaving a node, entering a node, and
//     bandwidth. Those that wait for them stand in the order of a Queue.
//
// [Decide] ties them together. It takes a [Snapshot] and the time and returns a
// [Plan]: the status the migration should have, the writes that bring it about,
// and the soonest moment at which time alone would change the answer.
//
//	Pending ──▶ Scheduling ──▶ Scheduled ──▶ PreparingTarget ──▶ TargetReady ──▶ Running ──▶ Succeeded
//	 queue,      scheduler,     hand-off       target node        source node      hypervisors
//	 slots       kubelet
//	   └────────────┴──────────────┴───────── cancel ──┴──────────────┘               │ abort is asked
//	                               ▼                                                  ▼ of the nodes
//	                             Failed ◀─────────────────────────────────────────────┘
//
// Who has to act in each phase, and the reason with which the migration ends if that takes too long; without a
// reason, what takes too long is told by what is waited for, as a Pod that cannot be scheduled:
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
// Every phase has an owner, a deadline and a typed reason, told in the
// condition [ConditionWaiting] of the migration. Until the source node has begun
// to move the guest (handoff.Moving) the controller can call a migration off by
// itself; from then on only the nodes know where the guest runs, so the
// controller asks for an abort and waits for their answer, without a deadline, as it does
// for their word that a guest which has arrived is settled. Nor is there a deadline while the
// guest's lease cannot be read. A migration of a guest with a lease that ends before
// it was handed over, as far as the caches tell, is first marked as failed on the guest, so
// that a hand-over which is still on its way is refused.
//
// Nodes that know no lease, those of a stock virt-handler, are spoken to in KubeVirt's protocol
// alone: where a guest has no lease, or one that was only offered and never accepted.
//
// Deciding is safe at any point after a crash: Decide reads what is stored, never
// what an earlier pass remembered, and each of its writes is either guarded by
// the object's resourceVersion, or by all of the object that decided, or repeatable
// under a fixed name.
//
// # Migrations between clusters
//
// A guest that leaves its cluster, or its namespace, becomes another object there. The
// migration with spec.sendTo runs beside the one, that with spec.receive beside the other,
// and KubeVirt's synchronization controllers carry what each writes into its half of
// status.migrationState. With both fields a migration is a local one.
//
//	sender    Synchronizing  ──▶ Pending ──▶ Scheduling ──▶ Scheduled ──▶ PreparingTarget ──▶ TargetReady ──▶ Running
//	receiver  WaitingForSync ──▶ Pending ──▶ Scheduling ──▶ Scheduled ──▶ PreparingTarget ──▶ TargetReady ──▶ Running
//
// Before its address is published ([v1.MigrationTargetReady]) a receiver can end by itself.
// From then on the sender's node may begin at any moment and tells it later, so the receiver
// asks it to abort and waits for the answer: without end once anything of the guest was seen,
// else for Timeouts.Synchronize, by when the sender has let its own time pass. A sender can end
// by itself until its node has begun. Each tells the other by a state that is closed, which a
// synchronization controller carries as it is from the receiver, and as an abort that has ended
// from the sender.
//
// The guest's lease stays with its node until the target is reported ready, and then says
// that it may pass the guest to [handoff.Elsewhere], which no node takes for itself. It ends
// (Released) when that node knows that the guest runs there; where the node has vanished or
// lost track, this controller brings the other side's word. So with this module's node half a
// sender's guest begins to move only with its controller's consent, which can be taken back
// until then, and its object ends as Succeeded only when the other side has reported the
// guest. What a stock virt-handler does is bound by migrationState alone: it may begin before
// this controller has noted that the target is ready, and a call-off is refused by the API
// server once it has. Nothing here can keep a stock sender from failing its object when for 60
// seconds after the guest's leaving nothing is heard of it; nor can anything on either side
// prove to the other that a link is cut and not slow. This module's node half does not
// receive: it refuses such a guest, so a receiver needs a stock virt-handler.
//
// The object that was to receive a guest is never deleted here. Without its target Pod it
// returns to phase WaitingForSync, and is for whoever made it to delete or to try again with.
//
// Otherwise than with KubeVirt:
//
//   - All phases have deadlines, see [Timeouts]; KubeVirt waits for ever in Synchronizing and
//     WaitingForSync. What came too early or too late is told the other side.
//   - A receiver takes no slot for leaving a node of this cluster. It shares those for leaving
//     a node with what comes from the same node of the same cluster; KubeVirt counts all
//     receivers without a node as leaving one that they share.
//   - A receiver's guest has to be made to receive (kubevirt.io/create-migration-target), and
//     the images of its container disks named by digest, as the source's is not told.
//   - A migration that goes before others of its guest does so from its first half on.
//   - Guests with hotplugged volumes, persistent TPM or EFI state are neither sent nor received
//     ([ReasonUnsupported]).
//   - status.synchronizationAddresses is kept for migrations between clusters only.
//
// # Policies otherwise than KubeVirt's
//
//   - A guest without labels matches no policy that demands one. KubeVirt lets it match
//     every policy, by a slip.
//   - Options are resolved at the hand-off and, unlike KubeVirt's, follow what policy, namespace and
//     cluster say afterwards, as far as a migration under way can. An administrator
//     who sees one that does not end can help it. Until it begins to move follow
//     bandwidthPerMigration, maxDowntimeMs, completionTimeoutPerGiB, progressTimeout,
//     allowPostCopy, allowWorkloadDisruption, allowAutoConverge, unsafeMigrationOverride and
//     experimental; while it moves all of these but for allowAutoConverge,
//     unsafeMigrationOverride and experimental.compression, which a job has from its beginning or never,
//     and allowPostCopy can be withdrawn, not given.
//   - A policy with a value that KubeVirt's admission refuses, stored where its webhooks
//     are not in force, holds back the migrations that it is in force for, with the
//     reason [ReasonPolicyInvalid], until it is mended. Those handed over keep the options they have.
//   - experimental.downtimeTuning is not in the API that this module is built with.
//
// # Migrations that nobody asked for by name
//
// [Evacuate] says which guests of a node are to leave it, [UpdateWorkloads] which guests run in
// Pods that are not as they should be, [Evict] what becomes of a request to evict a guest's Pod.
// The first two answer for every guest with a [Standing]: a migration to make, migrations to
// call off, a Pod to evict, or the reason why nothing is done; the last with an
// [EvictionAnswer]. None reads a clock or remembers anything: a [Guest] with its migrations
// tells what has been.
//
// There is never more than one such migration of a guest, by whoever makes it and however old
// what he has seen: its name is made of the guest's UID and of the migration that it comes
// after ([AutomaticName]).
//
// Otherwise than with KubeVirt:
//
//   - An evacuation follows its cause. When the drain taint goes, status.evacuationNodeName is
//     cleared, the guest is elsewhere or its strategy says no, its migrations that have not
//     begun to move it are deleted.
//     One that was made for a descheduler and waits is made anew with a higher priority when the
//     node is drained, or a person asks.
//   - A guest that a descheduler, or an update that its owner has not just asked for, would
//     move again rests first ([Config.Cooldown]); the descheduler's eviction is refused without
//     the words by which it would count on the guest's leaving.
//   - On a node with the drain taint a descheduler's mark does not lower a guest's priority.
//   - What failed for a reason that lasts is not tried again before guest, nodes or
//     configuration change ([CircumstancesAnnotation]), or an hour has passed.
//   - A guest whose object is older than the end of its last migration is not moved again.
//   - What an owner asks of a guest (CPUs, memory, volumes, networks) gets its migration at once;
//     the limit on updates holds for new launcher images alone, and counts migrations for updates
//     that wait. KubeVirt applies it to both, but counts none that wait.
//   - Who is updated next is not left to chance: what owners ask for, then those whose last
//     attempt has not failed, then what has waited longest. Who is evicted next neither: those
//     whose eviction was not refused, then what has waited longest.
//   - A guest that was updated, and whose Pod has another image than asked for all the same, is not
//     updated again for the same image, configuration and spec ([UpdateAnnotation]).
//   - An update is called off also if an earlier migration of the guest has reached its target.
//   - The first guests are evicted for an update one interval after the start, not at once; one
//     without a Pod, or whose strategy refuses, takes no place in a batch.
//   - Where nobody deploys KubeVirt, so that its object has no status, guests are updated.
//   - A guest that was asked to leave another node than it is on can be asked again.
//   - With strategy LiveMigrateIfPossible a Pod is not let go before its node has said that the guest,
//     which runs, cannot be migrated, nor while the guest is being moved.
//   - The eviction of the Pod that a guest has left, or moves to, is refused in either case with
//     KubeVirt's words for the latter.
//
// # Targets otherwise than KubeVirt's
//
//   - A migration is in phase Scheduling from the creation of its target Pod on, also while a
//     Pod is made beside it that brings plugged volumes; KubeVirt's stays in Pending meanwhile,
//     where no time limit counts. One whose target or attachment Pod is lost ends, and none is
//     made anew.
//   - What is plugged in is looked at again until the hand-over, so a volume that comes late is
//     brought too. Volumes on their way out are waited for.
//   - State of TPM, firmware and changed blocks moves to a claim like the one it is in, of the same
//     class, where only one node at a time can use that. Its name is made of the guest's and the
//     migration's UID, so a long name of the migration is no harm; a guest whose own name is too
//     long for the claim's label is not migrated. Which claim has the state is told by the guest's
//     lease: there is no Job that looks for a marker. Where the outcome is not known, both claims
//     stay and the one in use before is labelled.
//   - The Pod that a guest has left is deleted at once, also where it has come back to the node
//     since, and so is the target Pod of a migration that failed; KubeVirt keeps both until the
//     migration is collected.
//   - A live update (CPUs, memory, another Pod) that the guest's conditions ask for holds the end
//     of a migration back only if it was asked for before the guest began to move, and no longer
//     than Timeouts.Complete; KubeVirt's then stays in phase Running, and keeps its slot, without end.
//   - Another Pod of the guest is waited for only if it is not on its way out, and is named.
//   - A target Pod prefers nodes that have a free slot for it; see [Avoid].
//   - A migration that has been waiting when its guest's object vanished fails before it is
//     deleted; one that named no guest from the beginning stays and says so.
//
// # Checks otherwise than KubeVirt's
//
//   - A migration of a guest that has another one is not refused at its creation: it waits for
//     that. Who may set spec.priority, and that a spec is not changed later, is for admission
//     to see to; a controller cannot know who wrote what.
//   - A guest of which no node says whether it is live migratable is judged by its object, as
//     far as that shows it, and not taken for migratable.
//   - A user's migration overtakes an automatic one that backs off. The back-off is no longer than
//     a cap, runs from the last failure, and any success ends it, a user's too.
//   - A target Pod that no node can ever match, or that a quota has no room for, is not made, so
//     that there is none to be deleted: the migration fails at once, or waits for the quota
//     without trying again in between.
//   - Critical migrations abort backups only where KubeVirt's virt-api can be asked to, as there
//     is no other way to; see [Config.AbortBackups].
//   - status.runtimeUser of a guest that changes its user follows in one write with the hand-off,
//     not before the target Pod is made: a migration that comes to nothing leaves it alone.
package migration
