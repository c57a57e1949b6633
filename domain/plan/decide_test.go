// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/handoff"
)

const (
	here  = "node-a"
	there = "node-b"
	job   = types.UID("migration-1")
)

// listening is the endpoint of this node.
var listening = transport.Endpoint{Address: "192.0.2.1", Ports: map[string]int{"16509": transport.ChannelControl}}

var decideNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// The events of a start on this node.
var (
	offerHere   = handoff.Event{Kind: handoff.Offer, Node: here}
	acceptHere  = handoff.Event{Kind: handoff.Accept, Node: here}
	startedHere = handoff.Event{Kind: handoff.Started, Node: here}
)

// leased returns the lease after the events, each in time, of a VMI without an owner.
func leased(events ...handoff.Event) handoff.Lease { return on(handoff.Lease{}, decideNow, events...) }

// on returns the lease after the events at that time.
func on(l handoff.Lease, at time.Time, events ...handoff.Event) handoff.Lease {
	for _, e := range events {
		e.Epoch = l.Epoch
		var err error
		if l, _, err = handoff.Step(l, e, at); err != nil {
			panic(err)
		}
	}
	return l
}

// placed returns an object in a phase under a lease.
func placed(phase v1.VirtualMachineInstancePhase, l handoff.Lease, change ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1", Labels: map[string]string{v1.NodeNameLabel: l.Holder}},
		Status:     v1.VirtualMachineInstanceStatus{Phase: phase, NodeName: l.Holder},
	}
	if l.InMove() {
		vmi.Labels[v1.MigrationTargetNodeNameLabel] = l.Target
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
			MigrationUID: job, SourceNode: l.Holder, TargetNode: l.Target,
			TargetNodeAddress: "192.0.2.2", TargetDirectMigrationNodePorts: map[string]int{"16509": 0}}
	}
	if err := handoff.Put(vmi, l); err != nil {
		panic(err)
	}
	for _, c := range change {
		c(vmi)
	}
	return vmi
}

// proven adds the launcher Pod that a controller would have created for the next step on this
// node, and the UID of the files of a domain here.
func proven(s plan.Snapshot) plan.Snapshot {
	if st := s.State; st != nil && st.Ours() && (s.VMI == nil || s.VMI.UID != st.Metadata.UID) && !slices.Contains(s.OrphanedUIDs, st.Metadata.UID) {
		s.OrphanedUIDs = append(slices.Clone(s.OrphanedUIDs), st.Metadata.UID) // each domain has files
	}
	if s.VMI == nil {
		return s
	}
	p := launcherPod(s.VMI)
	if l, err := handoff.Of(s.VMI); err == nil && handoff.RoleOf(l, here) == handoff.RoleTarget && l.Tag != "" {
		p.Labels[v1.MigrationJobLabel] = string(l.Tag)
	}
	s.Pods = []*corev1.Pod{p}
	return s
}

// launcherPod returns the Pod that the controller creates for the VMI, bound to this node.
func launcherPod(vmi *v1.VirtualMachineInstance) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, Name: "virt-launcher-" + vmi.Name, UID: "pod-1",
			Labels:          map[string]string{v1.AppLabel: "virt-launcher", v1.CreatedByLabel: string(vmi.UID)},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)},
		},
		Spec:   corev1.PodSpec{NodeName: here},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func beingDeleted(vmi *v1.VirtualMachineInstance) {
	at := metav1.NewTime(decideNow)
	vmi.DeletionTimestamp = &at
}

func abortRequested(vmi *v1.VirtualMachineInstance) {
	vmi.Status.MigrationState.AbortRequested = true
}

func runs(s domain.Status, r domain.Reason, change ...func(*domain.State)) *domain.State {
	st := &domain.State{Name: "ns_guest", Status: s, Reason: r, Metadata: domain.Metadata{
		Namespace: "ns", Name: "guest", UID: "uid-1", Epoch: 1, GracePeriod: new(plan.DefaultGrace)}}
	for _, c := range change {
		c(st)
	}
	return st
}

func graceUntil(at time.Time) func(*domain.State) {
	return func(s *domain.State) { s.Metadata.GraceDeadline = &at }
}

func askedAt(at time.Time) func(*domain.State) {
	return func(s *domain.State) { s.Metadata.ShutdownAt = &at }
}

// onPurpose marks a domain that a user has paused.
func onPurpose(s *domain.State) { s.Metadata.Paused = true }

