// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
)

// A dimension is one way in which situations differ: changes of a snapshot, by
// name.
type dimension map[string]func(*vmi.Snapshot)

func with(pods ...*corev1.Pod) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) {
		for _, p := range pods {
			s.Pods = append(s.Pods, p.DeepCopy())
		}
	}
}

func nothing(*vmi.Snapshot) {}

var podStates = dimension{
	"no Pod":         nothing,
	"unplaced":       with(pod("p", unscheduled)),
	"pulling":        with(pod("p", waiting("compute", "ImagePullBackOff"))),
	"starting":       with(pod("p", waiting("compute", "ContainerCreating"))),
	"ready":          with(pod("p")),
	"succeeded":      with(pod("p", podPhase(corev1.PodSucceeded))),
	"failed":         with(pod("p", podPhase(corev1.PodFailed))),
	"unknown":        with(pod("p", podPhase(corev1.PodUnknown))),
	"terminating":    with(pod("p", terminating)),
	"on other node":  with(pod("p", func(p *corev1.Pod) { p.Spec.NodeName = "node-b" })),
	"temporary":      with(pod("t", temporary)),
	"temporary down": with(pod("t", temporary, podPhase(corev1.PodFailed))),
	"and a target":   with(pod("p"), pod("m", target)),
	"only a target":  with(pod("m", target)),
}

func temporary(p *corev1.Pod) { p.Annotations[v1.EphemeralProvisioningObject] = "true" }

func target(p *corev1.Pod) { p.Spec.NodeName, p.Labels[v1.MigrationJobLabel] = "node-b", "job" }

var deletions = dimension{"kept": nothing, "deleted": func(s *vmi.Snapshot) { deleting(s.VMI) }}

func migrating(phase v1.VirtualMachineInstanceMigrationPhase) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) {
		s.Migrations = []*v1.VirtualMachineInstanceMigration{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}, Status: v1.VirtualMachineInstanceMigrationStatus{Phase: phase}}}
	}
}

var moves = dimension{
	"none":       nothing,
	"pending":    migrating(v1.MigrationPending),
	"scheduling": migrating(v1.MigrationScheduling),
	"running":    migrating(v1.MigrationRunning),
	"receiver":   func(s *vmi.Snapshot) { s.VMI.Annotations = map[string]string{v1.CreateMigrationTarget: "true"} },
	"receiver that has failed": func(s *vmi.Snapshot) {
		s.VMI.Annotations = map[string]string{v1.CreateMigrationTarget: "true"}
		s.VMI.Labels = map[string]string{v1.MigrationTargetNodeNameLabel: "node-a"}
		s.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{Failed: true}
	},
	"sent away": func(s *vmi.Snapshot) {
		address := "192.0.2.1:9185"
		s.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{Completed: true,
			TargetState: &v1.VirtualMachineInstanceMigrationTargetState{
				VirtualMachineInstanceCommonMigrationState: v1.VirtualMachineInstanceCommonMigrationState{SyncAddress: &address}}}
	},
	"silent node": func(s *vmi.Snapshot) { s.Silent = map[string]time.Time{"node-a": now} },
	"lost node": func(s *vmi.Snapshot) {
		s.Silent = map[string]time.Time{"node-a": now}
		if s.VMI.Status.NodeName != "" {
			deadline := metav1.NewTime(now.Add(time.Minute))
			lease(handoff.Lease{State: handoff.Lost, Was: handoff.Owned, Epoch: 1, Holder: "node-a", Deadline: &deadline})(s.VMI)
		}
	},
	"unseen write": func(s *vmi.Snapshot) { s.Pending = []string{"create Pod ns/p"} },
}

// filled adds a disk populated by a DataVolume.
func filled(phase cdiv1.DataVolumePhase) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) {
		disk(s)
		controller := true
		s.Storage.Claims = map[string]*corev1.PersistentVolumeClaim{"root": {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "root", UID: "claim",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume", Name: "root", UID: "dv", Controller: &controller}}}}}
		s.Storage.DataVolumes = map[string]*cdiv1.DataVolume{"root": {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "root", UID: "dv"},
			Status: cdiv1.DataVolumeStatus{Phase: phase}}}
	}
}

func disk(s *vmi.Snapshot) {
	s.VMI.Spec.Volumes = append(s.VMI.Spec.Volumes, v1.Volume{Name: "root", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}}})
}

func tpm(s *vmi.Snapshot) {
	yes := true
	s.VMI.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: &yes}
}

