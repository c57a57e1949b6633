// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// TestDecide_ADomainOfTheHandOverBefore is in the way: that of the epoch under which the
// guest is offered, or a later one, is the guest.
func TestDecide_ADomainOfTheHandOverBefore(t *testing.T) {
	for made, want := range map[uint64]handoff.State{1: handoff.Offered, 2: handoff.Owned, 3: handoff.Owned} {
		s := domain.Sight{
			Node: here, VMI: placed(v1.Scheduled, handoff.Lease{State: handoff.Offered, Epoch: 2, Holder: here}),
			State: runs(domain.StatusRunning, domain.ReasonUnknown, epoch(made)),
		}
		p, l := decide(t, s)
		cleared := len(p.Tasks) > 0 && p.Tasks[0].Operation.Verb == domain.Destroy
		if l.State != want || cleared != (want == handoff.Offered) {
			t.Errorf("domain of epoch %d: the lease is %s, tasks %v", made, l.State, p.Tasks)
		}
	}
}

// TestDecide_StoppedForASwitchThatIsNotOver is resumed by nobody: the hypervisor may be
// about to let the guest run elsewhere.
func TestDecide_StoppedForASwitchThatIsNotOver(t *testing.T) {
	owned := leased(offerHere, acceptHere, startedHere)
	for name, tt := range map[string]struct {
		change func(*domain.Sight)
		want   bool
	}{
		"nothing moves it":           {func(*domain.Sight) {}, true},
		"the hypervisor is at it":    {func(s *domain.Sight) { s.MoveActive = true }, false},
		"this process is at it":      {func(s *domain.Sight) { s.Moving = true }, false},
		"somebody has asked for it":  {func(s *domain.Sight) { s.State.Metadata.Paused = true }, false},
		"it was stopped by its disk": {func(s *domain.Sight) { s.State.Reason = domain.ReasonWatchdog }, false},
	} {
		s := domain.Sight{Node: here, VMI: placed(v1.Running, owned), State: runs(domain.StatusPaused, domain.ReasonMigration)}
		tt.change(&s)
		p, _ := decide(t, s)
		resumed := false
		for _, task := range p.Tasks {
			resumed = resumed || task.Operation.Verb == domain.Resume
		}
		if resumed != tt.want {
			t.Errorf("%s: resumed is %t, want %t", name, resumed, tt.want)
		}
	}
}

// TestDecide_ATargetWaitsForTheEndOfTheSwitch: what runs here while the hypervisor is still
// at it may yet be taken back.
func TestDecide_ATargetWaitsForTheEndOfTheSwitch(t *testing.T) {
	moving := handoff.Lease{State: handoff.Moving, Epoch: 1, Holder: there, Target: here, Tag: job}
	for active, want := range map[bool]handoff.State{true: handoff.Moving, false: handoff.Arrived} {
		s := domain.Sight{VMI: placed(v1.Running, moving), State: runs(domain.StatusRunning, domain.ReasonUnknown), MoveActive: active}
		if _, l := decide(t, s); l.State != want {
			t.Errorf("the hypervisor moves it: %t; the lease is %s, want %s", active, l.State, want)
		}
	}
}
