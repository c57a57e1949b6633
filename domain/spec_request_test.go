// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

func request(t *testing.T, s domain.Sight, r domain.Request) (domain.Plan, error) {
	t.Helper()
	s.Node = here
	if s.VMI == nil {
		s.VMI = placed(v1.Running, owned)
	}
	before := s.VMI.DeepCopy()
	plan, err := domain.DecideRequest(s, r, decideNow)
	if diff := cmp.Diff(before, s.VMI); diff != "" {
		t.Errorf("the request changed its input:\n%s", diff)
	}
	if err != nil && (len(plan.Tasks) > 0 || plan.VMI != nil) {
		t.Errorf("a refused request has a plan: %+v", plan)
	}
	if err == nil && !cmp.Equal(plan.VMI, before) {
		t.Error("the request says something about the object")
	}
	return plan, err
}

func TestRequests(t *testing.T) {
	noACPI := placed(v1.Running, owned, func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Features = &v1.Features{ACPI: v1.FeatureState{Enabled: new(bool)}}
	})
	running := runs(domain.StatusRunning, "")
	for name, tt := range map[string]struct {
		verb  domain.RequestVerb
		sight domain.Sight
		tasks string
		err   error
	}{
		"pause: one that runs is marked, then stopped":      {domain.RequestPause, domain.Sight{State: running}, "SetMetadata, Suspend", nil},
		"pause: asked again, nothing is left to do":         {domain.RequestPause, domain.Sight{State: runs(domain.StatusPaused, domain.ReasonUser, onPurpose)}, "", nil},
		"pause: asked again after the mark alone was set":   {domain.RequestPause, domain.Sight{State: runs(domain.StatusRunning, "", onPurpose)}, "Suspend", nil},
		"pause: one that a disk has stopped stays so":       {domain.RequestPause, domain.Sight{State: runs(domain.StatusPaused, domain.ReasonIOError)}, "SetMetadata", nil},
		"pause: not while a snapshot is taken":              {domain.RequestPause, domain.Sight{State: runs(domain.StatusPaused, domain.ReasonSnapshot)}, "", domain.ErrInvalidState},
		"pause: not one that shuts down":                    {domain.RequestPause, domain.Sight{State: runs(domain.StatusShuttingDown, "")}, "", domain.ErrInvalidState},
		"pause: not one that sleeps":                        {domain.RequestPause, domain.Sight{State: runs(domain.StatusPMSuspended, "")}, "", domain.ErrInvalidState},
		"unpause: the mark goes first":                      {domain.RequestUnpause, domain.Sight{State: runs(domain.StatusPaused, domain.ReasonUser, onPurpose)}, "SetMetadata, Resume", nil},
		"unpause: the clock is set by the agent":            {domain.RequestUnpause, domain.Sight{State: runs(domain.StatusPaused, domain.ReasonUser, onPurpose, withAgent)}, "SetMetadata, Resume, SyncTime", nil},
		"unpause: one that runs needs nothing":              {domain.RequestUnpause, domain.Sight{State: running}, "", nil},
		"unpause: one that runs loses a mark that was left": {domain.RequestUnpause, domain.Sight{State: runs(domain.StatusRunning, "", onPurpose)}, "SetMetadata", nil},
		"unpause: one that a disk has stopped is tried":     {domain.RequestUnpause, domain.Sight{State: runs(domain.StatusPaused, domain.ReasonIOError)}, "Resume", nil},
		"unpause: not what is saved at the moment":          {domain.RequestUnpause, domain.Sight{State: runs(domain.StatusPaused, domain.ReasonSave)}, "", domain.ErrInvalidState},
		"unpause: not what a migration tore apart":          {domain.RequestUnpause, domain.Sight{State: runs(domain.StatusPaused, domain.ReasonPostcopyFailed)}, "", domain.ErrInvalidState},
		"reset: one that runs":                              {domain.RequestReset, domain.Sight{State: running}, "Reset", nil},
		"reset: one that hangs, paused":                     {domain.RequestReset, domain.Sight{State: runs(domain.StatusPaused, domain.ReasonUser)}, "Reset", nil},
		"reset: frozen file systems are forgotten":          {domain.RequestReset, domain.Sight{State: runs(domain.StatusRunning, "", thawAt(decideNow))}, "Reset, SetMetadata", nil},
		"reset: not one that shuts down":                    {domain.RequestReset, domain.Sight{State: runs(domain.StatusShuttingDown, "")}, "", domain.ErrInvalidState},
		"softreboot: by the agent":                          {domain.RequestSoftReboot, domain.Sight{State: runs(domain.StatusRunning, "", withAgent)}, "Reboot", nil},
		"softreboot: by the button":                         {domain.RequestSoftReboot, domain.Sight{State: running}, "Reboot", nil},
		"softreboot: by the agent, without ACPI":            {domain.RequestSoftReboot, domain.Sight{VMI: noACPI, State: runs(domain.StatusRunning, "", withAgent)}, "Reboot", nil},
		"softreboot: not without either":                    {domain.RequestSoftReboot, domain.Sight{VMI: noACPI, State: running}, "", domain.ErrInvalidState},
		"softreboot: not one that is paused":                {domain.RequestSoftReboot, domain.Sight{State: runs(domain.StatusPaused, domain.ReasonUser)}, "", domain.ErrInvalidState},
		"freeze: by the agent":                              {domain.RequestFreeze, domain.Sight{State: runs(domain.StatusRunning, "", withAgent)}, "Freeze", nil},
		"freeze: what is known of it may be old":            {domain.RequestFreeze, domain.Sight{State: runs(domain.StatusRunning, "", withAgent), Guest: &domain.GuestInfo{Frozen: true}}, "Freeze", nil},
		"freeze: not without an agent":                      {domain.RequestFreeze, domain.Sight{State: running}, "", domain.ErrNoAgent},
		"freeze: not one that is paused":                    {domain.RequestFreeze, domain.Sight{State: runs(domain.StatusPaused, domain.ReasonUser, withAgent)}, "", domain.ErrInvalidState},
		"unfreeze: whatever is known":                       {domain.RequestUnfreeze, domain.Sight{State: runs(domain.StatusRunning, "", withAgent)}, "Thaw", nil},
		"unfreeze: the time limit goes":                     {domain.RequestUnfreeze, domain.Sight{State: runs(domain.StatusRunning, "", withAgent, thawAt(decideNow))}, "Thaw, SetMetadata", nil},
		"unfreeze: not without an agent":                    {domain.RequestUnfreeze, domain.Sight{State: running}, "", domain.ErrNoAgent},
		"something else":                                    {"dance", domain.Sight{State: running}, "", domain.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := request(t, tt.sight, domain.Request{Verb: tt.verb})
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if got := verbs(plan); got != tt.tasks {
				t.Errorf("tasks %q, want %q", got, tt.tasks)
			}
			for _, task := range plan.Tasks {
				if task.Operation.Verb == domain.Reboot && task.Operation.Agent != domain.AgentConnected(tt.sight.State.Domain) {
					t.Errorf("%+v does not go by the agent", task.Operation)
				}
			}
		})
	}
}