// plugged adds a volume that the launcher Pod does not have.
func plugged(s *vmi.Snapshot) {
	s.VMI.Spec.Volumes = append(s.VMI.Spec.Volumes, v1.Volume{Name: "hot", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: true,
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "hot"}}}})
	s.Storage.Claims = map[string]*corev1.PersistentVolumeClaim{"hot": {ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hot", UID: "hot"},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}}
}

var disks = dimension{
	"none":                nothing,
	"claim is missing":    disk,
	"importing":           filled(cdiv1.ImportInProgress),
	"wants a consumer":    filled(cdiv1.WaitForFirstConsumer),
	"import failed":       filled(cdiv1.Failed),
	"filled":              filled(cdiv1.Succeeded),
	"state without class": tpm,
	"state to be made": func(s *vmi.Snapshot) {
		tpm(s)
		s.Storage.Classes = map[string]*storagev1.StorageClass{"fast": {ObjectMeta: metav1.ObjectMeta{Name: "fast",
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}}}}
	},
	"plugged":           plugged,
	"plugged, no claim": func(s *vmi.Snapshot) { plugged(s); s.Storage.Claims = nil },
}

var allPhases = []v1.VirtualMachineInstancePhase{
	"", v1.Pending, v1.Scheduling, v1.Scheduled, v1.Running, v1.Succeeded, v1.Failed, v1.WaitingForSync, v1.Unknown, "Sleeping",
}

// TestDecide_EverySituation covers every combination of phase, Pod, deletion, migration and
// storage. In each of them a wait reports the responsible actor, the cause and the event that
// ends it; or nothing is pending.
func TestDecide_EverySituation(t *testing.T) {
	situations := 0
	for _, phase := range allPhases {
		for podState, ofPod := range podStates {
			for deletion, ofDeletion := range deletions {
				for move, ofMove := range moves {
					for storage, ofStorage := range disks {
						s := vmi.Snapshot{VMI: guest(phase)}
						for _, of := range []func(*vmi.Snapshot){ofPod, ofDeletion, ofMove, ofStorage} {
							of(&s)
						}
						situations++
						if wrong := examine(s); wrong != "" {
							t.Errorf("phase %q, Pod %s, %s, migration %s, storage %s: %s\n%s",
								phase, podState, deletion, move, storage, wrong, vmi.Decide(s, now))
						}
						if t.Failed() {
							return
						}
					}
				}
			}
		}
	}
	t.Logf("%d situations", situations)
}

// examine returns the violated invariant of a decision, or "".
func examine(s vmi.Snapshot) string {
	before := s.VMI.DeepCopy()
	plan := vmi.Decide(s, now)
	if diff := cmp.Diff(before, s.VMI); diff != "" {
		return "Decide changed its input:\n" + diff
	}
	for _, w := range plan.Waits {
		if w.Reason == "" || w.Message == "" || w.Object == "" || w.Until == "" || w.Responsible == "" {
			return "a wait does not say all: " + strings.Join([]string{w.Reason, w.Message, w.Object, w.Until, string(w.Responsible)}, " | ")
		}
	}
	changes := !equality.Semantic.DeepEqual(plan.VMI, s.VMI)
	if len(plan.Waits) == 0 && len(plan.Actions) == 0 && !changes && plan.RequeueAt == nil && !atRest(s) {
		return "nobody is to do anything"
	}
	if s.VMI.IsFinal() {
		for _, a := range plan.Actions {
			if a.Verb != vmi.DeletePod {
				return "a guest that has ended gets " + a.String()
			}
		}
		if plan.VMI.Status.Phase != s.VMI.Status.Phase {
			return "a guest that has ended becomes " + string(plan.VMI.Status.Phase)
		}
	}
	if wrong := skipped(s, plan); wrong != "" {
		return wrong
	}
	return repeated(s, plan)
}

// skipped returns the difference between the handoff after [vmi.Scheduling] and after that phase was stored, or "".
func skipped(s vmi.Snapshot, plan vmi.Plan) string {
	was, next := s.VMI.Status.Phase, vmi.Scheduling(s, now)
	if enters := (was == "" || was == v1.Pending) && plan.VMI.Status.Phase == v1.Scheduling; enters != (next != nil) {
		return "it enters Scheduling, or does not, unlike in the result of Scheduling"
	}
	if next == nil {
		return ""
	}
	s.VMI = plan.VMI
	want := vmi.Decide(s, now)
	s.VMI = next
	got := vmi.Decide(s, now)
	if want.VMI.Status.Phase != v1.Scheduled && got.VMI.Status.Phase != v1.Scheduled {
		return ""
	}
	return cmp.Diff(want, got)
}

// repeated returns the difference of a second decision on the stored result, or "".
func repeated(s vmi.Snapshot, plan vmi.Plan) string {
	s.VMI = plan.VMI
	for range 3 { // one phase per pass
		plan = vmi.Decide(s, now)
		if equality.Semantic.DeepEqual(plan.VMI, s.VMI) {
			return ""
		}
		s.VMI = plan.VMI
	}
	return "the object never comes to rest:\n" + cmp.Diff(s.VMI, vmi.Decide(s, now).VMI)
}

// atRest reports whether nothing is pending: the VMI runs, or is in a final phase and
// kept.
func atRest(s vmi.Snapshot) bool {
	return s.VMI.IsFinal() && s.VMI.DeletionTimestamp == nil || s.VMI.Status.Phase == v1.Running && s.Launcher() != nil
}
