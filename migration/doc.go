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
//   - [Queue], the order of those that wait: priority, raised by waiting, then
//     fairness between namespaces, then age;
//   - [Admission], the slots: per cluster, leaving a node, entering a node.
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
// Every phase has an owner, a deadline and a typed reason, told in the
// condition [ConditionWaiting] of the migration. Until the source node has begun
// to move the guest (handoff.Moving) the controller can call a migration off by
// itself; from then on only the nodes know where the guest runs, so the
// controller asks for an abort and waits for their answer. A migration that ends before
// it was handed over, as far as the caches tell, is first marked as failed on the guest, so
// that a hand-over which is still on its way is refused.
//
// Deciding is safe at any point after a crash: Decide reads what is stored, never
// what an earlier pass remembered, and each of its writes is either guarded by
// the object's resourceVersion, or by all of the object that decided, or repeatable
// under a fixed name.
//
// Migrations between clusters (spec.sendTo, spec.receive), guests with hotplugged
// volumes and guests with persistent TPM or EFI state are refused with the reason
// [ReasonUnsupported].
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
package migration
