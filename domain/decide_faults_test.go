// SPDX-License-Identifier: Apache-2.0

package domain_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/handoff"
)

// decide runs Decide on this node and returns the plan with its lease.
func decide(t *testing.T, s domain.Sight) (domain.Plan, handoff.Lease) {
	t.Helper()
	s.Node, s.Listening = here, listening
	plan, err := domain.Decide(proven(s), decideNow)
	if err != nil {
		t.Fatal(err)
	}
	if plan.VMI == nil {
		return plan, handoff.Lease{}
	}
	l, err := handoff.Of(plan.VMI)
	if err != nil {
		t.Fatal(err)
	}
	return plan, l
}

func TestAHolderThatLostTrackOfAMoveAsksTheTarget(t *testing.T) {
	moving := handoff.Lease{State: handoff.Moving, Epoch: 1, Holder: here, Target: there, Tag: job}
	for name, tt := range map[string]struct {
		s       domain.Sight
		stalled bool
	}{
		"stopped for the switch, nothing going on": {domain.Sight{State: runs(domain.StatusPaused, domain.ReasonMigration)}, true},
		"stopped for the switch, still going on":   {domain.Sight{State: runs(domain.StatusPaused, domain.ReasonMigration), MoveActive: true}, false},
		"its QEMU died":                            {domain.Sight{State: runs(domain.StatusShutoff, domain.ReasonCrashed)}, true},
		"its node went down":                       {domain.Sight{State: runs(domain.StatusShutoff, domain.ReasonUnknown)}, true},
		"its domain is gone":                       {domain.Sight{}, true},
		"it has just left":                         {domain.Sight{State: runs(domain.StatusShutoff, domain.ReasonMigrated), MoveEnded: decideNow.Add(-time.Second)}, false},
		"it left, and nobody reports it":           {domain.Sight{State: runs(domain.StatusShutoff, domain.ReasonMigrated), MoveEnded: decideNow.Add(-time.Minute)}, true},
		"the clock was put back":                   {domain.Sight{State: runs(domain.StatusShutoff, domain.ReasonMigrated), MoveEnded: decideNow.Add(time.Hour)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			tt.s.VMI = placed(v1.Running, moving)
			plan, l := decide(t, tt.s)
			if len(plan.Tasks) > 0 || l.State != handoff.Moving || l.Stalled != tt.stalled || plan.VMI.Status.Phase != v1.Running {
				t.Fatalf("lease %+v, phase %s, tasks %v; want stalled %t and the guest untouched", l, plan.VMI.Status.Phase, plan.Tasks, tt.stalled)
			}
			if plan.RequeueAt == nil {
				t.Error("it is not looked at again")
			}
		})
	}
}

func TestATargetSaysWhereAStalledMoveEnded(t *testing.T) {
	for name, tt := range map[string]struct {
		state  *domain.State
		holder string
		tasks  string
	}{
		"it runs here":               {runs(domain.StatusRunning, ""), here, ""},
		"stopped by a disk error":    {runs(domain.StatusPaused, domain.ReasonIOError), here, ""},
		"it ran here and ended":      {runs(domain.StatusShutoff, domain.ReasonShutdown), here, ""},
		"this node went down":        {runs(domain.StatusShutoff, domain.ReasonUnknown), here, ""},
		"the switch failed":          {runs(domain.StatusShutoff, domain.ReasonFailed), there, "Undefine, Cleanup"},
		"it never came":              {nil, there, ""},
		"the hypervisor is still at": {runs(domain.StatusPaused, domain.ReasonMigration), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := handoff.Lease{State: handoff.Moving, Epoch: 1, Holder: there, Target: here, Tag: job, Stalled: true}
			plan, got := decide(t, domain.Sight{VMI: placed(v1.Running, l), State: tt.state})
			if verbs(plan) != tt.tasks {
				t.Errorf("tasks %q, want %q", verbs(plan), tt.tasks)
			}
			if tt.holder == "" {
				if got.State != handoff.Moving {
					t.Errorf("the lease is %+v, want it still moving", got)
				}
				return
			}
			want := handoff.Owned
			if tt.holder == here {
				want = handoff.Arrived
			}
			if got.State != want || got.Holder != tt.holder {
				t.Errorf("the lease is %+v, want it %s at %s", got, want, tt.holder)
			}
			if m := plan.VMI.Status.MigrationState; m.EndTimestamp == nil || m.Failed != (tt.holder == there) || m.Completed != m.Failed {
				t.Errorf("migration state %+v", m)
			}
		})
	}
}

