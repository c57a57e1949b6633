// SPDX-License-Identifier: Apache-2.0

package migration_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/migration"
)

// plug lists the volume in the VMI's spec and status.
func (w *world) plug(volume string, phase v1.VolumePhase) {
	w.VMI.Spec.Volumes = append(w.VMI.Spec.Volumes, v1.Volume{Name: volume, VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim-" + volume}, Hotpluggable: true,
		},
	}})
	w.VMI.Status.VolumeStatus = append(w.VMI.Status.VolumeStatus, v1.VolumeStatus{Name: volume, Phase: phase, HotplugVolume: &v1.HotplugVolumeStatus{}})
}

// keepState gives the VMI a claim with state of that access mode.
func (w *world) keepState(mode corev1.PersistentVolumeAccessMode) {
	yes := true
	w.VMI.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: &yes}
	w.Pods["src"].Spec.Volumes = []corev1.Volume{{Name: migration.StateVolume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "state"},
	}}}
	class := "fast"
	w.Claims = map[string]*corev1.PersistentVolumeClaim{"state": {
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "state", UID: "state-uid", Labels: map[string]string{migration.StateLabel: "guest"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "VirtualMachine", Name: "guest", UID: "vm-uid", BlockOwnerDeletion: &yes}},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Mi")}},
		},
	}}
}

func (w *world) claimNames() []string { return slices.Sorted(maps.Keys(w.Claims)) }

func TestHotpluggedVolumes_FollowVMI(t *testing.T) {
	for name, tc := range map[string]struct {
		plug func(*world)
		want []string // Pods, of which those named att bring volumes
	}{
		"none":                              {func(*world) {}, []string{"dst", "src"}},
		"S14/20 two":                        {func(w *world) { w.plug("a", v1.VolumeReady); w.plug("b", v1.HotplugVolumeMounted) }, []string{"att-a-b", "dst", "src"}},
		"S14/20 about to be":                {func(w *world) { w.plug("a", v1.HotplugVolumeAttachedToNode) }, []string{"att-a", "dst", "src"}},
		"one that has not reached its node": {func(w *world) { w.plug("a", v1.VolumePending) }, []string{"dst", "src"}},
		"one that the Pod had from the start": {func(w *world) {
			w.plug("a", v1.VolumeReady)
			w.VMI.Status.VolumeStatus[0].HotplugVolume = nil
		}, []string{"dst", "src"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.plug(w)
			w.Passes()
			if got := slices.Sorted(maps.Keys(w.Pods)); !cmp.Equal(got, []string{"dst", "src"}) {
				t.Fatalf("before the target is ready there are Pods %v", got)
			}
			w.Pods["dst"].Spec.NodeName, w.Pods["dst"].Status.Phase = targetNode, corev1.PodRunning
			w.Passes()
			if got := slices.Sorted(maps.Keys(w.Pods)); !cmp.Equal(got, tc.want) {
				t.Fatalf("Pods are %v, want %v", got, tc.want)
			}
			attached := len(tc.want) > 2
			if ph := w.Migration.Status.Phase; attached != (ph == v1.MigrationScheduling) {
				t.Fatalf("phase is %q before the hotplugged volumes are there", ph)
			}
			w.PodBecomesReady(targetNode)
			w.Passes()
			ms := w.VMI.Status.MigrationState
			if ms == nil || w.Migration.Status.Phase != v1.MigrationPreparingTarget {
				t.Fatalf("phase is %q: %s", w.Migration.Status.Phase, w.Reason())
			}
			if got := ms.TargetAttachmentPodUID; attached != (got == types.UID(tc.want[0]+"-uid")) {
				t.Errorf("the target gets attachment Pod %q", got)
			}
		})
	}
}

func TestLateVolumes_FollowVMI(t *testing.T) {
	w := newWorld(t)
	w.plug("a", v1.VolumeReady)
	w.Until(v1.MigrationScheduled)
	w.Config.Evaluator = nil
	w.PodBecomesReady(targetNode)
	w.plug("b", v1.VolumeReady)
	w.Passes()
	if ms := w.VMI.Status.MigrationState; ms != nil {
		t.Fatalf("handed off without a volume: %+v", ms)
	}
	if w.Pods["att-a-b"] == nil || w.Reason() != "WaitingForAttachmentPod" {
		t.Fatalf("Pods %v, reason %q", slices.Sorted(maps.Keys(w.Pods)), w.Reason())
	}
	w.PodBecomesReady(targetNode)
	w.Passes()
	if ms := w.VMI.Status.MigrationState; ms == nil || ms.TargetAttachmentPodUID != "att-a-b-uid" {
		t.Errorf("the target gets %+v", ms)
	}
}

