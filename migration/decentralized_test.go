// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/policy"
	"github.com/virtloom/virtloom/migration/queue"
)

// stage is where a migration stands and who has to act.
type stage struct {
	Phase  v1.VirtualMachineInstanceMigrationPhase
	Owner  handoff.Responsible
	Reason migration.Reason
}

// stages runs the controller of the side and the step that is next in turn, and returns
// the stages that the migration came through.
func stages(w *world, steps []func()) []stage {
	var got []stage
	for _, do := range steps {
		do()
		plan := w.Passes()
		s := stage{w.Migration.Status.Phase, plan.Responsible, w.Reason()}
		if len(got) == 0 || got[len(got)-1] != s {
			got = append(got, s)
		}
	}
	return got
}

func TestDecentralizedPhases(t *testing.T) {
	p := newClusters(t, false)
	sent := stages(p.from, []func(){
		func() {}, func() { p.to.Passes(); p.push(); p.to.Passes(); p.pull() },
		func() { p.push(); p.to.Passes(); p.targetPodRuns(); p.to.Passes(); p.pull() },
		func() { p.targetNodeActs(); p.pull() },
		p.sourceNodeBegins, func() { p.hypervisorsSwitch(); p.targetNodeActs(); p.pull() },
	})
	if d := cmp.Diff([]stage{
		{v1.MigrationSynchronizing, handoff.ByOtherCluster, "Synchronizing"},
		{v1.MigrationScheduling, handoff.ByOtherCluster, "WaitingForReceiver"},
		{v1.MigrationPreparingTarget, handoff.ByOtherCluster, "WaitingForTargetNode"},
		{v1.MigrationTargetReady, handoff.BySourceNode, "WaitingForSourceNode"},
		{v1.MigrationRunning, handoff.BySourceNode, migration.ReasonMoving},
		{v1.MigrationSucceeded, handoff.ByNobody, ""},
	}, sent); d != "" {
		t.Errorf("sender (-want +got):\n%s", d)
	}
	p = newClusters(t, false)
	received := stages(p.to, []func(){
		func() {}, func() { p.from.Passes(); p.push() }, func() { p.pull(); p.from.Passes(); p.push() },
		p.targetPodRuns, p.targetNodeActs,
		func() { p.pull(); p.from.Passes(); p.sourceNodeBegins(); p.push() },
		func() { p.hypervisorsSwitch(); p.targetNodeActs() },
	})
	if d := cmp.Diff([]stage{
		{v1.MigrationWaitingForSync, handoff.ByOtherCluster, "Synchronizing"},
		{v1.MigrationScheduling, handoff.ByScheduler, "WaitingForTargetPod"},
		{v1.MigrationPreparingTarget, handoff.ByTargetNode, "WaitingForTargetNode"},
		{v1.MigrationTargetReady, handoff.ByOtherCluster, "WaitingForSourceNode"},
		{v1.MigrationRunning, handoff.ByOtherCluster, migration.ReasonMoving},
		{v1.MigrationSucceeded, handoff.ByNobody, ""},
	}, received); d != "" {
		t.Errorf("receiver (-want +got):\n%s", d)
	}
	if !p.to.Released || p.to.Pods["dst"] == nil {
		t.Errorf("released %v, target Pod %v", p.to.Released, p.to.Pods["dst"])
	}
}

