// SPDX-License-Identifier: Apache-2.0

// Package policy answers: which MigrationPolicy is in force for a VMI, why, and which
// migration options follow from it? It reads no API, keeps no state and waits for nothing.
//
// [NewPolicies] indexes all policies once. [Policies.Match] finds the [Match] for the labels
// of a VMI and its namespace; [Match.Candidates] explains why it won and the others lost.
// [Resolve] merges the winner over the cluster's configuration and KubeVirt's defaults into a
// [Resolution]: the options that the handoff stores in status.migrationState. A controller
// calls Match and Resolve when it gathers a migration.Snapshot; [Resolution.Budget] then bounds
// the migration's phase Running.
//
// The rules are KubeVirt's: selectors of MigrationPolicy (migrations.kubevirt.io/v1alpha1),
// the most labels win, then the most labels of the VMI, then the smaller name; defaults as in
// spec.configuration.migrations: completionTimeoutPerGiB 150, progressTimeout 150,
// maxDowntimeMs 900, no bandwidth limit. Differences from KubeVirt:
//
//   - A VMI without labels matches no policy that demands one. KubeVirt matches it with every
//     policy, due to a bug.
//   - The resolved options follow later changes of policy, namespace and cluster as far as a
//     migration under way can; package migration decides which do.
//   - A stored policy with a value that KubeVirt's admission rejects ([PolicyError]) holds back
//     the migrations that it is in force for until it is fixed. Migrations already handed off
//     keep their options.
//   - experimental.downtimeTuning is not in the API that this module is built with.
package policy
