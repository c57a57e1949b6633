// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/guestagent"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

func request(t *testing.T, s plan.Snapshot, r plan.Request) (plan.Plan, error) {
	t.Helper()
	s.Node = here
	if s.VMI == nil {
		s.VMI = placed(v1.Running, owned)
	}
	before := s.VMI.DeepCopy()
	got, err := plan.DecideRequest(s, r, decideNow)
	if diff := cmp.Diff(before, s.VMI); diff != "" {
		t.Errorf("the request changed its input:\n%s", diff)
	}
	if err != nil && (len(got.Actions) > 0 || got.VMI != nil) {
		t.Errorf("a refused request has a plan: %+v", got)
	}
	if err == nil && !cmp.Equal(got.VMI, before) {
		t.Error("the request says something about the object")
	}
	return got, err
}

func TestDecideRequest(t *testing.T) {
	noACPI := placed(v1.Running, owned, func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Features = &v1.Features{ACPI: v1.FeatureState{Enabled: new(bool)}}
	})
	running := runs(domain.StatusRunning, "")
	for name, tt := range map[string]struct {
		verb     plan.RequestVerb
		snapshot plan.Snapshot
		actions  string
		err      error
	}{
		"pause: one that runs is marked, then stopped":      {plan.RequestPause, plan.Snapshot{State: running}, "SetMetadata, Suspend", nil},
		"pause: asked again, nothing is left to do":         {plan.RequestPause, plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonUser, onPurpose)}, "", nil},
		"pause: asked again after the mark alone was set":   {plan.RequestPause, plan.Snapshot{State: runs(domain.StatusRunning, "", onPurpose)}, "Suspend", nil},
		"pause: one that a disk has stopped stays so":       {plan.RequestPause, plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonIOError)}, "SetMetadata", nil},
		"pause: not while a snapshot is taken":              {plan.RequestPause, plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonSnapshot)}, "", domain.ErrInvalidState},
		"pause: not one that shuts down":                    {plan.RequestPause, plan.Snapshot{State: runs(domain.StatusShuttingDown, "")}, "", domain.ErrInvalidState},
		"pause: not one that sleeps":                        {plan.RequestPause, plan.Snapshot{State: runs(domain.StatusPMSuspended, "")}, "", domain.ErrInvalidState},
		"unpause: the mark goes first":                      {plan.RequestUnpause, plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonUser, onPurpose)}, "SetMetadata, Resume", nil},
		"unpause: the clock is set by the agent":            {plan.RequestUnpause, plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonUser, onPurpose, withAgent)}, "SetMetadata, Resume, SyncTime", nil},
		"unpause: one that runs needs nothing":              {plan.RequestUnpause, plan.Snapshot{State: running}, "", nil},
		"unpause: one that runs loses a mark that was left": {plan.RequestUnpause, plan.Snapshot{State: runs(domain.StatusRunning, "", onPurpose)}, "SetMetadata", nil},
		"unpause: one that a disk has stopped is tried":     {plan.RequestUnpause, plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonIOError)}, "Resume", nil},
		"unpause: not what is saved at the moment":          {plan.RequestUnpause, plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonSave)}, "", domain.ErrInvalidState},
		"unpause: not what a migration tore apart":          {plan.RequestUnpause, plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonPostcopyFailed)}, "", domain.ErrInvalidState},
		"reset: one that runs":                              {plan.RequestReset, plan.Snapshot{State: running}, "Reset", nil},
		"reset: one that hangs, paused":                     {plan.RequestReset, plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonUser)}, "Reset", nil},
		"reset: frozen file systems are forgotten":          {plan.RequestReset, plan.Snapshot{State: runs(domain.StatusRunning, "", thawAt(decideNow))}, "Reset, SetMetadata", nil},
		"reset: not one that shuts down":                    {plan.RequestReset, plan.Snapshot{State: runs(domain.StatusShuttingDown, "")}, "", domain.ErrInvalidState},
		"softreboot: by the agent":                          {plan.RequestSoftReboot, plan.Snapshot{State: runs(domain.StatusRunning, "", withAgent)}, "Reboot", nil},
		"softreboot: by the button":                         {plan.RequestSoftReboot, plan.Snapshot{State: running}, "Reboot", nil},
		"softreboot: by the agent, without ACPI":            {plan.RequestSoftReboot, plan.Snapshot{VMI: noACPI, State: runs(domain.StatusRunning, "", withAgent)}, "Reboot", nil},
		"softreboot: not without either":                    {plan.RequestSoftReboot, plan.Snapshot{VMI: noACPI, State: running}, "", domain.ErrInvalidState},
		"softreboot: not one that is paused":                {plan.RequestSoftReboot, plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonUser)}, "", domain.ErrInvalidState},
		"freeze: by the agent":                              {plan.RequestFreeze, plan.Snapshot{State: runs(domain.StatusRunning, "", withAgent)}, "Freeze", nil},
		"freeze: what is known of it may be old":            {plan.RequestFreeze, plan.Snapshot{State: runs(domain.StatusRunning, "", withAgent), Guest: &guestagent.Info{Frozen: true}}, "Freeze", nil},
		"freeze: not without an agent":                      {plan.RequestFreeze, plan.Snapshot{State: running}, "", domain.ErrNoAgent},
		"freeze: not one that is paused":                    {plan.RequestFreeze, plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonUser, withAgent)}, "", domain.ErrInvalidState},
		"unfreeze: whatever is known":                       {plan.RequestUnfreeze, plan.Snapshot{State: runs(domain.StatusRunning, "", withAgent)}, "Thaw", nil},
		"unfreeze: the time limit goes":                     {plan.RequestUnfreeze, plan.Snapshot{State: runs(domain.StatusRunning, "", withAgent, thawAt(decideNow))}, "Thaw, SetMetadata", nil},
		"unfreeze: not without an agent":                    {plan.RequestUnfreeze, plan.Snapshot{State: running}, "", domain.ErrNoAgent},
		"something else":                                    {"dance", plan.Snapshot{State: running}, "", domain.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			decided, err := request(t, tt.snapshot, plan.Request{Verb: tt.verb})
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if got := verbs(decided); got != tt.actions {
				t.Errorf("actions %q, want %q", got, tt.actions)
			}
			for _, a := range decided.Actions {
				if a.Operation.Verb == domain.Reboot && a.Operation.Agent != status.AgentConnected(tt.snapshot.State.Domain) {
					t.Errorf("%+v does not go by the agent", a.Operation)
				}
			}
		})
	}
}

