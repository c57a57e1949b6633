// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration/internal/launcherpod"
	"github.com/virtloom/virtloom/migration/policy"
	"github.com/virtloom/virtloom/migration/queue"
)

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const (
	sourceNode = "source"
	targetNode = "target"
	vmiUID     = types.UID("guest-uid")
	ourUID     = types.UID("migration-uid")
)

// world is an API in memory with one VMI and one migration.
type world struct {
	t         *testing.T
	now       time.Time
	migration *v1.VirtualMachineInstanceMigration
	vmi       *v1.VirtualMachineInstance
	others    []*v1.VirtualMachineInstanceMigration
	pods      map[string]*corev1.Pod
	claims    map[string]*corev1.PersistentVolumeClaim
	admission *queue.Admission
	config    Config
	// inForce is what the policies of the moment come to.
	inForce  policy.Resolution
	failures map[ActionKind]error
	// sending is what a sender finds about its VMI.
	sending *Sending
	events  []Event
	writes  int
	// crashAfter ends a pass, by a panic with crash, after so many writes in
	// all; zero never.
	crashAfter int
	released   bool
	// releasedBefore says that the finalizer went before the end was stored.
	releasedBefore bool
	// podsUnseen keeps target Pods from the snapshot, as a late cache does.
	podsUnseen bool
	// acted counts the actions of the last pass.
	acted     int
	collected []string
}

type crash struct{}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, now: start, pods: map[string]*corev1.Pod{}, config: Config{}.WithDefaults(),
		migration: newMigration("m", ourUID),
		vmi: &v1.VirtualMachineInstance{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: vmiUID, Labels: map[string]string{v1.NodeNameLabel: sourceNode}},
			Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: sourceNode},
		},
	}
	w.put(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: sourceNode})
	w.pods["src"] = w.newPod("src", sourceNode, "")
	w.pods["src"].Status.Phase = corev1.PodRunning
	w.under(nil)
	w.restart()
	return w
}

func newMigration(name string, uid types.UID) *v1.VirtualMachineInstanceMigration {
	return &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, CreationTimestamp: metav1.NewTime(start)},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: "guest"},
	}
}

func (w *world) newPod(name, node string, job types.UID) *corev1.Pod {
	yes := true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), CreationTimestamp: metav1.NewTime(w.now),
			Labels:          map[string]string{v1.AppLabel: launcherpod.LauncherApp, v1.CreatedByLabel: string(vmiUID)},
			OwnerReferences: []metav1.OwnerReference{{Kind: "VirtualMachineInstance", Name: "guest", UID: vmiUID, Controller: &yes}},
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if job != "" {
		p.Labels[v1.MigrationJobLabel] = string(job)
	}
	return p
}

// restart forgets all that is only in memory.
func (w *world) restart() {
	w.admission = queue.NewAdmission(w.config.Limits, queue.Options{})
	w.failures = nil
}

