// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/handoff"
)

// leasesOfAMove returns the leases of a VMI during its migration between the nodes.
func leasesOfAMove(from, to string) map[string]handoff.Lease {
	out := map[string]handoff.Lease{}
	for _, until := range []handoff.Kind{handoff.Prepare, handoff.Ready, handoff.Begin, handoff.TakeOver, handoff.Finalize} {
		out["after "+string(until)] = moved(from, to, until)
	}
	moving := out["after Begin"]
	out["aborted"] = on(moving, decideNow, handoff.Event{Kind: handoff.Abort, Tag: job})
	out["stalled"], out["lost"], out["fenced"] = stalled(moving), suspect(moving), fenced(moving)
	out["lost after the move"] = suspect(out["after TakeOver"])
	out["reverted"] = on(moving, decideNow, handoff.Event{Kind: handoff.Revert, Node: from})
	out["declined"] = on(out["stalled"], decideNow, handoff.Event{Kind: handoff.Decline, Node: to})
	out["stopped"] = on(out["after TakeOver"], decideNow, handoff.Event{Kind: handoff.Stop, Node: to})
	out["released"] = on(out["stopped"], decideNow, handoff.Event{Kind: handoff.Release, Node: to})
	for name, l := range out {
		if l.Deadline != nil {
			out[name+", late"] = late(l)
		}
	}
	return out
}

// statesOfADomain returns all states that a hypervisor can report, and no domain.
func statesOfADomain() []*domain.State {
	out := []*domain.State{nil}
	for _, s := range []domain.Status{
		domain.StatusNoState, domain.StatusRunning, domain.StatusBlocked, domain.StatusPaused,
		domain.StatusShuttingDown, domain.StatusShutoff, domain.StatusCrashed, domain.StatusPMSuspended,
	} {
		for _, r := range []domain.Reason{
			domain.ReasonUnknown, domain.ReasonUser, domain.ReasonShutdown, domain.ReasonDestroyed, domain.ReasonCrashed, domain.ReasonMigrated,
			domain.ReasonFailed, domain.ReasonMigration, domain.ReasonIOError, domain.ReasonStartingUp, domain.ReasonPostcopy, domain.ReasonPostcopyFailed,
		} {
			out = append(out, runs(s, r))
		}
	}
	return out
}

// shaken returns a snapshot of that domain under that lease, with random other values.
func shaken(r *rand.Rand, l handoff.Lease, st *domain.State) plan.Snapshot {
	half := func() bool { return r.IntN(2) == 0 }
	s := plan.Snapshot{Node: here, Desired: desired.Desired, VMI: placed([]v1.VirtualMachineInstancePhase{v1.Running, v1.Running, v1.Scheduled, v1.Failed}[r.IntN(4)], l)}
	if st != nil {
		own := *st
		own.Metadata.Epoch = uint64(r.IntN(int(l.Epoch) + 1))
		own.Metadata.Paused, own.Metadata.Held = half(), half()
		if half() {
			own.Metadata.MigrationUID = job
		}
		s.State = &own
	}
	if half() {
		s.TargetEndpoint = listening
	}
	if r.IntN(4) == 0 {
		beingDeleted(s.VMI)
	}
	if m := s.VMI.Status.MigrationState; m != nil {
		m.AbortRequested = r.IntN(4) == 0
		if half() {
			m.TargetNodeAddress, m.TargetDirectMigrationNodePorts = "", nil
		}
	}
	s.Migrating, s.MigrationActive = r.IntN(3) == 0, r.IntN(3) == 0
	if half() {
		s.MigrationEnded = decideNow.Add(time.Duration(r.IntN(120)-60) * time.Second)
	}
	if r.IntN(4) == 0 {
		s.MigrationMode = []v1.MigrationMode{v1.MigrationPreCopy, v1.MigrationPaused, v1.MigrationPostCopy}[r.IntN(3)]
		s.Progress = &domain.Progress{Active: half(), PostCopy: half()}
	}
	if r.IntN(6) == 0 {
		s.PrepareError = fmt.Errorf("the disk is not there")
	}
	return s
}

