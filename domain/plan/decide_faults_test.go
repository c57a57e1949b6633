// SPDX-License-Identifier: Apache-2.0

package plan_test

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
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/handoff"
)

// decide runs Decide on this node and returns the plan with its lease.
func decide(t *testing.T, s plan.Snapshot) (plan.Plan, handoff.Lease) {
	t.Helper()
	s.Node, s.TargetEndpoint = here, listening
	got, err := plan.Decide(proven(s), decideNow)
	if err != nil {
		t.Fatal(err)
	}
	if got.VMI == nil {
		return got, handoff.Lease{}
	}
	l, err := handoff.Of(got.VMI)
	if err != nil {
		t.Fatal(err)
	}
	return got, l
}

func TestDecide_HolderStalls(t *testing.T) {
	moving := handoff.Lease{State: handoff.Moving, Epoch: 1, Holder: here, Target: there, Tag: job}
	for name, tt := range map[string]struct {
		s       plan.Snapshot
		stalled bool
	}{
		"stopped for the switch, nothing going on": {plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonMigration)}, true},
		"stopped for the switch, still going on":   {plan.Snapshot{State: runs(domain.StatusPaused, domain.ReasonMigration), MigrationActive: true}, false},
		"its QEMU died":                            {plan.Snapshot{State: runs(domain.StatusShutoff, domain.ReasonCrashed)}, true},
		"its node went down":                       {plan.Snapshot{State: runs(domain.StatusShutoff, domain.ReasonUnknown)}, true},
		"its domain is gone":                       {plan.Snapshot{}, true},
		"it has just left":                         {plan.Snapshot{State: runs(domain.StatusShutoff, domain.ReasonMigrated), MigrationEnded: decideNow.Add(-time.Second)}, false},
		"it left, and nobody reports it":           {plan.Snapshot{State: runs(domain.StatusShutoff, domain.ReasonMigrated), MigrationEnded: decideNow.Add(-time.Minute)}, true},
		"the clock was put back":                   {plan.Snapshot{State: runs(domain.StatusShutoff, domain.ReasonMigrated), MigrationEnded: decideNow.Add(time.Hour)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			tt.s.VMI = placed(v1.Running, moving)
			got, l := decide(t, tt.s)
			if len(got.Actions) > 0 || l.State != handoff.Moving || l.Stalled != tt.stalled || got.VMI.Status.Phase != v1.Running {
				t.Fatalf("lease %+v, phase %s, actions %v; want stalled %t and the guest untouched", l, got.VMI.Status.Phase, got.Actions, tt.stalled)
			}
			if got.RequeueAt == nil {
				t.Error("it is not looked at again")
			}
		})
	}
}

func TestDecide_StalledTargetAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		state   *domain.State
		holder  string
		actions string
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
			decided, got := decide(t, plan.Snapshot{VMI: placed(v1.Running, l), State: tt.state})
			if verbs(decided) != tt.actions {
				t.Errorf("actions %q, want %q", verbs(decided), tt.actions)
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
			if m := decided.VMI.Status.MigrationState; m.EndTimestamp == nil || m.Failed != (tt.holder == there) || m.Completed != m.Failed {
				t.Errorf("migration state %+v", m)
			}
		})
	}
}

func TestDecide_TargetDeclinesOnlyStalled(t *testing.T) {
	l := handoff.Lease{State: handoff.Moving, Epoch: 1, Holder: there, Target: here, Tag: job}
	for name, state := range map[string]*domain.State{"nothing yet": nil, "ended": runs(domain.StatusShutoff, domain.ReasonCrashed)} {
		t.Run(name, func(t *testing.T) {
			if decided, got := decide(t, plan.Snapshot{VMI: placed(v1.Running, l), State: state}); got.State != handoff.Moving || len(decided.Actions) > 0 {
				t.Fatalf("lease %+v, actions %v", got, decided.Actions)
			}
		})
	}
}

func TestDecide_TakeOverWithoutLabels(t *testing.T) {
	l := handoff.Lease{State: handoff.Moving, Epoch: 1, Holder: there, Target: here, Tag: job}
	vmi := placed(v1.Running, l)
	vmi.Labels, vmi.Status.MigrationState = nil, nil
	if decided, got := decide(t, plan.Snapshot{VMI: vmi, State: runs(domain.StatusRunning, "")}); got.Holder != here || decided.VMI.Labels[v1.NodeNameLabel] != here {
		t.Fatalf("lease %+v, labels %v", got, decided.VMI.Labels)
	}
}

func TestDecide_ResumesAfterFailedMigration(t *testing.T) {
	l := handoff.Lease{State: handoff.Owned, Epoch: 2, Holder: here}
	got, _ := decide(t, plan.Snapshot{VMI: placed(v1.Running, l), State: runs(domain.StatusPaused, domain.ReasonMigration)})
	if verbs(got) != "Resume" {
		t.Fatalf("actions %q", verbs(got))
	}
}

