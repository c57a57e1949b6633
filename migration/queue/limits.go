// SPDX-License-Identifier: Apache-2.0

package queue

// Limits bound how many migrations act at the same time. To an [Admission] zero is no default:
// with zero in Cluster or Outbound no migration may start, with zero in Inbound none is handed
// off. The defaults are those of migration.Config.WithDefaults.
type Limits struct {
	// Cluster is KubeVirt's parallelMigrationsPerCluster; default 5.
	Cluster int
	// Outbound is KubeVirt's parallelOutboundMigrationsPerNode; default 2.
	Outbound int
	// Inbound bounds the migrations entering one node; default 2. KubeVirt has no such
	// limit.
	Inbound int
	// Lent bounds the migrations that act and have lent their slots because they cannot
	// use them for now, see [Admission]; so there are at most Cluster plus Lent target
	// Pods. Default as Cluster, negative means none.
	Lent int
	// Bandwidth bounds the bandwidth of the migrations of one node, in each direction, in
	// bytes per second. A migration without a limit of its own counts as all of it; a
	// single migration always fits. Zero means no budget.
	Bandwidth int64
}
