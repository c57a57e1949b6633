// SPDX-License-Identifier: Apache-2.0

// Package evacuation answers: which migrations are created, or canceled, without a user's
// request, which Pods are evicted, and what is the answer to an eviction request? It writes
// nothing, reads no clock and remembers nothing: its input, with the migrations that exist, is
// the only history.
//
// [Evacuate] decides for the VMIs of a node that is drained or that they were requested to
// leave, [UpdateWorkloads] for VMIs whose Pods are outdated, [Evict] about a request to evict a
// VMI's Pod. The first two return a [Standing] for every [Guest]: a migration to create,
// migrations to cancel, a Pod to evict, or why nothing is done; Evict returns an
// [EvictionAnswer]. A controller calls Evacuate and UpdateWorkloads whenever nodes, VMIs or
// migrations change and executes the standings, and writes the [EvictionMark] that an answer
// carries, from which Evacuate goes on. The migrations then queue like all others.
//
// There is never more than one such migration of a VMI, whoever creates it and however stale
// its caches: the name is derived from the VMI's UID and the preceding migration. A failure for a
// lasting reason is not retried before VMI, nodes or configuration change, of which the migration
// has a hash in annotation virtloom.dev/circumstances, or an hour has passed.
//
// The rules are KubeVirt's: nodeDrainTaintKey (default kubevirt.io/drain), evictionStrategy,
// status.evacuationNodeName, and workloadUpdateStrategy with batchEvictionSize (default 10) and
// batchEvictionInterval (default 1m). The three functions document the differences.
package evacuation