func TestATargetDoesNotDeclineAMoveNobodyDoubts(t *testing.T) {
	l := handoff.Lease{State: handoff.Moving, Epoch: 1, Holder: there, Target: here, Tag: job}
	for name, state := range map[string]*domain.State{"nothing yet": nil, "ended": runs(domain.StatusShutoff, domain.ReasonCrashed)} {
		t.Run(name, func(t *testing.T) {
			if plan, got := decide(t, domain.Sight{VMI: placed(v1.Running, l), State: state}); got.State != handoff.Moving || len(plan.Tasks) > 0 {
				t.Fatalf("lease %+v, tasks %v", got, plan.Tasks)
			}
		})
	}
}

func TestATakeOverNeedsNeitherLabelsNorMigrationState(t *testing.T) {
	l := handoff.Lease{State: handoff.Moving, Epoch: 1, Holder: there, Target: here, Tag: job}
	vmi := placed(v1.Running, l)
	vmi.Labels, vmi.Status.MigrationState = nil, nil
	if plan, got := decide(t, domain.Sight{VMI: vmi, State: runs(domain.StatusRunning, "")}); got.Holder != here || plan.VMI.Labels[v1.NodeNameLabel] != here {
		t.Fatalf("lease %+v, labels %v", got, plan.VMI.Labels)
	}
}

func TestAGuestStoppedForAMoveThatFailedIsResumed(t *testing.T) {
	l := handoff.Lease{State: handoff.Owned, Epoch: 2, Holder: here}
	plan, _ := decide(t, domain.Sight{VMI: placed(v1.Running, l), State: runs(domain.StatusPaused, domain.ReasonMigration)})
	if verbs(plan) != "Resume" {
		t.Fatalf("tasks %q", verbs(plan))
	}
}

func TestAMoveAnotherProcessAskedForIsGivenTimeToBegin(t *testing.T) {
	l := handoff.Lease{State: handoff.Moving, Epoch: 1, Holder: here, Target: there, Tag: job}
	for name, tt := range map[string]struct {
		begun time.Duration
		ended time.Time
		want  handoff.State
	}{
		"just asked for":             {-time.Second, time.Time{}, handoff.Moving},
		"long ago":                   {-time.Minute, time.Time{}, handoff.Owned},
		"the clock was put back":     {time.Hour, time.Time{}, handoff.Owned},
		"this process saw it failed": {-time.Second, decideNow, handoff.Owned},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := placed(v1.Running, l)
			at := metav1.NewTime(decideNow.Add(tt.begun))
			vmi.Status.MigrationState.StartTimestamp = &at
			if _, got := decide(t, domain.Sight{VMI: vmi, State: runs(domain.StatusRunning, ""), MoveEnded: tt.ended}); got.State != tt.want {
				t.Fatalf("lease %+v, want %s", got, tt.want)
			}
		})
	}
}

func TestADomainThatIsNotOursIsInTheWayAndLeftAlone(t *testing.T) {
	foreign := &domain.State{Name: "ns_guest", UUID: "5f0c6c9a-9d0d-4f5e-8f1e-000000000001", Status: domain.StatusRunning}
	owned := leased(offerHere, acceptHere)
	for name, vmi := range map[string]*v1.VirtualMachineInstance{
		"offered":            placed(v1.Scheduled, handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: here}),
		"offered, deleted":   placed(v1.Scheduled, handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: here}, beingDeleted),
		"owned, not started": placed(v1.Scheduled, owned),
		"owned elsewhere":    placed(v1.Running, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: there}),
		"about to come":      placed(v1.Running, handoff.Lease{State: handoff.Preparing, Epoch: 1, Holder: there, Target: here, Tag: job}),
	} {
		t.Run(name, func(t *testing.T) {
			plan, l := decide(t, domain.Sight{VMI: vmi, State: foreign})
			if v := verbs(plan); v != "" && v != "Cleanup" {
				t.Errorf("tasks %q", v)
			}
			if before, _ := handoff.Of(vmi); l.State != before.State {
				t.Errorf("the lease became %+v", l)
			}
			says := ""
			for _, c := range plan.VMI.Status.Conditions {
				says += c.Message
			}
			if m := plan.VMI.Status.MigrationState; m != nil {
				says += m.FailureReason
			}
			if (name == "owned, not started" || name == "offered" || name == "about to come") && !strings.Contains(says, "undefine that domain") {
				t.Errorf("the object says %q, not what to do", says)
			}
		})
	}
}

