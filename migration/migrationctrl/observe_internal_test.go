// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration"
)

// Where a guest without a Pod could go cannot be told, which is no error of anybody's.
func TestWhereAGuestWithoutAPodCouldGo(t *testing.T) {
	g := &gathered{Snapshot: migration.Snapshot{
		VMI: &v1.VirtualMachineInstance{}, Migration: &v1.VirtualMachineInstanceMigration{},
	}}
	var e migration.Explanation
	if err := (&Reconciler{}).aim(t.Context(), g, &e); err != nil {
		t.Fatal(err)
	}
	if e.Targets == nil || !strings.HasPrefix(e.Targets.Summary, "unknown: the guest has no Pod") || e.Targets.Candidates == nil {
		t.Errorf("targets are %+v", e.Targets)
	}
}
