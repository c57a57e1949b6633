// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"
)

// Every phase that waits names the event that ends the wait.
func TestPhases_NameUnblock(t *testing.T) {
	for side, rows := range map[string]map[v1.VirtualMachineInstanceMigrationPhase]row{"local": table, "sender": senders, "receiver": receivers} {
		for ph, r := range rows {
			if r.awaits != "" && r.awaits.Unblock() == "" {
				t.Errorf("%s in %s awaits %s, and nothing says what ends that", side, ph, r.awaits)
			}
		}
	}
}
