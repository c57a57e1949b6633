// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"time"
)

// checkPolicy waits until the MigrationPolicy in force for the VMI has only values that
// can be applied.
func checkPolicy(s Snapshot, _ time.Time) Finding {
	if err := s.Resolution.Err; err != nil {
		return later(ReasonPolicyInvalid, fmt.Sprintf("MigrationPolicy %q, in force for the VMI, is invalid: %s: %s", err.Policy, err.Field, err.Problem), err.Remedy)
	}
	return Finding{}
}
