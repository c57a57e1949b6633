// SPDX-License-Identifier: Apache-2.0

// Package queue answers: which waiting migration goes next, and is a slot free for it? It
// starts no migration, calls no API server, and has no clock but the one it is given.
//
// [Queue] is a work queue for any keys with a name in a namespace. It orders by priority,
// raised by waiting ([Options].AgeAfter), then by turns between namespaces by weight, then by
// age or the caller's Order, with a bound on waiting.
//
// [Admission] hands out the slots of [Limits]: per cluster, leaving a node, entering a node,
// and bandwidth. Migrations that wait for slots are ordered as in a Queue.
// A controller calls [Admission.Restore] at its start, [Admission.Ask] with the [Claim] of a
// migration in each pass and [Admission.Release] at its end; the keys they return are to be
// reconciled at once. The [Verdict] goes into migration.Snapshot; [Admission.Explain] returns
// it for an observer, with the place in the queue and the [Blocker]s. An [Item] is a migration
// in the queue.
//
// Both serve from one implementation of the order. Admission is not built on Queue: it serves no workers but whoever asks,
// is given the time, and takes an item only together with its slots, under one lock. What a Queue adds to the
// order (waiting workers, keys that are worked on, a clock) is what an Admission must not have.
//
// The rules are KubeVirt's where it has any: spec.priority system-critical (100),
// user-triggered (50) and system-maintenance (20), parallelMigrationsPerCluster (default 5) and
// parallelOutboundMigrationsPerNode (default 2). Ageing, turns, the limit on migrations
// entering a node (default 2), lent slots and the bandwidth budget are this module's.
package queue
