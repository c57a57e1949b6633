// SPDX-License-Identifier: Apache-2.0

package migration

import "testing"

func TestWhatLiftsALimitIsSaid(t *testing.T) {
	for name, tc := range map[string]struct {
		limits Limits
		want   string
	}{
		"cluster": {
			Limits{Cluster: 1, Outbound: 9, Inbound: 9},
			"fewer than 1 migrations of the cluster hold slots (one ends, or parallelMigrationsPerCluster is raised)",
		},
		"node": {
			Limits{Cluster: 9, Outbound: 1, Inbound: 9},
			"fewer than 1 migrations leaving node n1 hold slots (one ends, or parallelOutboundMigrationsPerNode is raised)",
		},
		"bandwidth": {
			Limits{Cluster: 9, Outbound: 9, Inbound: 9, Bandwidth: 64 << 20},
			"migrations take less of the bandwidth of node n1 (one ends, or migrationBandwidthPerNode is raised)",
		},
		"cluster, where none may start": {Limits{Outbound: 9, Inbound: 9}, "parallelMigrationsPerCluster is raised"},
	} {
		t.Run(name, func(t *testing.T) {
			a := NewAdmission(tc.limits, QueueOptions{})
			a.Ask(acting("1", "n1", ""), start)
			a.Ask(claim("2", "n1"), start)
			e := Explanation{Reason: ReasonWaitingForSlot}
			e.standing(Snapshot{Slot: a.Explain(key("a", "2"), start)}, Plan{})
			if got := unblocks(Snapshot{}, &e); got != tc.want {
				t.Errorf("it goes on when %q, want %q", got, tc.want)
			}
		})
	}
}