func TestADomainThatLostItsMetadataIsKnownByItsUUID(t *testing.T) {
	st := &domain.State{Name: "ns_guest", UUID: "UID-1", Status: domain.StatusRunning}
	plan, l := decide(t, domain.Sight{VMI: placed(v1.Running, handoff.Lease{State: handoff.Owned, Epoch: 3, Holder: here}), State: st})
	if verbs(plan) != "SetMetadata" || l.State != handoff.Owned {
		t.Fatalf("tasks %q, lease %+v", verbs(plan), l)
	}
	if m := plan.Tasks[0].Operation.Metadata; m.UID != "uid-1" || m.Epoch != 3 {
		t.Errorf("metadata %+v", m)
	}
	if st.Ours() {
		t.Error("the argument was changed")
	}
}

func TestADomainWithoutMetadataAndObjectIsKnownByItsFiles(t *testing.T) {
	st := &domain.State{Name: "ns_guest", UUID: "uid-0", Status: domain.StatusRunning}
	plan, _ := decide(t, domain.Sight{State: st, Leftovers: []types.UID{"uid-0"}})
	if verbs(plan) != "SetMetadata, Shutdown" {
		t.Fatalf("tasks %q", verbs(plan))
	}
	if m := plan.Tasks[0].Operation.Metadata; m.UID != "uid-0" || m.Of() != (types.NamespacedName{Namespace: "ns", Name: "guest"}) {
		t.Errorf("metadata %+v", m)
	}
}

func TestFilesOfEarlierGuestsOfANameGo(t *testing.T) {
	old := types.UID("uid-0")
	running := runs(domain.StatusRunning, "", func(s *domain.State) { s.Metadata.UID = "uid-2" })
	vmi := placed(v1.Running, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: here})
	for name, tt := range map[string]struct {
		s    domain.Sight
		want []types.UID
	}{
		"nothing else":        {domain.Sight{Leftovers: []types.UID{old}}, []types.UID{old}},
		"another guest":       {domain.Sight{VMI: vmi, State: runs(domain.StatusRunning, ""), Leftovers: []types.UID{old, vmi.UID}}, []types.UID{old}},
		"a domain still runs": {domain.Sight{State: running, Leftovers: []types.UID{old, "uid-2"}}, []types.UID{old}},
	} {
		t.Run(name, func(t *testing.T) {
			plan, _ := decide(t, tt.s)
			var got []types.UID
			for _, task := range plan.Tasks {
				if task.Verb == domain.TaskCleanup {
					got = append(got, task.UID)
				}
			}
			if len(got) != len(tt.want) || got[0] != tt.want[0] {
				t.Fatalf("files of %v go, want %v", got, tt.want)
			}
		})
	}
}

func TestWhatStandsInTheWayIsLookedAtAgain(t *testing.T) {
	obstacle := &domain.Error{Object: "node", Reason: "the disk is full"}
	for name, l := range map[string]handoff.Lease{
		"offered": {State: handoff.Offered, Epoch: 1, Holder: here},
		"owned":   leased(offerHere, acceptHere),
		"target":  {State: handoff.Preparing, Epoch: 1, Holder: there, Target: here, Tag: job},
	} {
		t.Run(name, func(t *testing.T) {
			if plan, _ := decide(t, domain.Sight{VMI: placed(v1.Scheduled, l), Obstacle: obstacle}); plan.RequeueAt == nil {
				t.Fatal("nobody looks again")
			}
		})
	}
}

func TestAClockPutBackDelaysNoShutdown(t *testing.T) {
	vmi := placed(v1.Running, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: here}, beingDeleted)
	later := decideNow.Add(time.Hour)
	plan, _ := decide(t, domain.Sight{VMI: vmi, State: runs(domain.StatusRunning, "", graceUntil(later), askedAt(later))})
	if verbs(plan) != "SetMetadata, Shutdown" {
		t.Fatalf("tasks %q", verbs(plan))
	}
	if at := plan.Tasks[0].Operation.Metadata.GraceDeadline; at.After(decideNow.Add(domain.DefaultGrace)) {
		t.Errorf("the guest has until %v", at)
	}
}

func TestAGuestGivenUpBeforeItWasSeenToStartCannotStartLater(t *testing.T) {
	vmi := placed(v1.Scheduled, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: here}, beingDeleted)
	plan, l := decide(t, domain.Sight{VMI: vmi, Desired: &libvirtxml.Domain{Name: "ns_guest"}})
	if verbs(plan) != "Destroy, Undefine, Cleanup" || l.State != handoff.Released {
		t.Fatalf("tasks %q, lease %+v", verbs(plan), l)
	}
}

