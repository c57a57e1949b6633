// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/handoff"
)

// TestDecide_DomainOfEarlierHandoff: a domain of an earlier epoch than that of the offer is
// removed first; one of that epoch, or a later one, is the VMI's.
func TestDecide_DomainOfEarlierHandoff(t *testing.T) {
	for made, want := range map[uint64]handoff.State{1: handoff.Offered, 2: handoff.Owned, 3: handoff.Owned} {
		s := plan.Snapshot{
			Node: here, VMI: placed(v1.Scheduled, handoff.Lease{State: handoff.Offered, Epoch: 2, Holder: here}),
			State: runs(domain.StatusRunning, domain.ReasonUnknown, epoch(made)),
		}
		p, l := decide(t, s)
		cleared := len(p.Actions) > 0 && p.Actions[0].Operation.Verb == domain.Destroy
		if l.State != want || cleared != (want == handoff.Offered) {
			t.Errorf("domain of epoch %d: the lease is %s, actions %v", made, l.State, p.Actions)
		}
	}
}

// TestDecide_PausedForSwitch: no pass resumes a domain during the switch, since the hypervisor
// may be about to run it elsewhere.
func TestDecide_PausedForSwitch(t *testing.T) {
	owned := leased(offerHere, acceptHere, startedHere)
	for name, tt := range map[string]struct {
		change func(*plan.Snapshot)
		want   bool
	}{
		"nothing moves it":           {func(*plan.Snapshot) {}, true},
		"the hypervisor is at it":    {func(s *plan.Snapshot) { s.MigrationActive = true }, false},
		"this process is at it":      {func(s *plan.Snapshot) { s.Migrating = true }, false},
		"somebody has asked for it":  {func(s *plan.Snapshot) { s.State.Metadata.Paused = true }, false},
		"it was stopped by its disk": {func(s *plan.Snapshot) { s.State.Reason = domain.ReasonWatchdog }, false},
	} {
		s := plan.Snapshot{Node: here, VMI: placed(v1.Running, owned), State: runs(domain.StatusPaused, domain.ReasonMigration)}
		tt.change(&s)
		p, _ := decide(t, s)
		resumed := false
		for _, a := range p.Actions {
			resumed = resumed || a.Operation.Verb == domain.Resume
		}
		if resumed != tt.want {
			t.Errorf("%s: resumed is %t, want %t", name, resumed, tt.want)
		}
	}
}

// TestDecide_TargetAwaitsSwitch: a domain that runs here during the switch may still be taken
// back.
func TestDecide_TargetAwaitsSwitch(t *testing.T) {
	moving := handoff.Lease{State: handoff.Moving, Epoch: 1, Holder: there, Target: here, Tag: job}
	for active, want := range map[bool]handoff.State{true: handoff.Moving, false: handoff.Arrived} {
		s := plan.Snapshot{VMI: placed(v1.Running, moving), State: runs(domain.StatusRunning, domain.ReasonUnknown), MigrationActive: active}
		if _, l := decide(t, s); l.State != want {
			t.Errorf("the hypervisor moves it: %t; the lease is %s, want %s", active, l.State, want)
		}
	}
}