func TestCheckPlugging_Waits(t *testing.T) {
	for name, tc := range map[string]struct {
		begin, end func(*world)
	}{
		"unplugging": {
			func(w *world) { w.plug("a", v1.VolumeReady); w.VMI.Spec.Volumes = nil },
			func(w *world) { w.VMI.Status.VolumeStatus = nil },
		},
		"detaching": {
			func(w *world) { w.plug("a", v1.HotplugVolumeDetaching); w.VMI.Spec.Volumes = nil },
			func(w *world) { w.VMI.Status.VolumeStatus = nil },
		},
		"a dump of memory": {
			func(w *world) { w.plug("a", v1.MemoryDumpVolumeInProgress) },
			func(w *world) { w.VMI.Status.VolumeStatus[0].Phase = v1.MemoryDumpVolumeCompleted },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.begin(w)
			w.Passes()
			if w.Reason() != "VolumesChanging" || w.Pods["dst"] != nil {
				t.Fatalf("reason %q, target Pod %v", w.Reason(), w.Pods["dst"] != nil)
			}
			tc.end(w)
			w.Passes()
			if w.Pods["dst"] == nil {
				t.Errorf("no target Pod: %q", w.Reason())
			}
		})
	}
}

func TestAttachmentPod_LossEndsMigration(t *testing.T) {
	losses := map[string]func(*world){
		"S14/22 failed":  func(w *world) { w.Pods["att-a"].Status.Phase = corev1.PodFailed },
		"ended":          func(w *world) { w.Pods["att-a"].Status.Phase = corev1.PodSucceeded },
		"on its way out": func(w *world) { w.Pods["att-a"].DeletionTimestamp = &metav1.Time{Time: w.Now} },
	}
	for _, ph := range []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationScheduling, v1.MigrationPreparingTarget, v1.MigrationTargetReady} {
		for name, lose := range losses {
			t.Run(fmt.Sprintf("%s in %s", name, ph), func(t *testing.T) {
				w := newWorld(t)
				w.plug("a", v1.VolumeReady)
				w.Until(v1.MigrationScheduling)
				w.Pods["dst"].Spec.NodeName, w.Pods["dst"].Status.Phase = targetNode, corev1.PodRunning
				w.Passes()
				if ph != v1.MigrationScheduling {
					w.Until(ph)
				}
				lose(w)
				w.Passes()
				if w.Migration.Status.Phase != v1.MigrationFailed || w.Reason() != "AttachmentPodLost" {
					t.Errorf("phase %q, reason %q", w.Migration.Status.Phase, w.Reason())
				}
				w.mustBeAt(sourceNode)
			})
		}
	}
}

func TestStateClaims_SingleNodeClaimIsReplaced(t *testing.T) {
	w := newWorld(t)
	w.keepState(corev1.ReadWriteOnce)
	target := migration.TargetStateName(w.VMI, ourUID)
	w.Until(v1.MigrationScheduling)
	c := w.Claims[target]
	if c == nil || c.Labels[v1.MigrationNameLabel] != "m" || c.Labels[migration.StateLabel] != "" || *c.Spec.StorageClassName != "fast" {
		t.Fatalf("the claim for the target is %+v", c)
	}
	if o := c.OwnerReferences; len(o) != 1 || o[0].UID != "vm-uid" || o[0].BlockOwnerDeletion != nil {
		t.Errorf("it belongs to %+v", o)
	}
	w.Until(v1.MigrationPreparingTarget)
	if ms := w.VMI.Status.MigrationState; ms.SourcePersistentStatePVCName != "state" || ms.TargetPersistentStatePVCName != target {
		t.Errorf("the nodes get %q and %q", ms.SourcePersistentStatePVCName, ms.TargetPersistentStatePVCName)
	}
	w.Until(v1.MigrationSucceeded)
	if got := w.claimNames(); !cmp.Equal(got, []string{target}) {
		t.Fatalf("claims left are %v", got)
	}
	if l := w.Claims[target].Labels; l[migration.StateLabel] != "guest" || l[v1.MigrationNameLabel] != "" {
		t.Errorf("its labels are %v", l)
	}
	w.mustBeAt(targetNode)
}

func TestCheckState_Blocks(t *testing.T) {
	for name, tc := range map[string]struct {
		given func(*world)
		want  migration.Reason
	}{
		"the claim is not known": {func(w *world) { w.Claims = nil }, "WaitingForStateClaim"},
		"the name is no label":   {func(w *world) { w.Migration.Spec.VMIName = strings.Repeat("g", 64) }, migration.ReasonNotMigratable},
	} {
		for checks, e := range map[string]migration.Evaluator{"stock checks": migration.DefaultChecks(), "without the check": {{"running", checkNamed("running").Judge}}} {
			t.Run(name+", "+checks, func(t *testing.T) {
				w := newWorld(t)
				w.Config.Evaluator = e
				w.keepState(corev1.ReadWriteOnce)
				tc.given(w)
				w.Passes()
				if w.Reason() != tc.want || w.Migration.IsFinal() != (tc.want == migration.ReasonNotMigratable) || w.Pods["dst"] != nil {
					t.Errorf("phase %q, reason %q, target Pod %v; want %q", w.Migration.Status.Phase, w.Reason(), w.Pods["dst"] != nil, tc.want)
				}
			})
		}
	}
}