func TestAFailedTaskIsToldUntilItSucceeds(t *testing.T) {
	l := leased(offerHere, acceptHere)
	s := domain.Sight{Node: here, VMI: placed(v1.Scheduled, l), Desired: &libvirtxml.Domain{Name: "ns_guest"}, Troubles: []domain.Trouble{{Err: errors.New("no memory left")}}}
	plan, err := domain.Decide(proven(s), decideNow)
	if err != nil {
		t.Fatal(err)
	}
	if c := plan.VMI.Status.Conditions; len(c) != 1 || c[0].Reason != domain.ReasonSyncFailed || c[0].Message != "no memory left" {
		t.Errorf("conditions %+v, want the failure", c)
	}
	if got := verbs(plan); got != "Start" {
		t.Errorf("tasks %q, want another start", got)
	}
	s.VMI, s.Troubles, s.State = plan.VMI, nil, runs(domain.StatusRunning, "")
	if plan, err = domain.Decide(proven(s), decideNow); err != nil {
		t.Fatal(err)
	}
	if c := plan.VMI.Status.Conditions; len(c) != 0 {
		t.Errorf("conditions %+v, want none", c)
	}
}

func TestBeginRefusesADestinationThatIsNone(t *testing.T) {
	for name, spoil := range map[string]func(*v1.VirtualMachineInstanceMigrationState){
		"address": func(m *v1.VirtualMachineInstanceMigrationState) { m.TargetNodeAddress = "host/?x" },
		"port": func(m *v1.VirtualMachineInstanceMigrationState) {
			m.TargetDirectMigrationNodePorts = map[string]int{"1/x": 0}
		},
		"none": func(m *v1.VirtualMachineInstanceMigrationState) { m.TargetDirectMigrationNodePorts = nil },
	} {
		t.Run(name, func(t *testing.T) {
			l := handoff.Lease{State: handoff.Prepared, Epoch: 1, Holder: here, Target: there, Tag: job}
			vmi := placed(v1.Running, l)
			spoil(vmi.Status.MigrationState)
			plan, err := domain.Decide(proven(domain.Sight{Node: here, VMI: vmi, State: runs(domain.StatusRunning, "")}), decideNow)
			if err != nil {
				t.Fatal(err)
			}
			m := plan.VMI.Status.MigrationState
			if len(plan.Tasks) > 0 || !m.Failed || !strings.Contains(m.FailureReason, "status.migrationState.target") {
				t.Fatalf("tasks %v, failure %q", plan.Tasks, m.FailureReason)
			}
		})
	}
}

func TestTheRoleOfANodeUnderALease(t *testing.T) {
	moving := moved(here, there, handoff.Begin)
	for name, tt := range map[string]struct {
		lease       handoff.Lease
		here, there domain.Role
	}{
		"unclaimed":      {handoff.Lease{}, domain.RoleNone, domain.RoleNone},
		"claimed":        {leased(handoff.Event{Kind: handoff.Claim}), domain.RoleNone, domain.RoleNone},
		"offered":        {leased(offerHere), domain.RoleOffered, domain.RoleNone},
		"owned":          {leased(offerHere, acceptHere), domain.RoleHolder, domain.RoleNone},
		"preparing":      {moved(here, there, handoff.Prepare), domain.RoleHolder, domain.RoleTarget},
		"prepared":       {moved(here, there, handoff.Ready), domain.RoleHolder, domain.RoleTarget},
		"moving":         {moving, domain.RoleHolder, domain.RoleTarget},
		"arrived":        {moved(here, there, handoff.TakeOver), domain.RoleNone, domain.RoleHolder},
		"releasing":      {leased(offerHere, acceptHere, handoff.Event{Kind: handoff.Stop}), domain.RoleHolder, domain.RoleNone},
		"lost":           {suspect(leased(offerHere, acceptHere)), domain.RoleHolder, domain.RoleNone},
		"lost in a move": {suspect(moving), domain.RoleHolder, domain.RoleTarget},
		"fenced":         {fenced(leased(offerHere, acceptHere)), domain.RoleNone, domain.RoleNone},
		"fenced moving":  {fenced(moving), domain.RoleNone, domain.RoleTarget},
		"released":       {leased(offerHere, acceptHere, handoff.Event{Kind: handoff.Release, Node: here}), domain.RoleNone, domain.RoleNone},
	} {
		t.Run(name, func(t *testing.T) {
			for node, want := range map[string]domain.Role{here: tt.here, there: tt.there, "node-c": domain.RoleNone, "": domain.RoleNone} {
				if got := domain.RoleOf(tt.lease, node); got != want {
					t.Errorf("node %q is %s, want %s", node, got, want)
				}
			}
		})
	}
}