func (w *world) put(l handoff.Lease) {
	w.t.Helper()
	if err := handoff.Put(w.vmi, l); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) lease() handoff.Lease {
	w.t.Helper()
	l, err := handoff.Of(w.vmi)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// step changes the lease as a node does.
func (w *world) step(e handoff.Event) {
	w.t.Helper()
	e.Epoch = w.lease().Epoch
	l, _, err := handoff.Step(w.lease(), e, w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	w.put(l)
}

func (w *world) snapshot() Snapshot {
	s := Snapshot{Migration: w.migration, VMI: w.vmi, Others: w.others, Config: w.config, Now: w.now, Failures: w.failures, Claims: w.claims}
	if w.vmi == nil {
		return s
	}
	var pods []*corev1.Pod
	for _, p := range w.pods {
		if w.podsUnseen && p.Labels[v1.MigrationJobLabel] == string(w.migration.UID) {
			s.Pending = "create of Pod ns/" + p.Name
			continue
		}
		pods = append(pods, p)
	}
	s.Launchers = pods
	s.TargetPod = TargetPod(pods, w.migration.UID)
	s.Attachments = Attachments(pods, s.TargetPod)
	ph := w.migration.Status.Phase
	if name := s.SourcePodName(); name != "" && ph != v1.MigrationPhaseUnset && ph != v1.MigrationPending {
		s.SourcePod = w.pods[name]
	} else {
		s.SourcePod = CurrentPod(w.vmi, pods, w.migration.UID)
	}
	s.Resolution = w.inForce
	if s.NeedsSending() {
		s.Sending = w.sending
	}
	return s
}

// wrote counts a write and crashes when it is time.
func (w *world) wrote() {
	w.writes++
	if w.crashAfter > 0 && w.writes == w.crashAfter {
		panic(crash{})
	}
}

// pass is a pass of the controller, the two decisions included.
func (w *world) pass() Plan {
	w.failures = nil
	s := w.snapshot()
	if c, wanted := s.Claim(); wanted {
		s.Slot, _ = w.admission.Ask(c, w.now)
	} else {
		w.admission.Release(types.NamespacedName{Namespace: "ns", Name: w.migration.Name}, w.now)
	}
	plan := Decide(s, w.now)
	w.acted = len(plan.Actions)
	for _, a := range plan.Actions {
		w.apply(a)
		w.wrote()
	}
	if len(plan.Actions) > 0 {
		slot := s.Slot
		s = w.snapshot()
		s.Slot = slot
		plan = Decide(s, w.now)
	}
	if !w.migration.IsFinal() && len(w.migration.Finalizers) == 0 && w.released {
		w.releasedBefore = true
	}
	w.migration.Status = *plan.Status.DeepCopy()
	w.wrote()
	w.events = append(w.events, plan.Events...)
	if plan.Release {
		w.migration.Finalizers = nil
		w.released = true
		w.wrote()
	}
	return plan
}

func (w *world) apply(a Action) {
	w.t.Helper()
	switch a.Kind {
	case Adopt:
		w.migration.Labels = map[string]string{v1.MigrationSelectorLabel: w.migration.Spec.VMIName}
		w.migration.Finalizers = []string{v1.VirtualMachineInstanceMigrationFinalizer}
		if w.vmi != nil {
			metav1.SetMetaDataAnnotation(&w.migration.ObjectMeta, GuestUID, string(w.vmi.UID))
		}
	case CreateTarget:
		if w.pods["dst"] == nil {
			w.pods["dst"] = w.newPod("dst", "", w.migration.UID)
		}
	case CreateClaim, ChangeClaim:
		w.claims[a.Claim.Name] = a.Claim.DeepCopy()
	case DeleteClaim:
		delete(w.claims, a.Claim.Name)
	case CreateAttachment:
		w.attach(a.Volumes)
	case AnnotatePod:
		if p := w.pods[a.Pod.Name]; p != nil {
			p.Annotations = a.Annotations
		}
	case DeletePod:
		if p := w.pods[a.Pod.Name]; p != nil && p.UID == a.Pod.UID {
			delete(w.pods, a.Pod.Name)
			for name, o := range w.pods { // as garbage collection does
				if metav1.IsControlledBy(o, p) {
					delete(w.pods, name)
				}
			}
		}
	case ChangeVMI:
		if err := a.Change.Apply(w.vmi); err != nil {
			w.t.Fatal(err)
		}
	case Collect:
		w.collected = append(w.collected, a.Name)
		if a.Name == w.migration.Name {
			w.migration.DeletionTimestamp = &metav1.Time{Time: w.now}
		}
		w.others = slices.DeleteFunc(w.others, func(o *v1.VirtualMachineInstanceMigration) bool { return o.Name == a.Name })
	}
}

// passes runs passes until nothing changes any more.
func (w *world) passes() Plan {
	w.t.Helper()
	var plan Plan
	for range 20 {
		status := w.migration.Status.DeepCopy()
		plan = w.pass()
		if w.acted == 0 && len(plan.Actions) == 0 && cmp.Equal(*status, w.migration.Status) {
			return plan
		}
	}
	w.t.Fatalf("the controller does not come to rest: %+v", plan)
	return plan
}

// The nodes and the cluster, as far as they take part. Each does its step only
// when it is its turn, so that calling all of them in any order is harmless.

func (w *world) podBecomesReady(node string) {
	if p := w.pods["dst"]; p != nil {
		p.Spec.NodeName = node
		p.Status.Phase = corev1.PodRunning
	}
	for _, p := range w.pods {
		if p.Labels[v1.AppLabel] == launcherpod.AttachmentApp && p.Status.Phase == corev1.PodPending {
			p.Status.Phase = corev1.PodRunning
		}
	}
}

func (w *world) targetPrepares() {
	if w.lease().State == handoff.Preparing {
		w.step(handoff.Event{Kind: handoff.Ready, Node: targetNode})
		w.vmi.Status.MigrationState.TargetNodeAddress = "192.0.2.1"
	}
}

func (w *world) sourceBegins() {
	if w.lease().State == handoff.Prepared {
		w.step(handoff.Event{Kind: handoff.Begin, Node: sourceNode})
		w.vmi.Status.MigrationState.StartTimestamp = &metav1.Time{Time: w.now}
	}
}

func (w *world) targetTakesOver() {
	if w.lease().State == handoff.Moving {
		w.step(handoff.Event{Kind: handoff.TakeOver, Node: targetNode})
		w.step(handoff.Event{Kind: handoff.Finalize, Node: targetNode})
		ms := w.vmi.Status.MigrationState
		ms.Completed, ms.EndTimestamp = true, &metav1.Time{Time: w.now}
	}
}

func (w *world) sourceReverts(why string) {
	if w.lease().State == handoff.Moving {
		w.step(handoff.Event{Kind: handoff.Revert, Node: sourceNode, Message: why})
		ms := w.vmi.Status.MigrationState
		ms.Failed, ms.Completed, ms.FailureReason = true, true, why
	}
}

// until brings the migration to the phase with everybody doing their part.
func (w *world) until(want v1.VirtualMachineInstanceMigrationPhase) {
	w.t.Helper()
	for _, next := range []func(){
		func() {}, func() { w.podBecomesReady(targetNode) }, w.targetPrepares, w.sourceBegins, w.targetTakesOver,
	} {
		if want == v1.MigrationPhaseUnset {
			return
		}
		next()
		// The handoff takes the phase past Scheduled in the same pass.
		if want == v1.MigrationScheduled && w.pods["dst"] != nil {
			w.migration.Status.Phase = v1.MigrationScheduled
			return
		}
		if want == v1.MigrationPending {
			w.pass()
		} else {
			w.passes()
		}
		if w.migration.Status.Phase == want {
			return
		}
	}
	w.t.Fatalf("phase is %q, want %q; conditions %+v", w.migration.Status.Phase, want, w.migration.Status.Conditions)
}

// reason returns the reason of the condition that explains the standing.
func (w *world) reason() Reason {
	for _, t := range []v1.VirtualMachineInstanceMigrationConditionType{ConditionFailed, ConditionWaiting} {
		if c := Condition(w.migration.Status, t); c != nil {
			return Reason(c.Reason)
		}
	}
	return ""
}
