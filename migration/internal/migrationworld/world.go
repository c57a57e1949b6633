// SPDX-License-Identifier: Apache-2.0

// Package migrationworld is an API in memory with one VMI and one migration, for tests of package migration and of
// those above it. It carries out plans as the controller does, and the nodes' part as far as they take part.
package migrationworld

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/launcherpod"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/policy"
	"github.com/virtloom/virtloom/migration/queue"
)

// Start is the time at which a world begins.
var Start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// The nodes and the objects of a world.
const (
	SourceNode   = "source"
	TargetNode   = "target"
	VMIUID       = types.UID("guest-uid")
	MigrationUID = types.UID("migration-uid")
)

// World is an API in memory with one VMI and one migration.
type World struct {
	// Now is the time of the next pass.
	Now time.Time
	// Migration, VMI, Others, Pods and Claims are the objects, the last two by name.
	Migration *v1.VirtualMachineInstanceMigration
	VMI       *v1.VirtualMachineInstance
	Others    []*v1.VirtualMachineInstanceMigration
	Pods      map[string]*corev1.Pod
	Claims    map[string]*corev1.PersistentVolumeClaim
	// Admission and Config are the controller's.
	Admission *queue.Admission
	Config    migration.Config
	// InForce is the resolution of the current policies.
	InForce policy.Resolution
	// Failures are the actions that fail.
	Failures map[migration.Verb]error
	// Sending is what a sender finds about its VMI.
	Sending *migration.Sending
	// Events are the emitted events, Writes counts the writes.
	Events []migration.Event
	Writes int
	// CrashAfter ends a pass, by a panic with [Crash], after so many writes in
	// all; zero never.
	CrashAfter int
	// Released says that the finalizer was removed, ReleasedBefore that this was before the end was stored.
	Released       bool
	ReleasedBefore bool
	// PodsUnseen keeps target Pods from the snapshot, as a late cache does.
	PodsUnseen bool
	// Acted counts the actions of the last pass, Collected are the migrations that were deleted.
	Acted     int
	Collected []string

	t *testing.T
}

// Crash is the value of the panic after [World.CrashAfter] writes.
type Crash struct{}

// NewWorld returns a world whose VMI runs on [SourceNode], with a new migration.
func NewWorld(t *testing.T) *World {
	t.Helper()
	w := &World{
		t: t, Now: Start, Pods: map[string]*corev1.Pod{}, Config: migration.Config{}.WithDefaults(),
		Migration: NewMigration("m", MigrationUID),
		VMI: &v1.VirtualMachineInstance{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: VMIUID, Labels: map[string]string{v1.NodeNameLabel: SourceNode}},
			Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: SourceNode},
		},
	}
	w.Put(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: SourceNode})
	w.Pods["src"] = w.NewPod("src", SourceNode, "")
	w.Pods["src"].Status.Phase = corev1.PodRunning
	w.InForce, _ = policy.Resolve(policy.Match{}, nil)
	w.Restart()
	return w
}

// NewMigration returns a migration of the VMI.
func NewMigration(name string, uid types.UID) *v1.VirtualMachineInstanceMigration {
	return &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid, CreationTimestamp: metav1.NewTime(Start)},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: "guest"},
	}
}

// NewPod returns a launcher Pod of the VMI: the target Pod of the migration with the UID job, if that is not empty.
func (w *World) NewPod(name, node string, job types.UID) *corev1.Pod {
	yes := true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), CreationTimestamp: metav1.NewTime(w.Now),
			Labels:          map[string]string{v1.AppLabel: launcherpod.LauncherApp, v1.CreatedByLabel: string(VMIUID)},
			OwnerReferences: []metav1.OwnerReference{{Kind: "VirtualMachineInstance", Name: "guest", UID: VMIUID, Controller: &yes}},
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if job != "" {
		p.Labels[v1.MigrationJobLabel] = string(job)
	}
	return p
}

// Restart forgets all that is only in memory.
func (w *World) Restart() {
	w.Admission = queue.NewAdmission(w.Config.Limits, queue.Options{})
	w.Failures = nil
}