func TestFirstPhase(t *testing.T) {
	send := &v1.VirtualMachineInstanceMigrationSource{MigrationID: migrationID, ConnectURL: connectURL}
	receive := &v1.VirtualMachineInstanceMigrationTarget{MigrationID: migrationID}
	for name, tc := range map[string]struct {
		edit func(*world)
		want v1.VirtualMachineInstanceMigrationPhase
		why  migration.Reason
	}{
		"S14/16 spec.receive": {func(w *world) { w.Migration.Spec.Receive = receive }, v1.MigrationWaitingForSync, "Synchronizing"},
		"S14/16 spec.sendTo":  {func(w *world) { w.Migration.Spec.SendTo = send }, v1.MigrationSynchronizing, "Synchronizing"},
		"S14/16 both":         {func(w *world) { w.Migration.Spec.SendTo, w.Migration.Spec.Receive = send, receive }, v1.MigrationScheduling, "WaitingForTargetPod"},
		"S14/10 both, with different IDs": {func(w *world) {
			w.Migration.Spec.SendTo, w.Migration.Spec.Receive = send, &v1.VirtualMachineInstanceMigrationTarget{MigrationID: "other"}
		}, v1.MigrationFailed, "InvalidSpec"},
		"S14/5 local disks, sent": {func(w *world) { w.Migration.Spec.SendTo = send; cannotMove(w, "DisksNotLiveMigratable") }, v1.MigrationSynchronizing, "Synchronizing"},
		"S14/5 another reason":    {func(w *world) { w.Migration.Spec.SendTo = send; cannotMove(w, "SEVNotLiveMigratable") }, v1.MigrationFailed, migration.ReasonNotMigratable},
		"S14/5 gate off":          {func(w *world) { w.Migration.Spec.SendTo = send; w.Config.Decentralized = false }, v1.MigrationFailed, migration.ReasonGate},
		"receiver, gate off":      {func(w *world) { w.Migration.Spec.Receive = receive; w.Config.Decentralized = false }, v1.MigrationFailed, migration.ReasonGate},
		"no address to send to": {func(w *world) {
			w.Migration.Spec.SendTo = &v1.VirtualMachineInstanceMigrationSource{MigrationID: migrationID}
		}, v1.MigrationFailed, "InvalidSpec"},
		"no ID to receive by": {func(w *world) { w.Migration.Spec.Receive = &v1.VirtualMachineInstanceMigrationTarget{} }, v1.MigrationFailed, "InvalidSpec"},
		"a guest that runs here is not to be received": {func(w *world) {
			w.Migration.Spec.Receive = receive
			delete(w.VMI.Annotations, v1.CreateMigrationTarget)
		}, v1.MigrationFailed, "GuestNotReceivable"},
		"a plugged disk": {func(w *world) {
			w.Migration.Spec.SendTo = send
			w.VMI.Status.VolumeStatus = []v1.VolumeStatus{{Name: "disk", HotplugVolume: &v1.HotplugVolumeStatus{}}}
		}, v1.MigrationFailed, migration.ReasonUnsupported},
		"an older one goes first": {func(w *world) {
			o := newMigration("a", "older")
			o.CreationTimestamp = metav1.NewTime(start.Add(-time.Minute))
			w.Others, w.Migration.Spec.SendTo = append(w.Others, o), send
		}, v1.MigrationPhaseUnset, migration.ReasonWaitingForMigration},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Config.Decentralized = true
			w.VMI.Annotations[v1.CreateMigrationTarget] = "true"
			tc.edit(w)
			w.Passes()
			if w.Migration.Status.Phase != tc.want || w.Reason() != tc.why {
				t.Errorf("phase %q, reason %q; want %q, %q: %+v", w.Migration.Status.Phase, w.Reason(), tc.want, tc.why, w.Migration.Status.Conditions)
			}
			if c := migration.Condition(w.Migration.Status, migration.ConditionFailed); tc.why == migration.ReasonGate && !strings.Contains(c.Message, migration.FeatureGate) {
				t.Errorf("%q names no remedy", c.Message)
			}
		})
	}
}

func cannotMove(w *world, reason string) {
	w.VMI.Status.Conditions = []v1.VirtualMachineInstanceCondition{{
		Type: v1.VirtualMachineInstanceIsMigratable, Status: corev1.ConditionFalse, Reason: reason,
	}}
}