// TestDecideRequest_OwnerOnly makes each request where none may be served.
func TestDecideRequest_OwnerOnly(t *testing.T) {
	sees := func(l handoff.Lease, edit ...func(*v1.VirtualMachineInstance)) plan.Snapshot {
		return plan.Snapshot{VMI: placed(v1.Running, l, edit...), State: runs(domain.StatusRunning, "", withAgent, epoch(l.Epoch))}
	}
	without := func(s plan.Snapshot, change func(*plan.Snapshot)) plan.Snapshot { change(&s); return s }
	for name, tt := range map[string]struct {
		snapshot plan.Snapshot
		err      error
	}{
		"it is elsewhere":             {sees(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: there}), domain.ErrNotFound},
		"it is offered":               {sees(leased(offerHere), func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Scheduled }), domain.ErrNotFound},
		"it is to come here":          {sees(moved(there, here, handoff.Ready)), domain.ErrNotFound},
		"a move is prepared":          {sees(moved(here, there, handoff.Prepare)), domain.ErrInvalidState},
		"a move is ready":             {sees(moved(here, there, handoff.Ready)), domain.ErrInvalidState},
		"it moves":                    {sees(moved(here, there, handoff.Begin)), domain.ErrInvalidState},
		"the hypervisor is moving it": {without(sees(owned), func(s *plan.Snapshot) { s.MigrationActive = true }), domain.ErrInvalidState},
		"this process is moving it":   {without(sees(owned), func(s *plan.Snapshot) { s.Migrating = true }), domain.ErrInvalidState},
		"its node was silent":         {sees(suspect(owned)), domain.ErrInvalidState},
		"it is being ended":           {sees(on(owned, decideNow, handoff.Event{Kind: handoff.Stop, Node: here})), domain.ErrInvalidState},
		"it is being deleted":         {sees(owned, beingDeleted), domain.ErrInvalidState},
		"it is final":                 {sees(owned, func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Failed }), domain.ErrInvalidState},
		"it is off":                   {without(sees(owned), func(s *plan.Snapshot) { s.State = runs(domain.StatusShutoff, "") }), domain.ErrInvalidState},
		"there is no domain":          {without(sees(owned), func(s *plan.Snapshot) { s.State = nil }), domain.ErrInvalidState},
		"the domain is an older one's": {without(sees(owned), func(s *plan.Snapshot) {
			s.State = runs(domain.StatusRunning, "", func(s *domain.State) { s.Metadata.UID = "older" })
		}), domain.ErrInvalidState},
		"the hypervisor is silent":   {without(sees(owned), func(s *plan.Snapshot) { s.SilentSince = decideNow }), domain.ErrInvalidState},
		"the lease cannot be read":   {sees(owned, func(vmi *v1.VirtualMachineInstance) { vmi.Annotations[handoff.Annotation] = "?" }), handoff.ErrNotALease},
		"all is well, for reference": {sees(owned), nil},
	} {
		for _, verb := range []plan.RequestVerb{
			plan.RequestPause, plan.RequestUnpause, plan.RequestReset, plan.RequestSoftReboot, plan.RequestFreeze, plan.RequestUnfreeze,
		} {
			t.Run(name+", "+string(verb), func(t *testing.T) {
				_, err := request(t, tt.snapshot, plan.Request{Verb: verb})
				if !errors.Is(err, tt.err) {
					t.Fatalf("error %v, want %v", err, tt.err)
				}
				var said *convert.Error
				if err != nil && errors.As(err, &said) && (!strings.Contains(said.Object, "ns/guest") || !strings.Contains(said.Reason, string(verb))) {
					t.Errorf("the error names neither object nor request: %v", err)
				}
			})
		}
	}
	if _, err := plan.DecideRequest(plan.Snapshot{Node: here}, plan.Request{Verb: plan.RequestPause}, decideNow); !errors.Is(err, domain.ErrNotFound) {
		t.Errorf("without an object: %v", err)
	}
}