// Put stores the VMI's lease.
func (w *World) Put(l handoff.Lease) {
	w.t.Helper()
	if err := handoff.Put(w.VMI, l); err != nil {
		w.t.Fatal(err)
	}
}

// Lease returns the VMI's lease.
func (w *World) Lease() handoff.Lease {
	w.t.Helper()
	l, err := handoff.Of(w.VMI)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// Step changes the lease as a node does.
func (w *World) Step(e handoff.Event) {
	w.t.Helper()
	e.Epoch = w.Lease().Epoch
	l, _, err := handoff.Step(w.Lease(), e, w.Now)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Put(l)
}

// Snapshot returns the input of the next decision.
func (w *World) Snapshot() migration.Snapshot {
	s := migration.Snapshot{Migration: w.Migration, VMI: w.VMI, Others: w.Others, Config: w.Config, Failures: w.Failures, Claims: w.Claims}
	if w.VMI == nil {
		return s
	}
	var pods []*corev1.Pod
	for _, p := range w.Pods {
		if w.PodsUnseen && p.Labels[v1.MigrationJobLabel] == string(w.Migration.UID) {
			s.Pending = "create of Pod ns/" + p.Name
			continue
		}
		pods = append(pods, p)
	}
	s.Launchers = pods
	s.TargetPod = migration.TargetPod(pods, w.Migration.UID)
	s.Attachments = migration.Attachments(pods, s.TargetPod)
	ph := w.Migration.Status.Phase
	if name := s.SourcePodName(); name != "" && ph != v1.MigrationPhaseUnset && ph != v1.MigrationPending {
		s.SourcePod = w.Pods[name]
	} else {
		s.SourcePod = migration.CurrentPod(w.VMI, pods, w.Migration.UID)
	}
	s.Resolution = w.InForce
	if s.NeedsSending() {
		s.Sending = w.Sending
	}
	return s
}

// wrote counts a write and crashes when it is time.
func (w *World) wrote() {
	w.Writes++
	if w.CrashAfter > 0 && w.Writes == w.CrashAfter {
		panic(Crash{}) //nolint:forbidigo // the test recovers it
	}
}

// Pass is a pass of the controller, the two decisions included.
func (w *World) Pass() migration.Plan {
	w.Failures = nil
	s := w.Snapshot()
	if c, wanted := s.Claim(w.Now); wanted {
		s.Slot, _ = w.Admission.Ask(c, w.Now)
	} else {
		w.Admission.Release(types.NamespacedName{Namespace: "ns", Name: w.Migration.Name}, w.Now)
	}
	plan := migration.Decide(s, w.Now)
	w.Acted = len(plan.Actions)
	for _, a := range plan.Actions {
		w.Apply(a)
		w.wrote()
	}
	if len(plan.Actions) > 0 {
		slot := s.Slot
		s = w.Snapshot()
		s.Slot = slot
		plan = migration.Decide(s, w.Now)
	}
	if !w.Migration.IsFinal() && len(w.Migration.Finalizers) == 0 && w.Released {
		w.ReleasedBefore = true
	}
	w.Migration.Status = *plan.Status.DeepCopy()
	w.wrote()
	w.Events = append(w.Events, plan.Events...)
	if plan.Release {
		w.Migration.Finalizers = nil
		w.Released = true
		w.wrote()
	}
	return plan
}

// Apply carries out an action.
func (w *World) Apply(a migration.Action) {
	w.t.Helper()
	switch a.Verb {
	case migration.Adopt:
		w.Migration.Labels = map[string]string{v1.MigrationSelectorLabel: w.Migration.Spec.VMIName}
		w.Migration.Finalizers = []string{v1.VirtualMachineInstanceMigrationFinalizer}
		if w.VMI != nil {
			metav1.SetMetaDataAnnotation(&w.Migration.ObjectMeta, migration.VMIUID, string(w.VMI.UID))
		}
	case migration.CreateTarget, migration.CreateAttachment, migration.AnnotatePod, migration.DeletePod:
		w.applyToPods(a)
	case migration.CreateClaim, migration.ChangeClaim:
		w.Claims[a.Claim.Name] = a.Claim.DeepCopy()
	case migration.DeleteClaim:
		delete(w.Claims, a.Claim.Name)
	case migration.ChangeVMI:
		if err := a.Change.Apply(w.VMI); err != nil {
			w.t.Fatal(err)
		}
	case migration.Collect:
		w.Collected = append(w.Collected, a.Name)
		if a.Name == w.Migration.Name {
			w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
		}
		w.Others = slices.DeleteFunc(w.Others, func(o *v1.VirtualMachineInstanceMigration) bool { return o.Name == a.Name })
	}
}

func (w *World) applyToPods(a migration.Action) {
	switch a.Verb {
	case migration.CreateTarget:
		if w.Pods["dst"] == nil {
			w.Pods["dst"] = w.NewPod("dst", "", w.Migration.UID)
		}
	case migration.CreateAttachment:
		w.attach(a.Volumes)
	case migration.AnnotatePod:
		if p := w.Pods[a.Pod.Name]; p != nil {
			p.Annotations = a.Annotations
		}
	case migration.DeletePod:
		if p := w.Pods[a.Pod.Name]; p != nil && p.UID == a.Pod.UID {
			delete(w.Pods, a.Pod.Name)
			maps.DeleteFunc(w.Pods, func(_ string, o *corev1.Pod) bool { return metav1.IsControlledBy(o, p) }) // as garbage collection does
		}
	}
}

// attach makes the Pod that brings the volumes beside the target, once.
func (w *World) attach(volumes []string) {
	name := "att-" + strings.Join(volumes, "-")
	if w.Pods[name] != nil {
		return
	}
	p := w.NewPod(name, TargetNode, MigrationUID)
	p.Labels[v1.AppLabel] = launcherpod.AttachmentApp
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "dst", UID: w.Pods["dst"].UID, Controller: &yes}}
	for _, v := range volumes {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: v, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim-" + v},
		}})
	}
	w.Pods[name] = p
}