func TestDecentralizedMigration_Writes(t *testing.T) {
	p := newClusters(t, false)
	p.from.Passes()
	p.to.Passes()
	ms := stateIn(p.from)
	if s := ms.SourceState; s.MigrationUID != ourUID || *s.VirtualMachineInstanceUID != vmiUID || *s.DomainNamespace != "ns" ||
		*ms.TargetState.SyncAddress != connectURL || ms.MigrationUID != "" {
		t.Errorf("the sender begins with %+v, %+v", ms, s)
	}
	if got := stateIn(p.to); got.TargetState.MigrationUID != receiverUID || got.MigrationUID != "" || got.SourceState != nil {
		t.Errorf("the receiver begins with %+v", got)
	}
	p.until(func() bool { return stateIn(p.from).MigrationUID != "" })
	ms = stateIn(p.from)
	if s := ms.SourceState; ms.MigrationUID != ourUID || ms.SourceNode != sourceNode || ms.SourcePod != "src" || s.Node != sourceNode ||
		s.Pod != "src" || s.SelinuxContext != "none" || !cmp.Equal(s.NodeSelectors, p.from.Sending.NodeSelectors) {
		t.Errorf("the sender says %+v, %+v", ms, s)
	}
	if v := p.from.VMI.Status.MigratedVolumes; len(v) != 1 || v[0].VolumeName != "disk" {
		t.Errorf("the volumes that travel are %+v", v)
	}
	p.until(func() bool { return stateIn(p.to).MigrationUID != "" })
	ms = stateIn(p.to)
	if got := ms.TargetState; ms.MigrationUID != receiverUID || ms.TargetNode != targetNode || ms.TargetPod != "dst" || ms.SourceNode != sourceNode ||
		got.Node != targetNode || got.Pod != "dst" || *got.DomainName != "ns_guest" || *got.VirtualMachineInstanceUID != vmiUID {
		t.Errorf("the receiver hands off by %+v, %+v", ms, got)
	}
	if p.to.VMI.Labels[v1.MigrationTargetNodeNameLabel] != targetNode {
		t.Errorf("labels of the receiver's VMI are %v", p.to.VMI.Labels)
	}
	if ms.VMIMConfigurationOptions == nil || *ms.VMIMConfigurationOptions.MaxDowntimeMs != 900 {
		t.Errorf("options are %+v", ms.VMIMConfigurationOptions)
	}
}

func TestSender_Lease(t *testing.T) {
	p := newClusters(t, false)
	var seen []handoff.State
	for range 30 {
		p.round()
		l := p.from.Lease()
		if l.Target != "" && l.Target != handoff.Elsewhere || p.from.VMI.Labels[v1.MigrationTargetNodeNameLabel] != "" {
			t.Fatalf("a node of this cluster may take itself for the target: %+v, %v", l, p.from.VMI.Labels)
		}
		if len(seen) == 0 || seen[len(seen)-1] != l.State {
			seen = append(seen, l.State)
		}
	}
	// A migration begins and ends within a round at times; what is before is what counts.
	if want := []handoff.State{handoff.Owned, handoff.Moving, handoff.Released}; !slices.Equal(seen, want) {
		t.Errorf("the lease was %v, want %v", seen, want)
	}
	if p.from.VMI.Status.Phase != v1.Succeeded || p.at != atTarget {
		t.Errorf("the object at the sender is %s, the VMI at %s", p.from.VMI.Status.Phase, p.at)
	}
}

func TestDecentralizedMigration_MirrorsOtherSide(t *testing.T) {
	w := newReceiver(t)
	w.VMI.Status.Conditions = []v1.VirtualMachineInstanceCondition{{
		Type: v1.VirtualMachineInstanceDecentralizedLiveMigrationFailure, Status: corev1.ConditionTrue,
		Reason: v1.VirtualMachineInstanceReasonDecentralizedNotMigratable, Message: "x509 hostname error",
	}}
	w.Passes()
	c := migration.Condition(w.Migration.Status, v1.VirtualMachineInstanceDecentralizedMigrationBlocked)
	if c == nil || c.Status != corev1.ConditionTrue || c.Message != "x509 hostname error" {
		t.Errorf("condition is %+v", c)
	}
	if c := migration.Condition(w.Migration.Status, migration.ConditionWaiting); !strings.Contains(c.Message, "x509 hostname error") {
		t.Errorf("the wait is explained by %q", c.Message)
	}
	w.VMI.Status.Conditions = nil
	s := w.Snapshot()
	s.SyncAddresses = []string{"10.0.0.1:9185"}
	plan := migration.Decide(s, w.Now)
	if migration.Condition(plan.Status, v1.VirtualMachineInstanceDecentralizedMigrationBlocked) != nil || !slices.Equal(plan.Status.SynchronizationAddresses, s.SyncAddresses) {
		t.Errorf("status is %+v", plan.Status)
	}
}

