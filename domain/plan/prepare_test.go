// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/handoff"
)

// preparations prints the actions; those with an exclamation mark are Needed.
func preparations(actions []action.Action) string {
	var out []string
	for _, a := range actions {
		verb := string(a.Verb)
		if a.Needed {
			verb += "!"
		}
		out = append(out, verb)
	}
	return strings.Join(out, " ")
}

func TestPreparations_ByRole(t *testing.T) {
	arriving, leaving := leasesOfAMove(there, here), leasesOfAMove(here, there)
	running := runs(domain.StatusRunning, domain.ReasonUnknown)
	earlier := runs(domain.StatusRunning, domain.ReasonUnknown, func(s *domain.State) { s.Metadata.UID = "uid-0" })
	unmarked := runs(domain.StatusRunning, domain.ReasonUnknown, func(s *domain.State) { s.Metadata = domain.Metadata{} })
	ofJob := func(s *plan.Snapshot) { s.Pods[0].Labels[v1.MigrationJobLabel] = string(job) }
	noPods := func(s *plan.Snapshot) { s.Pods = nil }
	for name, tt := range map[string]struct {
		lease    handoff.Lease
		state    *domain.State
		change   func(*plan.Snapshot)
		want     string
		unproven bool
	}{
		"offered":                           {lease: leased(offerHere), want: "Prepare"},
		"offered, without a Pod":            {lease: leased(offerHere), change: noPods, unproven: true},
		"accepted":                          {lease: leased(offerHere, acceptHere), want: "Prepare"},
		"runs":                              {lease: leased(offerHere, acceptHere, startedHere), state: running, want: "Prepare"},
		"runs, without a Pod":               {lease: leased(offerHere, acceptHere, startedHere), state: running, change: noPods, want: "Prepare"},
		"runs, without metadata":            {lease: leased(offerHere, acceptHere, startedHere), state: unmarked, change: noPods, want: "Prepare"},
		"an earlier one runs":               {lease: leased(offerHere, acceptHere, startedHere), state: earlier, change: noPods, unproven: true},
		"owned by another node":             {lease: leased(handoff.Event{Kind: handoff.Offer, Node: there})},
		"no owner":                          {},
		"source of a requested migration":   {lease: leaving["after Prepare"], state: running, want: "Prepare"},
		"source of a migration":             {lease: leaving["after Begin"], state: running, want: "Prepare"},
		"target, requested":                 {lease: arriving["after Prepare"], change: ofJob, want: "Prepare! Listen!"},
		"target, requested, without a Pod":  {lease: arriving["after Prepare"], change: noPods, unproven: true},
		"target, ready":                     {lease: arriving["after Ready"], change: ofJob, want: "Prepare Listen"},
		"target, arriving":                  {lease: arriving["after Begin"], state: runs(domain.StatusPaused, domain.ReasonMigration), change: ofJob, want: "Prepare Listen"},
		"holder after a migration":          {lease: arriving["after TakeOver"], state: running, want: "Prepare"},
		"lost, and only an answer is asked": {lease: suspect(leased(offerHere, acceptHere, startedHere)), state: running},
		"fenced":                            {lease: leaving["fenced"], state: running},
		"being stopped":                     {lease: arriving["stopped"], state: running},
		"being deleted": {lease: leased(offerHere, acceptHere, startedHere), state: running,
			change: func(s *plan.Snapshot) { beingDeleted(s.VMI) }},
		"final": {lease: leased(offerHere, acceptHere, startedHere), state: running,
			change: func(s *plan.Snapshot) { s.VMI.Status.Phase = v1.Failed }},
		"unresponsive": {lease: leased(offerHere, acceptHere, startedHere), state: running,
			change: func(s *plan.Snapshot) { s.SilentSince = decideNow }},
	} {
		t.Run(name, func(t *testing.T) {
			s := proven(plan.Snapshot{Node: here, VMI: placed(v1.Running, tt.lease), State: tt.state})
			if tt.change != nil {
				tt.change(&s)
			}
			got, err := plan.Preparations(s)
			if preparations(got) != tt.want || (err != nil) != tt.unproven {
				t.Fatalf("%q, error %v; want %q, an error: %t", preparations(got), err, tt.want, tt.unproven)
			}
			for _, a := range got {
				if a.TouchesDomain() || a.Verb == action.Prepare && a.UID != s.VMI.UID ||
					a.Verb == action.Listen && a.Tunnel != transport.TunnelOf(s.VMI, here) {
					t.Errorf("%+v", a)
				}
			}
			s.PrepareError = errors.New("its hypervisor is not there yet")
			if got, err := plan.Preparations(s); len(got) > 0 || !errors.Is(err, s.PrepareError) {
				t.Errorf("with an obstacle: %q, error %v", preparations(got), err)
			}
		})
	}
}

// TestPreparations_UnreadableLease leaves the report of it to Decide.
func TestPreparations_UnreadableLease(t *testing.T) {
	vmi := placed(v1.Running, leased(offerHere, acceptHere))
	vmi.Annotations[handoff.Annotation] = "{"
	s := proven(plan.Snapshot{Node: here, VMI: vmi})
	if got, err := plan.Preparations(s); len(got) > 0 || err != nil {
		t.Errorf("%q, error %v", preparations(got), err)
	}
	if _, err := plan.Decide(s, decideNow); !errors.Is(err, handoff.ErrNotALease) {
		t.Errorf("error %v", err)
	}
}

// TestPreparations_ForgedOwnership has users who write what only controllers may: nothing is made
// for their VMIs without a Pod, whatever they write.
func TestPreparations_ForgedOwnership(t *testing.T) {
	for name, l := range forgedLeases() {
		for why, pods := range unfit(placed(v1.Scheduled, leased(offerHere))) {
			for _, phase := range []v1.VirtualMachineInstancePhase{v1.Scheduled, v1.Running} {
				s := plan.Snapshot{Node: here, VMI: forged(phase, map[string]string{v1.NodeNameLabel: here}, l), Pods: pods}
				got, _ := plan.Preparations(s)
				// The launcher Pod of a VMI that has migrated here has the label of that migration.
				if len(got) > 0 && why != "of another migration" {
					t.Errorf("%s, %s, Pods %s: %q", name, phase, why, preparations(got))
				}
			}
		}
	}
}

// TestDecide_Unprepared has callers that have not done what Preparations asks for: nothing starts,
// and the status says why.
func TestDecide_Unprepared(t *testing.T) {
	for name, l := range map[string]handoff.Lease{"offered": leased(offerHere), "accepted": leased(offerHere, acceptHere)} {
		t.Run(name, func(t *testing.T) {
			p, err := plan.Decide(proven(plan.Snapshot{Node: here, VMI: placed(v1.Scheduled, l)}), decideNow)
			if err != nil || len(p.Actions) > 0 || p.RequeueAt == nil {
				t.Fatalf("%+v, error %v", p, err)
			}
			if !slices.ContainsFunc(p.VMI.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
				return strings.Contains(c.Message, "not prepared on node "+here)
			}) {
				t.Errorf("conditions %+v", p.VMI.Status.Conditions)
			}
			if after, err := handoff.Of(p.VMI); err != nil || after.Epoch != l.Epoch || after.State != l.State {
				t.Errorf("the lease became %+v, error %v", after, err)
			}
		})
	}
}