// Passes runs passes until nothing changes any more.
func (w *World) Passes() migration.Plan {
	w.t.Helper()
	var plan migration.Plan
	for range 20 {
		status := w.Migration.Status.DeepCopy()
		plan = w.Pass()
		if w.Acted == 0 && len(plan.Actions) == 0 && cmp.Equal(*status, w.Migration.Status) {
			return plan
		}
	}
	w.t.Fatalf("the controller does not come to rest: %+v", plan)
	return plan
}

// Until brings the migration to the phase with everybody doing their part.
func (w *World) Until(want v1.VirtualMachineInstanceMigrationPhase) {
	w.t.Helper()
	for _, next := range []func(){
		func() {}, func() { w.PodBecomesReady(TargetNode) }, w.TargetPrepares, w.SourceBegins, w.TargetTakesOver,
	} {
		if want == v1.MigrationPhaseUnset {
			return
		}
		next()
		// The handoff takes the phase past Scheduled in the same pass.
		if want == v1.MigrationScheduled && w.Pods["dst"] != nil {
			w.Migration.Status.Phase = v1.MigrationScheduled
			return
		}
		if want == v1.MigrationPending {
			w.Pass()
		} else {
			w.Passes()
		}
		if w.Migration.Status.Phase == want {
			return
		}
	}
	w.t.Fatalf("phase is %q, want %q; conditions %+v", w.Migration.Status.Phase, want, w.Migration.Status.Conditions)
}

// Reason returns the reason of the condition that explains the standing.
func (w *World) Reason() migration.Reason {
	for _, t := range []v1.VirtualMachineInstanceMigrationConditionType{migration.ConditionFailed, migration.ConditionWaiting} {
		if c := migration.Condition(w.Migration.Status, t); c != nil {
			return migration.Reason(c.Reason)
		}
	}
	return ""
}