// Whatever a node observes of a migration, it neither starts a second domain nor ends the
// only one.
func TestDecide_MigrationSafety(t *testing.T) {
	const seed, tries = 6, 4
	r := rand.New(rand.NewPCG(seed, seed))
	states := statesOfADomain()
	for _, way := range [][2]string{{here, there}, {there, here}, {there, "node-c"}} {
		leases := leasesOfAMove(way[0], way[1])
		for _, name := range slices.Sorted(maps.Keys(leases)) { // each run sees the same
			l := leases[name]
			for _, st := range states {
				for range tries {
					s := shaken(r, l, st)
					if why := harm(s, l); why != "" {
						t.Fatalf("%s from %s to %s, seen at %s: %s\nstate %+v\nsight %+v", name, way[0], way[1], here, why, s.State, s)
					}
				}
			}
		}
	}
}

// harm returns why the decision for the snapshot is wrong; empty if it is not.
func harm(s plan.Snapshot, l handoff.Lease) string {
	before := s.VMI.DeepCopy()
	got, err := plan.Decide(proven(s), decideNow)
	if err != nil {
		return "it cannot decide: " + err.Error()
	}
	if diff := cmp.Diff(before, s.VMI); diff != "" {
		return "it changed what it saw: " + diff
	}
	next, err := handoff.Of(got.VMI)
	if err != nil {
		return err.Error()
	}
	for _, a := range got.Actions {
		why := ""
		switch {
		case a.Verb == action.Migrate:
			why = harmfulMove(s, l, next, a)
		case a.Verb == action.Abort && ahead(s):
			why = "a guest that is ahead of its memory would lose it"
		case a.Verb != action.Apply:
		case a.Operation.Verb == domain.Start && (!next.MayStart(here) || s.State != nil && s.State.Alive()):
			why = "it may not start"
		case a.Operation.Verb == domain.Resume && (next.Switching() || !next.MayRun(here)):
			why = "it may run elsewhere"
		case a.Operation.Verb == domain.Destroy:
			why = harmfulEnd(s, l, next)
		}
		if why != "" {
			return fmt.Sprintf("%s: %s; the lease becomes %+v", a, why, next)
		}
	}
	return harmfulClaim(s, l, next)
}

func ahead(s plan.Snapshot) bool {
	return s.State != nil && (s.State.Reason == domain.ReasonPostcopy || s.State.Reason == domain.ReasonPostcopyFailed) ||
		s.MigrationMode == v1.MigrationPostCopy || s.Progress != nil && s.Progress.Active && s.Progress.PostCopy
}

// executing reports whether the domain's CPUs run on this node, or have to.
func executing(s plan.Snapshot) bool {
	return s.State != nil && s.State.Alive() && s.State.Status != domain.StatusPaused
}

// harmfulMove: a migration starts once, when that is stored, and resumes only after a broken
// post-copy.
func harmfulMove(s plan.Snapshot, l, next handoff.Lease, a action.Action) string {
	if err := next.Authorize(a.Command, decideNow, decideNow); err != nil {
		return err.Error()
	}
	switch {
	case s.Migrating:
		return "this process moves it already"
	case next.Holder != here || !s.State.Alive():
		return "there is no guest to move here"
	case a.Request.Resume:
		if !l.Stalled || s.State.Reason != domain.ReasonPostcopyFailed {
			return "there is nothing to go on with"
		}
	case l.State != handoff.Prepared || next.State != handoff.Moving:
		return "it begins a second time"
	case s.State.Metadata.MigrationUID == job:
		return "it was tried before"
	}
	return ""
}