func TestDecideRequest_FreezeDeadline(t *testing.T) {
	s := plan.Snapshot{State: runs(domain.StatusRunning, "", withAgent)}
	got, err := request(t, s, plan.Request{Verb: plan.RequestFreeze, ThawAfter: time.Minute})
	if err != nil || verbs(got) != "SetMetadata, Freeze" {
		t.Fatalf("actions %q, %v", verbs(got), err)
	}
	s.State.Metadata = stored(t, got.Actions[0].Operation.Metadata)
	if at := s.State.Metadata.ThawAt; at == nil || !at.Equal(decideNow.Add(time.Minute)) || got.RequeueAt == nil || !got.RequeueAt.Equal(*at) {
		t.Errorf("it ends at %v, and is looked at again at %v", at, got.RequeueAt)
	}
	// Asked again, perhaps since the agent failed, it ends when it was to end.
	if got, err = request(t, s, plan.Request{Verb: plan.RequestFreeze, ThawAfter: time.Hour}); err != nil || verbs(got) != "Freeze" {
		t.Errorf("asked again: actions %q, %v", verbs(got), err)
	}
	if _, err = request(t, s, plan.Request{Verb: plan.RequestFreeze, ThawAfter: -1}); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("a time that has passed: %v", err)
	}
}

func TestDecideRequest_PauseSurvivesRestart(t *testing.T) {
	s := plan.Snapshot{State: runs(domain.StatusRunning, "")}
	got, err := request(t, s, plan.Request{Verb: plan.RequestPause})
	if err != nil {
		t.Fatal(err)
	}
	s.State = runs(domain.StatusPaused, domain.ReasonUser)
	s.State.Metadata = stored(t, got.Actions[0].Operation.Metadata)
	s.VMI = placed(v1.Running, owned)
	if got, _ := decide(t, s); verbs(got) != "" {
		t.Errorf("another process has actions %q", verbs(got))
	}
	if got, err = request(t, s, plan.Request{Verb: plan.RequestUnpause}); err != nil {
		t.Fatal(err)
	}
	if m := got.Actions[0].Operation.Metadata; m.Paused || m.Epoch != 1 || m.UID != "uid-1" {
		t.Errorf("the domain then carries %+v", m)
	}
}
