// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/internal/migrationworld"
	"github.com/virtloom/virtloom/migration/queue"
)

func TestExplain_FreedSlots(t *testing.T) {
	for name, tc := range map[string]struct {
		limits queue.Limits
		want   string
	}{
		"cluster": {
			queue.Limits{Cluster: 1, Outbound: 9, Inbound: 9},
			"fewer than 1 migrations of the cluster hold slots (one ends, or parallelMigrationsPerCluster is raised)",
		},
		"node": {
			queue.Limits{Cluster: 9, Outbound: 1, Inbound: 9},
			"fewer than 1 migrations leaving node n1 hold slots (one ends, or parallelOutboundMigrationsPerNode is raised)",
		},
		"bandwidth": {
			queue.Limits{Cluster: 9, Outbound: 9, Inbound: 9, Bandwidth: 64 << 20},
			"migrations take less of the bandwidth of node n1 (one ends, or migrationBandwidthPerNode is raised)",
		},
		"cluster, where none may start": {queue.Limits{Outbound: 9, Inbound: 9}, "parallelMigrationsPerCluster is raised"},
	} {
		t.Run(name, func(t *testing.T) {
			a := queue.NewAdmission(tc.limits, queue.Options{})
			a.Ask(queue.Claim{Key: slotOf("1"), Since: migrationworld.Start, SourceNode: "n1", Acting: true}, migrationworld.Start)
			a.Ask(queue.Claim{Key: slotOf("2"), Since: migrationworld.Start, SourceNode: "n1"}, migrationworld.Start)
			e := Explanation{Reason: migration.ReasonWaitingForSlot}
			e.standing(migration.Snapshot{Slot: a.Explain(slotOf("2"), migrationworld.Start)}, migration.Plan{})
			if got := unblocks(migration.Snapshot{}, &e); got != tc.want {
				t.Errorf("it goes on when %q, want %q", got, tc.want)
			}
		})
	}
}

func slotOf(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "a", Name: name}
}