// harmfulEnd: a domain of this node's VMI ends because it is unwanted or lost, and one of
// another holder does not end while it can still run or arrive.
func harmfulEnd(s plan.Snapshot, l, next handoff.Lease) string {
	unwanted := s.VMI.DeletionTimestamp != nil || s.VMI.IsFinal() || l.State == handoff.Releasing
	torn := s.State != nil && s.State.Reason == domain.ReasonPostcopyFailed
	switch {
	case l.Holds(here) && l.Switching():
		return "its holder ends it in the middle of a move"
	case s.State == nil || !s.State.Alive():
		return "" // nothing of it lives here
	case l.Holds(here):
		if !unwanted && !torn || next.State != handoff.Releasing && next.State != handoff.Released {
			return "nobody has asked for its end"
		}
	case l.Target == here && held(s.State) && l.State == handoff.Fenced:
		return "" // its source may have run it since, and cannot say any more
	case l.Switching() && l.Target == here && (executing(s) || s.State.Reason != domain.ReasonMigration && s.State.Reason != domain.ReasonFailed):
		return "it has come to run here"
	case l.Switching() && l.Target == here && !l.Overdue(decideNow) && s.State.Alive():
		return "it may still come"
	}
	return ""
}

// harmfulClaim: a VMI is taken over only where it has arrived, and kept only where it is.
func harmfulClaim(s plan.Snapshot, l, next handoff.Lease) string {
	switch {
	case next.Holder == here && l.Holder != here:
		switch {
		case s.State == nil:
			return "it takes over a guest that is not there"
		case held(s.State) && !l.Stalled:
			return "it takes over a guest that may still run at the source"
		case s.State.Status == domain.StatusPaused && s.State.Reason == domain.ReasonMigration, s.State.Reason == domain.ReasonPostcopy && s.State.Alive():
			return "it takes over a guest that has not arrived"
		}
	case l.State == handoff.Moving && l.Holder == here && next.State == handoff.Owned:
		if s.Migrating || s.MigrationActive && s.State.Reason != domain.ReasonPostcopyFailed || !executing(s) && s.State.Reason == domain.ReasonMigration {
			return "it takes back a guest that may be on its way"
		}
	case l.State == handoff.Moving && l.Target == here && next.State == handoff.Owned && s.State != nil && s.State.Alive():
		return "it declines a guest that is here"
	}
	return ""
}