func TestSlotsOfDecentralizedMigrations(t *testing.T) {
	receiver := func(name, node, cluster string) queue.Claim {
		w := newReceiver(t)
		w.Migration.Name = name
		w.Migration.Status.Phase = v1.MigrationPending
		source := &v1.VirtualMachineInstanceMigrationSourceState{}
		source.Node, source.Pod, source.MigrationUID, source.SyncAddress = node, "src", "x", &cluster
		w.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
			SourceState: source, TargetState: &v1.VirtualMachineInstanceMigrationTargetState{},
		}
		w.VMI.Status.MigrationState.TargetState.MigrationUID = receiverUID
		c, wanted := w.Snapshot().Claim(w.Now)
		if !wanted {
			t.Fatalf("%s claims nothing", name)
		}
		return c
	}
	for name, tc := range map[string]struct {
		others []queue.Claim
		held   bool
	}{
		"S14/59 two others from the same node": {[]queue.Claim{receiver("a", "n1", "c1"), receiver("b", "n1", "c1")}, false},
		"S14/59 one":                           {[]queue.Claim{receiver("a", "n1", "c1")}, true},
		"S14/59 two and one from other nodes":  {[]queue.Claim{receiver("a", "n2", "c1"), receiver("b", "n2", "c1"), receiver("c", "n3", "c1")}, true},
		"S14/59 five elsewhere":                {[]queue.Claim{receiver("a", "n2", "c1"), receiver("b", "n2", "c1"), receiver("c", "n3", "c1"), receiver("d", "n3", "c1"), receiver("e", "n4", "c1")}, false},
		"a node of that name of another one":   {[]queue.Claim{receiver("a", "n1", "c2"), receiver("b", "n1", "c2")}, true},
		"a node of that name of this cluster":  {[]queue.Claim{{Key: types.NamespacedName{Namespace: "ns", Name: "a"}, SourceNode: "n1", Acting: true}, {Key: types.NamespacedName{Namespace: "ns", Name: "b"}, SourceNode: "n1", Acting: true}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := queue.NewAdmission(migration.Config{}.WithDefaults().Limits, queue.Options{})
			for _, c := range tc.others {
				a.Ask(c, start)
			}
			if v, _ := a.Ask(receiver("z", "n1", "c1"), start); v.Held != tc.held {
				t.Errorf("verdict is %+v", v)
			}
		})
	}
	w := newSender(t)
	w.Passes()
	for ph, want := range map[v1.VirtualMachineInstanceMigrationPhase]bool{
		v1.MigrationSynchronizing: false, v1.MigrationPending: false, v1.MigrationScheduling: false,
		v1.MigrationScheduled: true, v1.MigrationTargetReady: true, v1.MigrationRunning: true,
	} {
		w.Migration.Status.Phase = ph
		if c, wanted := w.Snapshot().Claim(w.Now); wanted != want || want && (!c.Acting || c.SourceNode != sourceNode || c.TargetNode != "") {
			t.Errorf("a sender in phase %s claims %+v, %v", ph, c, wanted)
		}
	}
}

func TestSender_WaitsForData(t *testing.T) {
	p := newClusters(t, false)
	complete := p.from.Sending
	p.from.Sending = &migration.Sending{Missing: `PersistentVolumeClaim "disk"`}
	p.from.VMI.Status.SelinuxContext = ""
	p.until(func() bool { return p.from.Migration.Status.Phase == v1.MigrationScheduling })
	plan := p.from.Passes()
	if p.from.Reason() != migration.ReasonWaitingForGuest || !strings.Contains(plan.Message, `"disk"`) || plan.RequeueAt.IsZero() || stateIn(p.from).MigrationUID != "" {
		t.Errorf("it waits for %q: %q, until %s", p.from.Reason(), plan.Message, plan.RequeueAt)
	}
	p.from.Sending = complete
	p.until(func() bool { return stateIn(p.from).MigrationUID == ourUID })
	p.from.VMI.Status.SelinuxContext = "none" // its node reports late
	p.from.Passes()
	if s := stateIn(p.from).SourceState; s.SelinuxContext != "none" || s.NodeSelectors == nil {
		t.Errorf("the sender says %+v", s)
	}
}

func TestReceiver_ResolvesOptions(t *testing.T) {
	p, _ := broughtTo(t, true, false, v1.MigrationTargetReady)
	bandwidth := resource.MustParse("7Mi")
	for side, w := range map[string]*world{"sender": p.from, "receiver": p.to} {
		p.from.InForce, p.to.InForce = policy.Resolution{Options: policy.ClusterOptions(nil)}, policy.Resolution{Options: policy.ClusterOptions(nil)}
		w.InForce.Options.BandwidthPerMigration = &bandwidth
		for range 3 {
			p.round()
		}
		if o := stateIn(p.from).VMIMConfigurationOptions; o == nil || o.BandwidthPerMigration != nil {
			t.Errorf("what the %s wants changed the sender's options: %+v", side, o)
		}
	}
}
