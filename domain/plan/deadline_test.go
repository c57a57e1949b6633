// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// TestDecide_MigrationDeadlineFollowsSettings: the deadline of the lease is that of the settings at the start.
func TestDecide_MigrationDeadlineFollowsSettings(t *testing.T) {
	// A VMI with 1 GiB has 150 s for each of 2 GB, twice, and 150 s and five minutes more: 1050 s.
	for name, tc := range map[string]struct {
		ago   time.Duration
		perGB int64
		abort bool
	}{
		"as it began":         {1050 * time.Second, 150, true},
		"more time":           {1050 * time.Second, 151, false},
		"that is used up too": {1054 * time.Second, 151, true},
		"less time":           {1050 * time.Second, 1, true},
		"no limit":            {time.Hour, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := placed(v1.Running, late(moved(here, there, handoff.Begin)), func(vmi *v1.VirtualMachineInstance) {
				memory := resource.MustParse("1Gi")
				vmi.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
				began := metav1.NewTime(decideNow.Add(-tc.ago))
				vmi.Status.MigrationState.StartTimestamp = &began
				vmi.Status.MigrationState.VMIMConfigurationOptions = &v1.VMIMConfigurationOptions{CompletionTimeoutPerGiB: &tc.perGB}
			})
			decided, _ := decide(t, plan.Snapshot{VMI: vmi, State: runs(domain.StatusRunning, ""), Migrating: true})
			if got := verbs(decided) == "AbortMigration"; got != tc.abort {
				t.Errorf("actions %q, abort %t is wanted", verbs(decided), tc.abort)
			}
		})
	}
}