// TestOnlyTheOwnerServesRequests asks each request where none may be served.
func TestOnlyTheOwnerServesRequests(t *testing.T) {
	sees := func(l handoff.Lease, edit ...func(*v1.VirtualMachineInstance)) domain.Sight {
		return domain.Sight{VMI: placed(v1.Running, l, edit...), State: runs(domain.StatusRunning, "", withAgent, epoch(l.Epoch))}
	}
	without := func(s domain.Sight, change func(*domain.Sight)) domain.Sight { change(&s); return s }
	for name, tt := range map[string]struct {
		sight domain.Sight
		err   error
	}{
		"it is elsewhere":             {sees(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: there}), domain.ErrNotFound},
		"it is offered":               {sees(leased(offerHere), func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Scheduled }), domain.ErrNotFound},
		"it is to come here":          {sees(moved(there, here, handoff.Ready)), domain.ErrNotFound},
		"a move is prepared":          {sees(moved(here, there, handoff.Prepare)), domain.ErrInvalidState},
		"a move is ready":             {sees(moved(here, there, handoff.Ready)), domain.ErrInvalidState},
		"it moves":                    {sees(moved(here, there, handoff.Begin)), domain.ErrInvalidState},
		"the hypervisor is moving it": {without(sees(owned), func(s *domain.Sight) { s.MoveActive = true }), domain.ErrInvalidState},
		"this process is moving it":   {without(sees(owned), func(s *domain.Sight) { s.Moving = true }), domain.ErrInvalidState},
		"its node was silent":         {sees(suspect(owned)), domain.ErrInvalidState},
		"it is being ended":           {sees(on(owned, decideNow, handoff.Event{Kind: handoff.Stop, Node: here})), domain.ErrInvalidState},
		"it is being deleted":         {sees(owned, beingDeleted), domain.ErrInvalidState},
		"it is final":                 {sees(owned, func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Failed }), domain.ErrInvalidState},
		"it is off":                   {without(sees(owned), func(s *domain.Sight) { s.State = runs(domain.StatusShutoff, "") }), domain.ErrInvalidState},
		"there is no domain":          {without(sees(owned), func(s *domain.Sight) { s.State = nil }), domain.ErrInvalidState},
		"the domain is an older one's": {without(sees(owned), func(s *domain.Sight) {
			s.State = runs(domain.StatusRunning, "", func(s *domain.State) { s.Metadata.UID = "older" })
		}), domain.ErrInvalidState},
		"the hypervisor is silent":   {without(sees(owned), func(s *domain.Sight) { s.SilentSince = decideNow }), domain.ErrInvalidState},
		"the lease cannot be read":   {sees(owned, func(vmi *v1.VirtualMachineInstance) { vmi.Annotations[handoff.Annotation] = "?" }), handoff.ErrNotALease},
		"all is well, for reference": {sees(owned), nil},
	} {
		for _, verb := range []domain.RequestVerb{
			domain.RequestPause, domain.RequestUnpause, domain.RequestReset, domain.RequestSoftReboot, domain.RequestFreeze, domain.RequestUnfreeze,
		} {
			t.Run(name+", "+string(verb), func(t *testing.T) {
				_, err := request(t, tt.sight, domain.Request{Verb: verb})
				if !errors.Is(err, tt.err) {
					t.Fatalf("error %v, want %v", err, tt.err)
				}
				var said *domain.Error
				if err != nil && errors.As(err, &said) && (!strings.Contains(said.Object, "ns/guest") || !strings.Contains(said.Reason, string(verb))) {
					t.Errorf("the error names neither object nor request: %v", err)
				}
			})
		}
	}
	if _, err := domain.DecideRequest(domain.Sight{Node: here}, domain.Request{Verb: domain.RequestPause}, decideNow); !errors.Is(err, domain.ErrNotFound) {
		t.Errorf("without an object: %v", err)
	}
}