func epoch(n uint64) func(*domain.State) { return func(s *domain.State) { s.Metadata.Epoch = n } }

func TestDecide(t *testing.T) {
	offered := handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: here}
	accepted := leased(offerHere, acceptHere)
	owned := leased(offerHere, acceptHere, startedHere)
	elsewhere := handoff.Lease{State: handoff.Owned, Epoch: 3, Holder: there}
	move := func(s handoff.State, from, to string) handoff.Lease {
		return handoff.Lease{State: s, Epoch: 1, Holder: from, Target: to, Tag: job}
	}
	running := runs(domain.StatusRunning, domain.ReasonUnknown)
	desired := &libvirtxml.Domain{Name: "ns_guest"}
	broken := &convert.Error{Object: "VirtualMachineInstance ns/guest", Field: "spec.domain.cpu.model", Reason: "no", Remedy: "choose another"}

	type want struct {
		role    handoff.Role
		actions string
		phase   v1.VirtualMachineInstancePhase
		lease   handoff.State
		epoch   uint64
	}
	for name, tt := range map[string]struct {
		s    plan.Snapshot
		want want
	}{
		"an offer is taken and the guest started": {
			plan.Snapshot{VMI: placed(v1.Scheduled, offered), Desired: desired},
			want{handoff.RoleOffered, "Start", v1.Scheduled, handoff.Owned, 1}},
		"an offer of a deleted guest is not": {
			plan.Snapshot{VMI: placed(v1.Scheduled, offered, beingDeleted)},
			want{handoff.RoleOffered, "Cleanup", v1.Scheduled, handoff.Offered, 1}},
		"an offer of an impossible guest is not": {
			plan.Snapshot{VMI: placed(v1.Scheduled, offered), PrepareError: broken},
			want{handoff.RoleOffered, "", v1.Scheduled, handoff.Offered, 1}},
		"a start that was cut short is made again": {
			plan.Snapshot{VMI: placed(v1.Scheduled, accepted), Desired: desired},
			want{handoff.RoleHolder, "Start", v1.Scheduled, handoff.Owned, 1}},
		"so is one cut short between define and start": {
			plan.Snapshot{VMI: placed(v1.Scheduled, accepted), Desired: desired, State: runs(domain.StatusShutoff, domain.ReasonUnknown)},
			want{handoff.RoleHolder, "Start", v1.Scheduled, handoff.Owned, 1}},
		"a running guest is reported": {
			plan.Snapshot{VMI: placed(v1.Scheduled, accepted), State: running},
			want{handoff.RoleHolder, "", v1.Running, handoff.Owned, 1}},
		"a restarted agent leaves a running guest alone": {
			plan.Snapshot{VMI: placed(v1.Running, owned), State: running, Desired: desired},
			want{handoff.RoleHolder, "", v1.Running, handoff.Owned, 1}},
		"a guest is never started twice": {
			plan.Snapshot{VMI: placed(v1.Running, owned), Desired: desired},
			want{handoff.RoleHolder, "Cleanup", v1.Failed, handoff.Released, 2}},
		"a guest that powered off has succeeded": {
			plan.Snapshot{VMI: placed(v1.Running, owned), State: runs(domain.StatusShutoff, domain.ReasonShutdown)},
			want{handoff.RoleHolder, "Undefine, Cleanup", v1.Succeeded, handoff.Released, 2}},
		"a guest that crashed has failed": {
			plan.Snapshot{VMI: placed(v1.Running, owned), State: runs(domain.StatusShutoff, domain.ReasonCrashed)},
			want{handoff.RoleHolder, "Undefine, Cleanup", v1.Failed, handoff.Released, 2}},
		"deletion begins with the deadline, then asks": {
			plan.Snapshot{VMI: placed(v1.Running, owned, beingDeleted), State: running},
			want{handoff.RoleHolder, "SetMetadata, Shutdown", v1.Running, handoff.Releasing, 1}},
		"it does not press again at once": {
			plan.Snapshot{VMI: placed(v1.Running, owned, beingDeleted), State: runs(domain.StatusRunning, "", graceUntil(decideNow.Add(time.Minute)), askedAt(decideNow.Add(-time.Second)))},
			want{handoff.RoleHolder, "", v1.Running, handoff.Releasing, 1}},
		"it asks again while there is time": {
			plan.Snapshot{VMI: placed(v1.Running, owned, beingDeleted), State: runs(domain.StatusRunning, "", graceUntil(decideNow.Add(time.Minute)), askedAt(decideNow.Add(-5*time.Second)))},
			want{handoff.RoleHolder, "SetMetadata, Shutdown", v1.Running, handoff.Releasing, 1}},
		"a guest without a grace period is ended at once": {
			plan.Snapshot{VMI: placed(v1.Running, owned, beingDeleted, func(vmi *v1.VirtualMachineInstance) { vmi.Spec.TerminationGracePeriodSeconds = new(int64) }), State: running},
			want{handoff.RoleHolder, "Destroy", v1.Running, handoff.Releasing, 1}},
		"and ends the guest when time is up": {
			plan.Snapshot{VMI: placed(v1.Running, owned, beingDeleted), State: runs(domain.StatusRunning, "", graceUntil(decideNow))},
			want{handoff.RoleHolder, "Destroy", v1.Running, handoff.Releasing, 1}},
		"a final object's guest is ended": {
			plan.Snapshot{VMI: placed(v1.Failed, owned), State: running},
			want{handoff.RoleHolder, "Destroy", v1.Failed, handoff.Releasing, 1}},
		"a domain of another object of this name goes first": {
			plan.Snapshot{VMI: placed(v1.Scheduled, offered), Desired: desired, State: runs(domain.StatusRunning, "", func(s *domain.State) { s.Metadata.UID = "older" })},
			want{"", "SetMetadata, Shutdown", v1.Scheduled, handoff.Offered, 1}},
		"a guest that runs elsewhere does not run here": {
			plan.Snapshot{VMI: placed(v1.Running, elsewhere), State: running},
			want{handoff.RoleNone, "Destroy, Undefine, Cleanup", v1.Running, handoff.Owned, 3}},
		"what is left of a guest that moved away goes": {
			plan.Snapshot{VMI: placed(v1.Running, elsewhere), State: runs(domain.StatusShutoff, domain.ReasonMigrated)},
			want{handoff.RoleNone, "Undefine, Cleanup", v1.Running, handoff.Owned, 3}},
		"but not while the hypervisor is still at it": {
			plan.Snapshot{VMI: placed(v1.Running, elsewhere), State: runs(domain.StatusPaused, domain.ReasonMigration), MigrationActive: true},
			want{handoff.RoleNone, "", v1.Running, handoff.Owned, 3}},
		"which excuses no guest that runs": {
			plan.Snapshot{VMI: placed(v1.Running, elsewhere), State: running, MigrationActive: true},
			want{handoff.RoleNone, "Destroy, Undefine, Cleanup", v1.Running, handoff.Owned, 3}},

		"a target reports ready": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Preparing, there, here))},
			want{handoff.RoleTarget, "", v1.Running, handoff.Prepared, 1}},
		"a target that is not ready does not": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Preparing, there, here)), PrepareError: broken},
			want{handoff.RoleTarget, "", v1.Running, handoff.Preparing, 1}},
		"a target waits for the end of the guest's leave": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Preparing, there, here)), Migrating: true},
			want{handoff.RoleTarget, "", v1.Running, handoff.Preparing, 1}},
		"a target clears what is in the way first": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Preparing, there, here)), State: runs(domain.StatusShutoff, domain.ReasonMigrated)},
			want{handoff.RoleTarget, "Undefine, Cleanup", v1.Running, handoff.Preparing, 1}},
		"a target does nothing before the move begins": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Prepared, there, here))},
			want{handoff.RoleTarget, "", v1.Running, handoff.Prepared, 1}},
		"the holder waits for the target": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Preparing, here, there)), State: running},
			want{handoff.RoleHolder, "", v1.Running, handoff.Preparing, 1}},
		"the holder begins when the target is ready": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Prepared, here, there)), State: running},
			want{handoff.RoleHolder, "SetMetadata, Migrate", v1.Running, handoff.Moving, 1}},
		"it does not while the disks to copy are unknown": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Prepared, here, there)), State: running, PrepareError: broken},
			want{handoff.RoleHolder, "", v1.Running, handoff.Owned, 2}},
		"an abort before that ends the move": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Prepared, here, there), abortRequested), State: running},
			want{handoff.RoleHolder, "", v1.Running, handoff.Owned, 2}},
		"so does deletion": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Prepared, here, there), beingDeleted), State: running},
			want{handoff.RoleHolder, "", v1.Running, handoff.Owned, 2}},
		"the holder waits while it moves": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Moving, here, there)), State: running, Migrating: true},
			want{handoff.RoleHolder, "", v1.Running, handoff.Moving, 1}},
		"a restarted agent finds the move going on": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Moving, here, there)), State: running, MigrationActive: true},
			want{handoff.RoleHolder, "", v1.Running, handoff.Moving, 1}},
		"or not begun at all": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Moving, here, there)), State: running},
			want{handoff.RoleHolder, "", v1.Running, handoff.Owned, 2}},
		"a guest stopped for the switch is not taken back": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Moving, here, there)), State: runs(domain.StatusPaused, domain.ReasonMigration)},
			want{handoff.RoleHolder, "", v1.Running, handoff.Moving, 1}},
		"an abort while it moves reaches the hypervisor": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Moving, here, there), abortRequested), State: running, Migrating: true},
			want{handoff.RoleHolder, "AbortMigration", v1.Running, handoff.Moving, 1}},
		"a guest that has left is not failed by its old holder": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Moving, here, there)), State: runs(domain.StatusShutoff, domain.ReasonMigrated)},
			want{handoff.RoleHolder, "", v1.Running, handoff.Moving, 1}},
		"one whose QEMU died on the way may run at the target": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Moving, here, there)), State: runs(domain.StatusShutoff, domain.ReasonCrashed)},
			want{handoff.RoleHolder, "", v1.Running, handoff.Moving, 1}},
		"the target waits for the switch": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Moving, there, here)), State: runs(domain.StatusPaused, domain.ReasonMigration)},
			want{handoff.RoleTarget, "", v1.Running, handoff.Moving, 1}},
		"the target takes over once the guest runs": {
			plan.Snapshot{VMI: placed(v1.Running, move(handoff.Moving, there, here)), State: running},
			want{handoff.RoleTarget, "", v1.Running, handoff.Arrived, 2}},
		"the new epoch reaches the domain": {
			plan.Snapshot{VMI: placed(v1.Running, handoff.Lease{State: handoff.Owned, Epoch: 2, Holder: here}), State: runs(domain.StatusRunning, "", epoch(1))},
			want{handoff.RoleHolder, "SetMetadata", v1.Running, handoff.Owned, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.s.Node, tt.s.TargetEndpoint = here, listening
			before := tt.s.VMI.DeepCopy()
			decided, err := plan.Decide(proven(tt.s), decideNow)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, tt.s.VMI); diff != "" {
				t.Fatalf("Decide changed its input:\n%s", diff)
			}
			l, err := handoff.Of(decided.VMI)
			if err != nil {
				t.Fatal(err)
			}
			commanded(t, decided, l)
			got := want{decided.Role, verbs(decided), decided.VMI.Status.Phase, l.State, l.Epoch}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
		})
	}
}