func TestSharedState_KeepsClaim(t *testing.T) {
	w := newWorld(t)
	w.keepState(corev1.ReadWriteMany)
	w.Until(v1.MigrationPreparingTarget)
	if ms := w.VMI.Status.MigrationState; ms.SourcePersistentStatePVCName != "state" || ms.TargetPersistentStatePVCName != "state" {
		t.Errorf("the nodes get %q and %q", ms.SourcePersistentStatePVCName, ms.TargetPersistentStatePVCName)
	}
	before := w.Claims["state"].DeepCopy()
	w.Until(v1.MigrationSucceeded)
	if d := cmp.Diff(map[string]*corev1.PersistentVolumeClaim{"state": before}, w.Claims); d != "" {
		t.Errorf("claims changed (-before +after):\n%s", d)
	}
}

// However the migration ends and wherever the controller crashes, the claim that is
// labelled is where the VMI is, and there is no other; volumes and Pods too.
func TestCrash_KeepsState(t *testing.T) {
	calm := newWorld(t)
	calm.keepState(corev1.ReadWriteOnce)
	calm.plug("a", v1.VolumeReady)
	calm.play(func(*world) {})
	target := migration.TargetStateName(calm.VMI, ourUID)
	for _, ph := range append([]v1.VirtualMachineInstanceMigrationPhase{""}, unfinished...) {
		for at := 1; at <= calm.Writes; at++ {
			t.Run(fmt.Sprintf("cancelled in %q, crash after write %d", ph, at), func(t *testing.T) {
				w := newWorld(t)
				w.keepState(corev1.ReadWriteOnce)
				w.plug("a", v1.VolumeReady)
				w.CrashAfter = at
				w.play(func(w *world) {
					if ph != "" && w.Migration.Status.Phase == ph && w.Migration.DeletionTimestamp == nil {
						w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now}
					}
					if ms := w.VMI.Status.MigrationState; ms != nil && ms.AbortRequested {
						w.SourceReverts("aborted by request")
					}
				})
				at, claim := targetNode, target
				if w.Migration.Status.Phase == v1.MigrationFailed {
					at, claim = sourceNode, "state"
				}
				if at == targetNode {
					if w.Pods["att-a"] == nil {
						t.Error("the Pod with the hotplugged volume is gone")
					}
					delete(w.Pods, "att-a") // it stays with the VMI
				}
				w.mustBeAt(at)
				if got := w.claimNames(); !cmp.Equal(got, []string{claim}) || w.Claims[claim].Labels[migration.StateLabel] != "guest" {
					t.Errorf("claims left are %v, want %s with the label", got, claim)
				}
			})
		}
	}
}

func TestStateClaims_KeptWithUnknownOwner(t *testing.T) {
	for name, end := range map[string]func(*world){
		"the guest ended while it moved": func(w *world) { w.VMI.Status.Phase = v1.Failed },
		"the guest's object is gone":     func(w *world) { w.VMI = nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.keepState(corev1.ReadWriteOnce)
			w.Until(v1.MigrationRunning)
			end(w)
			w.Passes()
			if w.Migration.Status.Phase != v1.MigrationFailed || len(w.Claims) != 2 {
				t.Errorf("phase %q, claims %v", w.Migration.Status.Phase, w.claimNames())
			}
		})
	}
}

func TestFailedStart_DropsNewClaim(t *testing.T) {
	for name, end := range map[string]func(*world){
		"cancelled":           func(w *world) { w.Migration.DeletionTimestamp = &metav1.Time{Time: w.Now} },
		"the guest ended":     func(w *world) { w.VMI.Status.Phase = v1.Succeeded },
		"the target Pod died": func(w *world) { w.Pods["dst"].Status.Phase = corev1.PodFailed },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.keepState(corev1.ReadWriteOnce)
			w.Until(v1.MigrationScheduling)
			if len(w.Claims) != 2 {
				t.Fatalf("claims are %v", w.claimNames())
			}
			end(w)
			w.Passes()
			if got := w.claimNames(); !cmp.Equal(got, []string{"state"}) || !w.Released {
				t.Errorf("claims left are %v, released %v", got, w.Released)
			}
		})
	}
}

