// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/explain"
)

// The targets of a VMI without a Pod are unknown, which is not an error.
func TestAim_WithoutPod(t *testing.T) {
	g := &gathered{Snapshot: migration.Snapshot{
		VMI: &v1.VirtualMachineInstance{}, Migration: &v1.VirtualMachineInstanceMigration{},
	}}
	var e explain.Explanation
	if err := (explainer{&Reconciler{}}).aim(t.Context(), g, &e); err != nil {
		t.Fatal(err)
	}
	if e.Targets == nil || !strings.HasPrefix(e.Targets.Summary, "unknown: the VMI has no Pod") || e.Targets.Candidates == nil {
		t.Errorf("targets are %+v", e.Targets)
	}
}