func verbs(p plan.Plan) string {
	var out []string
	for _, t := range p.Actions {
		if t.Verb == action.Apply {
			out = append(out, string(t.Operation.Verb))
			continue
		}
		out = append(out, string(t.Verb))
	}
	return strings.Join(out, ", ")
}

// commanded checks that every action that starts or migrates the VMI carries out a command that
// the lease to be stored has open for this node.
func commanded(t *testing.T, p plan.Plan, l handoff.Lease) {
	t.Helper()
	for _, a := range p.Actions {
		needed := a.Verb == action.Migrate || a.Operation.Verb == domain.Start
		if a.Command == (handoff.Command{}) && !needed {
			continue
		}
		if err := l.Authorize(a.Command, decideNow, decideNow); err != nil || a.Command.Node != here {
			t.Errorf("%s goes by command %+v: %v", a, a.Command, err)
		}
		if !a.TouchesDomain() {
			t.Errorf("%s is said not to touch the guest", a)
		}
	}
}

func TestDecide_DomainWithoutVMI(t *testing.T) {
	for name, tt := range map[string]struct {
		state *domain.State
		want  string
	}{
		"nothing here":  {nil, ""},
		"not ours":      {&domain.State{Name: "ns_guest", UUID: "other", Status: domain.StatusRunning}, ""},
		"running":       {runs(domain.StatusRunning, ""), "SetMetadata, Shutdown"},
		"out of time":   {runs(domain.StatusRunning, "", graceUntil(decideNow)), "Destroy"},
		"paused":        {runs(domain.StatusPaused, domain.ReasonUser), "SetMetadata, Resume, Shutdown"},
		"powered off":   {runs(domain.StatusShutoff, domain.ReasonShutdown), "Undefine, Cleanup"},
		"left by crash": {runs(domain.StatusCrashed, domain.ReasonPanicked), "Destroy, Undefine, Cleanup"},
		// These may have run elsewhere since, so none of them is resumed.
		"stopped for a switch":      {runs(domain.StatusPaused, domain.ReasonMigration), "Destroy, Undefine, Cleanup"},
		"stopped, with time left":   {runs(domain.StatusPaused, domain.ReasonMigration, graceUntil(decideNow.Add(time.Minute))), "Destroy, Undefine, Cleanup"},
		"switched ahead of memory":  {runs(domain.StatusPaused, domain.ReasonPostcopy), "Destroy, Undefine, Cleanup"},
		"coming in from elsewhere":  {runs(domain.StatusPaused, domain.ReasonStartingUp), "Destroy, Undefine, Cleanup"},
		"stopped, without metadata": {&domain.State{Name: "ns_guest", UUID: "uid-1", Status: domain.StatusPaused, Reason: domain.ReasonMigration}, "Destroy, Undefine, Cleanup"},
		"resumed after the switch":  {runs(domain.StatusRunning, domain.ReasonMigration), "SetMetadata, Shutdown"},
	} {
		t.Run(name, func(t *testing.T) {
			s := plan.Snapshot{Node: here, State: tt.state}
			if tt.state != nil && tt.state.UUID == "uid-1" {
				s.OrphanedUIDs = []types.UID{"uid-1"} // its files identify the VMI
			}
			decided, err := plan.Decide(proven(s), decideNow)
			if err != nil {
				t.Fatal(err)
			}
			if got := verbs(decided); got != tt.want || decided.VMI != nil {
				t.Fatalf("actions %q (object %v), want %q", got, decided.VMI, tt.want)
			}
		})
	}
}

