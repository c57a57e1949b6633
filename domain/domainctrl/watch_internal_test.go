// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/migrate"
)

// TestWatch_TakesUpDisruption gets the advice for a guest that is paused, by the earlier status of
// its migration.
func TestWatch_TakesUpDisruption(t *testing.T) {
	for name, tc := range map[string]struct {
		reported *v1.VirtualMachineInstanceMigrationState
		want     v1.MigrationMode
	}{
		"no status":        {nil, v1.MigrationPreCopy},
		"nothing special":  {&v1.VirtualMachineInstanceMigrationState{}, v1.MigrationPreCopy},
		"it was paused":    {&v1.VirtualMachineInstanceMigrationState{Mode: v1.MigrationPaused}, v1.MigrationPaused},
		"it was post-copy": {&v1.VirtualMachineInstanceMigrationState{Mode: v1.MigrationPostCopy}, v1.MigrationPreCopy},
	} {
		t.Run(name, func(t *testing.T) {
			w := &watch{monitor: migrate.Monitor{Settings: migrate.MigrationSettings{AllowWorkloadDisruption: true}}}
			w.takeUp(tc.reported)
			progress := domain.Progress{Active: true, Total: 1 << 30, Remaining: 1 << 29, Processed: 1 << 29}
			a := w.monitor.Observe(progress, true, time.Now())
			if a.Mode != tc.want || a.Action != migrate.Carry {
				t.Errorf("mode %s, action %q; want %s, and no action", a.Mode, a.Action, tc.want)
			}
		})
	}
}
