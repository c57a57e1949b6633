// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"testing"
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

// TestAWatchTakesUpWhatTheGuestHasPaid asks what would be done for a guest that stands
// still, by what was told of its migration before.
func TestAWatchTakesUpWhatTheGuestHasPaid(t *testing.T) {
	for name, tc := range map[string]struct {
		told *v1.VirtualMachineInstanceMigrationState
		want v1.MigrationMode
	}{
		"nothing was told": {nil, v1.MigrationPreCopy},
		"nothing special":  {&v1.VirtualMachineInstanceMigrationState{}, v1.MigrationPreCopy},
		"it was paused":    {&v1.VirtualMachineInstanceMigrationState{Mode: v1.MigrationPaused}, v1.MigrationPaused},
		"it was post-copy": {&v1.VirtualMachineInstanceMigrationState{Mode: v1.MigrationPostCopy}, v1.MigrationPreCopy},
	} {
		t.Run(name, func(t *testing.T) {
			w := &watch{monitor: domain.Monitor{Settings: domain.MigrationSettings{AllowWorkloadDisruption: true}}}
			w.takeUp(tc.told)
			progress := domain.Progress{Active: true, Total: 1 << 30, Remaining: 1 << 29, Processed: 1 << 29}
			a := w.monitor.Observe(progress, true, time.Now())
			if a.Mode != tc.want || a.Action != domain.Carry {
				t.Errorf("it would be told to be %s, and done %q; want %s, and nothing", a.Mode, a.Action, tc.want)
			}
		})
	}
}