func TestDecide_TakeOverInOneWrite(t *testing.T) {
	l := handoff.Lease{State: handoff.Moving, Epoch: 4, Holder: there, Target: here, Tag: job}
	got, err := plan.Decide(proven(plan.Snapshot{Node: here, VMI: placed(v1.Running, l), State: runs(domain.StatusRunning, "")}), decideNow)
	if err != nil {
		t.Fatal(err)
	}
	vmi, m := got.VMI, got.VMI.Status.MigrationState
	if vmi.Status.NodeName != here || vmi.Labels[v1.NodeNameLabel] != here {
		t.Errorf("the guest is on %q, label %q", vmi.Status.NodeName, vmi.Labels[v1.NodeNameLabel])
	}
	if _, still := vmi.Labels[v1.MigrationTargetNodeNameLabel]; still {
		t.Error("the target label is still there")
	}
	if m.Completed || m.Failed || m.EndTimestamp == nil || m.TargetNodeDomainReadyTimestamp == nil {
		t.Errorf("migration state %+v", m)
	}
	if len(got.Actions) > 0 || got.RequeueAt == nil {
		t.Errorf("actions %v, next look at %v; want nothing but the write, and a look after it", got.Actions, got.RequeueAt)
	}
}

func TestDecide_PrepareErrorCondition(t *testing.T) {
	l := handoff.Lease{State: handoff.Offered, Epoch: 1, Holder: here}
	broken := &convert.Error{Object: "VirtualMachineInstance ns/guest", Field: "spec.domain.cpu.model", Reason: "unknown", Remedy: "choose another"}
	for name, tt := range map[string]struct {
		err    error
		reason string
		says   []string
	}{
		"spec": {broken, status.ReasonInvalidSpec, []string{"spec.domain.cpu.model", "choose another"}},
		"node": {errors.New("disk full"), status.ReasonNotReady, []string{"disk full"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := plan.Decide(proven(plan.Snapshot{Node: here, VMI: placed(v1.Scheduled, l), PrepareError: tt.err}), decideNow)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range got.VMI.Status.Conditions {
				if c.Type != v1.VirtualMachineInstanceSynchronized {
					continue
				}
				if c.Reason != tt.reason {
					t.Errorf("reason %q, want %q", c.Reason, tt.reason)
				}
				for _, s := range tt.says {
					if !strings.Contains(c.Message, s) {
						t.Errorf("message %q does not say %q", c.Message, s)
					}
				}
				return
			}
			t.Fatal("there is no Synchronized condition")
		})
	}
}