func TestAFreezeKeepsWhenItEnds(t *testing.T) {
	s := domain.Sight{State: runs(domain.StatusRunning, "", withAgent)}
	plan, err := request(t, s, domain.Request{Verb: domain.RequestFreeze, ThawAfter: time.Minute})
	if err != nil || verbs(plan) != "SetMetadata, Freeze" {
		t.Fatalf("tasks %q, %v", verbs(plan), err)
	}
	s.State.Metadata = stored(t, plan.Tasks[0].Operation.Metadata)
	if at := s.State.Metadata.ThawAt; at == nil || !at.Equal(decideNow.Add(time.Minute)) || plan.RequeueAt == nil || !plan.RequeueAt.Equal(*at) {
		t.Errorf("it ends at %v, and is looked at again at %v", at, plan.RequeueAt)
	}
	// Asked again, perhaps since the agent failed, it ends when it was to end.
	if plan, err = request(t, s, domain.Request{Verb: domain.RequestFreeze, ThawAfter: time.Hour}); err != nil || verbs(plan) != "Freeze" {
		t.Errorf("asked again: tasks %q, %v", verbs(plan), err)
	}
	if _, err = request(t, s, domain.Request{Verb: domain.RequestFreeze, ThawAfter: -1}); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("a time that has passed: %v", err)
	}
}

func TestAPauseOutlivesTheAgent(t *testing.T) {
	s := domain.Sight{State: runs(domain.StatusRunning, "")}
	plan, err := request(t, s, domain.Request{Verb: domain.RequestPause})
	if err != nil {
		t.Fatal(err)
	}
	s.State = runs(domain.StatusPaused, domain.ReasonUser)
	s.State.Metadata = stored(t, plan.Tasks[0].Operation.Metadata)
	s.VMI = placed(v1.Running, owned)
	if plan, _ := decide(t, s); verbs(plan) != "" {
		t.Errorf("another process has tasks %q", verbs(plan))
	}
	if plan, err = request(t, s, domain.Request{Verb: domain.RequestUnpause}); err != nil {
		t.Fatal(err)
	}
	if m := plan.Tasks[0].Operation.Metadata; m.Paused || m.Epoch != 1 || m.UID != "uid-1" {
		t.Errorf("the domain then carries %+v", m)
	}
}