func TestStateClaim_LabelFailureDelayIsBounded(t *testing.T) {
	w := newWorld(t)
	w.keepState(corev1.ReadWriteOnce)
	w.Until(v1.MigrationRunning)
	w.TargetTakesOver()
	s := w.Snapshot()
	s.Failures = map[migration.Verb]error{migration.ChangeClaim: fmt.Errorf("forbidden")}
	plan := migration.Decide(s, w.Now)
	if plan.Status.Phase != v1.MigrationRunning || plan.Reason != "StateClaimHandOff" {
		t.Fatalf("phase %q, reason %q", plan.Status.Phase, plan.Reason)
	}
	if plan = migration.Decide(s, plan.Deadline); plan.Status.Phase != v1.MigrationSucceeded {
		t.Errorf("after its deadline the phase is %q", plan.Status.Phase)
	}
}

func TestS14_32TheTargetPodSaysThatTheGuestIsThere(t *testing.T) {
	w := newWorld(t)
	w.Until(v1.MigrationRunning)
	w.Step(handoff.Event{Kind: handoff.TakeOver, Node: targetNode})
	at := metav1.NewTime(w.Now)
	w.VMI.Status.MigrationState.TargetNodeDomainReadyTimestamp = &at
	w.Passes()
	if got := w.Pods["dst"].Annotations[v1.MigrationTargetReadyTimestamp]; got != at.String() {
		t.Errorf("the annotation is %q, want %q", got, at)
	}
	if w.Migration.Status.Phase != v1.MigrationRunning {
		t.Errorf("phase is %q before the target has completed", w.Migration.Status.Phase)
	}
}

// Who keeps the VMIs' Pods has it from the same change by which the VMI has moved.
func TestAnnounce_LeftToPodController(t *testing.T) {
	for name, leased := range map[string]bool{"nodes that go by the lease": true, "stock nodes, which announce it earlier": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Until(v1.MigrationRunning)
			if leased {
				w.Step(handoff.Event{Kind: handoff.TakeOver, Node: targetNode})
			} else {
				delete(w.VMI.Annotations, handoff.Annotation)
			}
			at := metav1.NewTime(w.Now)
			w.VMI.Status.MigrationState.TargetNodeDomainReadyTimestamp = &at
			s := w.Snapshot()
			s.Config.PodsFollowGuests = true
			annotated := slices.ContainsFunc(migration.Decide(s, w.Now).Actions, func(a migration.Action) bool { return a.Verb == migration.AnnotatePod })
			if annotated == leased {
				t.Errorf("the Pod is annotated: %v", annotated)
			}
		})
	}
}

// The nodes find a VMI's Pods by what is recorded of them, and the target's is recorded with the migration.
func TestHandOff_RecordsTargetPod(t *testing.T) {
	w := newWorld(t)
	w.Until(v1.MigrationPreparingTarget)
	if got := w.VMI.Status.ActivePods[w.Pods["dst"].UID]; got != targetNode {
		t.Errorf("activePods are %v, want %s on %s", w.VMI.Status.ActivePods, w.Pods["dst"].UID, targetNode)
	}
}

func TestSourcePod_DeletedAfterReturn(t *testing.T) {
	for name, tc := range map[string]struct {
		last v1.VirtualMachineInstanceMigrationState
		gone bool
	}{
		"into a Pod of its own": {v1.VirtualMachineInstanceMigrationState{MigrationUID: "later", TargetNode: sourceNode, TargetPod: "new", Completed: true}, true},
		"into this Pod":         {v1.VirtualMachineInstanceMigrationState{MigrationUID: "later", TargetNode: sourceNode, TargetPod: "src", Completed: true}, false},
		"perhaps":               {v1.VirtualMachineInstanceMigrationState{MigrationUID: "later", TargetNode: sourceNode, TargetPod: "new"}, false},
		"never":                 {v1.VirtualMachineInstanceMigrationState{MigrationUID: "later", TargetNode: sourceNode, TargetPod: "new", Completed: true, Failed: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Until(v1.MigrationRunning)
			w.TargetTakesOver()
			for w.Migration.Status.Phase != v1.MigrationSucceeded {
				w.Pass()
			}
			w.Pods["src"] = w.NewPod("src", sourceNode, "")
			w.VMI.Status.MigrationState, w.VMI.Status.NodeName = &tc.last, sourceNode
			w.VMI.Labels[v1.NodeNameLabel] = sourceNode
			w.Put(handoff.Lease{State: handoff.Owned, Epoch: 5, Holder: sourceNode})
			w.Passes()
			if gone := w.Pods["src"] == nil; gone != tc.gone || !w.Released {
				t.Errorf("its Pod is gone: %v, want %v; released %v", gone, tc.gone, w.Released)
			}
		})
	}
}