func TestDecide_MigrationOfOtherProcess(t *testing.T) {
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
			if _, got := decide(t, plan.Snapshot{VMI: vmi, State: runs(domain.StatusRunning, ""), MigrationEnded: tt.ended}); got.State != tt.want {
				t.Fatalf("lease %+v, want %s", got, tt.want)
			}
		})
	}
}

func TestDecide_ForeignDomain(t *testing.T) {
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
			got, l := decide(t, plan.Snapshot{VMI: vmi, State: foreign})
			if v := verbs(got); v != "" && v != "Cleanup" {
				t.Errorf("actions %q", v)
			}
			if before, _ := handoff.Of(vmi); l.State != before.State {
				t.Errorf("the lease became %+v", l)
			}
			says := ""
			for _, c := range got.VMI.Status.Conditions {
				says += c.Message
			}
			if m := got.VMI.Status.MigrationState; m != nil {
				says += m.FailureReason
			}
			if (name == "owned, not started" || name == "offered" || name == "about to come") && !strings.Contains(says, "undefine that domain") {
				t.Errorf("the object says %q, not what to do", says)
			}
		})
	}
}

func TestDecide_DomainWithoutMetadata(t *testing.T) {
	st := &domain.State{Name: "ns_guest", UUID: "UID-1", Status: domain.StatusRunning}
	got, l := decide(t, plan.Snapshot{VMI: placed(v1.Running, handoff.Lease{State: handoff.Owned, Epoch: 3, Holder: here}), State: st})
	if verbs(got) != "SetMetadata" || l.State != handoff.Owned {
		t.Fatalf("actions %q, lease %+v", verbs(got), l)
	}
	if m := got.Actions[0].Operation.Metadata; m.UID != "uid-1" || m.Epoch != 3 {
		t.Errorf("metadata %+v", m)
	}
	if st.Ours() {
		t.Error("the argument was changed")
	}
}

func TestDecide_DomainWithoutMetadataOrVMI(t *testing.T) {
	st := &domain.State{Name: "ns_guest", UUID: "uid-0", Status: domain.StatusRunning}
	got, _ := decide(t, plan.Snapshot{State: st, OrphanedUIDs: []types.UID{"uid-0"}})
	if verbs(got) != "SetMetadata, Shutdown" {
		t.Fatalf("actions %q", verbs(got))
	}
	if m := got.Actions[0].Operation.Metadata; m.UID != "uid-0" || m.Of() != (types.NamespacedName{Namespace: "ns", Name: "guest"}) {
		t.Errorf("metadata %+v", m)
	}
}

func TestDecide_CleansUpOrphans(t *testing.T) {
	old := types.UID("uid-0")
	running := runs(domain.StatusRunning, "", func(s *domain.State) { s.Metadata.UID = "uid-2" })
	vmi := placed(v1.Running, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: here})
	for name, tt := range map[string]struct {
		s    plan.Snapshot
		want []types.UID
	}{
		"nothing else":        {plan.Snapshot{OrphanedUIDs: []types.UID{old}}, []types.UID{old}},
		"another guest":       {plan.Snapshot{VMI: vmi, State: runs(domain.StatusRunning, ""), OrphanedUIDs: []types.UID{old, vmi.UID}}, []types.UID{old}},
		"a domain still runs": {plan.Snapshot{State: running, OrphanedUIDs: []types.UID{old, "uid-2"}}, []types.UID{old}},
	} {
		t.Run(name, func(t *testing.T) {
			decided, _ := decide(t, tt.s)
			var got []types.UID
			for _, a := range decided.Actions {
				if a.Verb == action.Cleanup {
					got = append(got, a.UID)
				}
			}
			if len(got) != len(tt.want) || got[0] != tt.want[0] {
				t.Fatalf("files of %v go, want %v", got, tt.want)
			}
		})
	}
}

func TestDecide_PrepareErrorRequeues(t *testing.T) {
	prepare := &convert.Error{Object: "node", Reason: "the disk is full"}
	for name, l := range map[string]handoff.Lease{
		"offered": {State: handoff.Offered, Epoch: 1, Holder: here},
		"owned":   leased(offerHere, acceptHere),
		"target":  {State: handoff.Preparing, Epoch: 1, Holder: there, Target: here, Tag: job},
	} {
		t.Run(name, func(t *testing.T) {
			if got, _ := decide(t, plan.Snapshot{VMI: placed(v1.Scheduled, l), PrepareError: prepare}); got.RequeueAt == nil {
				t.Fatal("nobody looks again")
			}
		})
	}
}

