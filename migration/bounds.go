// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"time"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/migration/policy"
)

// policyBounds are how long each phase may take.
type policyBounds struct{ *decision }

func (d policyBounds) pending() time.Duration { return d.s.Config.Timeouts.Pending }

// handOff allows the wait for a slot at the target as much time as the wait for the
// first slot; the rest of the phase is bounded from when the slot was free. Another cluster
// does not wait.
func (d policyBounds) handOff() time.Duration {
	t, waiting := d.s.Config.Timeouts, Condition(d.s.Migration.Status, ConditionWaiting)
	if waiting == nil || d.s.Migration.Status.Phase != v1.MigrationScheduled || t.HandOff <= 0 || betweenClusters(d.s.Migration) {
		return t.HandOff
	}
	if waiting.Reason == string(ReasonWaitingForSlot) || d.s.Slot.Asked && !d.s.Slot.Inbound {
		return t.Pending
	}
	bound := t.HandOff + max(waiting.LastTransitionTime.Sub(phaseSince(d.s.Migration, &d.plan.Status)), 0)
	if t.Pending > 0 {
		bound = min(bound, t.Pending)
	}
	return bound
}

func (d policyBounds) prepare() time.Duration { return d.s.Config.Timeouts.Prepare }

func (d policyBounds) begin() time.Duration { return d.s.Config.Timeouts.Begin }

// running returns the configured bound, or the budget of the options resolved at
// handoff.
func (d policyBounds) running() time.Duration {
	if t := d.s.Config.Timeouts.Running; t != 0 {
		return t
	}
	if d.ms == nil {
		return 0
	}
	return policy.Resolution{Options: d.ms.VMIMConfigurationOptions}.Budget(d.s.VMI)
}

func (d policyBounds) synchronize() time.Duration { return d.s.Config.Timeouts.Synchronize }