// A post-copy migration that has lost its connection resumes, or both nodes fail it at the
// same time.
func TestDecide_RejoinsPostCopy(t *testing.T) {
	torn := runs(domain.StatusPaused, domain.ReasonPostcopyFailed)
	half := runs(domain.StatusRunning, domain.ReasonPostcopyFailed, epoch(2))
	out, in := stalled(moved(here, there, handoff.Begin)), stalled(moved(there, here, handoff.Begin))
	ago := func(d time.Duration) time.Time { return decideNow.Add(-d) }
	final := fenced(moved(there, here, handoff.Begin))
	runRows(t, v1.Running, map[string]row{
		"source: it breaks":                           {moved(here, there, handoff.Begin), plan.Snapshot{State: torn, MigrationEnded: decideNow}, nil, "", "Moving 2", ""},
		"source: it breaks, and the job is not over":  {moved(here, there, handoff.Begin), plan.Snapshot{State: torn, MigrationActive: true}, nil, "", "Moving 2", ""},
		"source: it dials again":                      {out, plan.Snapshot{State: torn, MigrationActive: true, MigrationEnded: ago(5 * time.Second)}, nil, "Migrate", "Moving 2", ""},
		"source: so it does after a restart":          {out, plan.Snapshot{State: torn}, nil, "Migrate", "Moving 2", ""},
		"source: but not at once":                     {out, plan.Snapshot{State: torn, MigrationEnded: ago(time.Second)}, nil, "", "Moving 2", ""},
		"source: nor while it does":                   {out, plan.Snapshot{State: torn, Migrating: true}, nil, "", "Moving 2", ""},
		"source: nor once the target gives it up":     {late(out), plan.Snapshot{State: torn}, nil, "", "Moving 2", ""},
		"source: it flows again":                      {out, plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonPostcopy), Migrating: true}, nil, "", "Moving 2", ""},
		"source: its own half is gone":                {out, plan.Snapshot{State: runs(domain.StatusShutoff, domain.ReasonCrashed)}, nil, "", "Moving 2", ""},
		"source: the target's half is gone":           {on(out, decideNow, handoff.Event{Kind: handoff.Decline, Node: there}), plan.Snapshot{State: torn}, nil, "Destroy", "Releasing 3", v1.Failed},
		"source: another node's now, half-way":        {moved(here, there, handoff.TakeOver), plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonPostcopy), MigrationActive: true}, nil, "", "Arrived 3", ""},
		"source: another node's now, given up":        {moved(here, there, handoff.TakeOver), plan.Snapshot{State: torn, MigrationActive: true}, nil, "Destroy, Undefine, Cleanup", "Arrived 3", ""},
		"target: it runs ahead of its memory":         {moved(there, here, handoff.Begin), plan.Snapshot{State: runs(domain.StatusRunning, domain.ReasonPostcopy)}, nil, "", "Moving 2", ""},
		"target: it breaks":                           {moved(there, here, handoff.Begin), plan.Snapshot{State: half}, nil, "", "Moving 2", ""},
		"target: the source says so":                  {in, plan.Snapshot{State: half}, nil, "", "Moving 2", ""},
		"target: late, and it flows again":            {late(in), plan.Snapshot{State: runs(domain.StatusRunning, domain.ReasonPostcopy)}, nil, "", "Moving 2", ""},
		"target: all of it has come":                  {late(in), plan.Snapshot{State: runs(domain.StatusRunning, "")}, nil, "", "Arrived 3", ""},
		"target: late, it is given up":                {late(in), plan.Snapshot{State: half}, nil, "", "Arrived 3", ""},
		"target: the source is known to be gone":      {final, plan.Snapshot{State: half}, nil, "", "Arrived 5", ""},
		"target: the source is silent":                {late(suspect(moved(there, here, handoff.Begin))), plan.Snapshot{State: half}, nil, "", "Lost 3", ""},
		"target: once given up it has failed":         {moved(there, here, handoff.TakeOver), plan.Snapshot{State: half}, nil, "Destroy", "Releasing 3", v1.Failed},
		"target: and so has one that no page came to": {moved(there, here, handoff.TakeOver), plan.Snapshot{State: torn}, nil, "Destroy", "Releasing 3", v1.Failed},
	})
	got, l := decide(t, plan.Snapshot{VMI: placed(v1.Running, moved(here, there, handoff.Begin)), State: torn})
	if !l.Stalled || l.Deadline.Sub(decideNow) != 5*time.Minute || len(got.Actions) > 0 {
		t.Errorf("the lease is %+v, actions %v", l, got.Actions)
	}
	got, _ = decide(t, plan.Snapshot{VMI: placed(v1.Running, out), State: torn})
	if a := got.Actions[0]; !a.Request.Resume || a.To.Address != "192.0.2.2" {
		t.Errorf("it goes on with %+v to %+v", a.Request, a.To)
	}
}

// A target whose agent was restarted listens elsewhere, and publishes the new endpoint.
func TestDecide_TargetRepublishes(t *testing.T) {
	for name, tt := range map[string]struct {
		lease     handoff.Lease
		prepare   error
		listening transport.Endpoint
		want      string
	}{
		"ready":                {moved(there, here, handoff.Ready), nil, listening, listening.Address},
		"on the way":           {moved(there, here, handoff.Begin), nil, listening, listening.Address},
		"the way broke":        {stalled(moved(there, here, handoff.Begin)), nil, listening, listening.Address},
		"it listens nowhere":   {moved(there, here, handoff.Ready), nil, transport.Endpoint{}, "192.0.2.2"},
		"it cannot take it":    {moved(there, here, handoff.Ready), fmt.Errorf("no disk"), listening, "192.0.2.2"},
		"it is complete there": {moved(there, here, handoff.TakeOver), nil, listening, ""},
	} {
		t.Run(name, func(t *testing.T) {
			decided, err := plan.Decide(proven(plan.Snapshot{Node: here, VMI: placed(v1.Running, tt.lease), PrepareError: tt.prepare, TargetEndpoint: tt.listening, State: nil}), decideNow)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if m := decided.VMI.Status.MigrationState; m != nil {
				got = m.TargetNodeAddress
			}
			if got != tt.want {
				t.Errorf("it says %q, want %q", got, tt.want)
			}
			if len(decided.Actions) > 1 || len(decided.Actions) == 1 && tt.lease.State != handoff.Arrived {
				t.Errorf("actions %v", decided.Actions)
			}
		})
	}
}