func TestDecide_ClockSetBack(t *testing.T) {
	vmi := placed(v1.Running, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: here}, beingDeleted)
	later := decideNow.Add(time.Hour)
	got, _ := decide(t, plan.Snapshot{VMI: vmi, State: runs(domain.StatusRunning, "", graceUntil(later), askedAt(later))})
	if verbs(got) != "SetMetadata, Shutdown" {
		t.Fatalf("actions %q", verbs(got))
	}
	if at := got.Actions[0].Operation.Metadata.GraceDeadline; at.After(decideNow.Add(plan.DefaultGrace)) {
		t.Errorf("the guest has until %v", at)
	}
}

func TestDecide_AbandonedStart(t *testing.T) {
	vmi := placed(v1.Scheduled, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: here}, beingDeleted)
	got, l := decide(t, plan.Snapshot{VMI: vmi, Desired: &libvirtxml.Domain{Name: "ns_guest"}})
	if verbs(got) != "Destroy, Undefine, Cleanup" || l.State != handoff.Released {
		t.Fatalf("actions %q, lease %+v", verbs(got), l)
	}
}

func TestDecide_FailureCondition(t *testing.T) {
	l := leased(offerHere, acceptHere)
	s := plan.Snapshot{Node: here, VMI: placed(v1.Scheduled, l), Desired: &libvirtxml.Domain{Name: "ns_guest"}, Failures: []action.Failure{{Err: errors.New("no memory left")}}}
	decided, err := plan.Decide(proven(s), decideNow)
	if err != nil {
		t.Fatal(err)
	}
	if c := decided.VMI.Status.Conditions; len(c) != 1 || c[0].Reason != status.ReasonSyncFailed || c[0].Message != "no memory left" {
		t.Errorf("conditions %+v, want the failure", c)
	}
	if got := verbs(decided); got != "Start" {
		t.Errorf("actions %q, want another start", got)
	}
	s.VMI, s.Failures, s.State = decided.VMI, nil, runs(domain.StatusRunning, "")
	if decided, err = plan.Decide(proven(s), decideNow); err != nil {
		t.Fatal(err)
	}
	if c := decided.VMI.Status.Conditions; len(c) != 0 {
		t.Errorf("conditions %+v, want none", c)
	}
}

func TestDecide_InvalidDestination(t *testing.T) {
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
			got, err := plan.Decide(proven(plan.Snapshot{Node: here, VMI: vmi, State: runs(domain.StatusRunning, "")}), decideNow)
			if err != nil {
				t.Fatal(err)
			}
			m := got.VMI.Status.MigrationState
			if len(got.Actions) > 0 || !m.Failed || !strings.Contains(m.FailureReason, "status.migrationState.target") {
				t.Fatalf("actions %v, failure %q", got.Actions, m.FailureReason)
			}
		})
	}
}

func TestRoleOf(t *testing.T) {
	moving := moved(here, there, handoff.Begin)
	for name, tt := range map[string]struct {
		lease       handoff.Lease
		here, there handoff.Role
	}{
		"unclaimed":      {handoff.Lease{}, handoff.RoleNone, handoff.RoleNone},
		"claimed":        {leased(handoff.Event{Kind: handoff.Claim}), handoff.RoleNone, handoff.RoleNone},
		"offered":        {leased(offerHere), handoff.RoleOffered, handoff.RoleNone},
		"owned":          {leased(offerHere, acceptHere), handoff.RoleHolder, handoff.RoleNone},
		"preparing":      {moved(here, there, handoff.Prepare), handoff.RoleHolder, handoff.RoleTarget},
		"prepared":       {moved(here, there, handoff.Ready), handoff.RoleHolder, handoff.RoleTarget},
		"moving":         {moving, handoff.RoleHolder, handoff.RoleTarget},
		"arrived":        {moved(here, there, handoff.TakeOver), handoff.RoleNone, handoff.RoleHolder},
		"releasing":      {leased(offerHere, acceptHere, handoff.Event{Kind: handoff.Stop}), handoff.RoleHolder, handoff.RoleNone},
		"lost":           {suspect(leased(offerHere, acceptHere)), handoff.RoleHolder, handoff.RoleNone},
		"lost in a move": {suspect(moving), handoff.RoleHolder, handoff.RoleTarget},
		"fenced":         {fenced(leased(offerHere, acceptHere)), handoff.RoleNone, handoff.RoleNone},
		"fenced moving":  {fenced(moving), handoff.RoleNone, handoff.RoleTarget},
		"released":       {leased(offerHere, acceptHere, handoff.Event{Kind: handoff.Release, Node: here}), handoff.RoleNone, handoff.RoleNone},
	} {
		t.Run(name, func(t *testing.T) {
			for node, want := range map[string]handoff.Role{here: tt.here, there: tt.there, "node-c": handoff.RoleNone, "": handoff.RoleNone} {
				if got := handoff.RoleOf(tt.lease, node); got != want {
					t.Errorf("node %q is %s, want %s", node, got, want)
				}
			}
		})
	}
}
