// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// TestHotplugReadiness covers which volumes an attachment can carry. Beside the volume under
// test, v1, volume v9 is always ready.
func TestHotplugReadiness(t *testing.T) {
	const only9 = "CreateAttachment launcher volumes=v9"
	const both = "CreateAttachment launcher volumes=v1,v9"
	claim := func(change func(*corev1.PersistentVolumeClaim)) []func(*plugWorld) {
		return []func(*plugWorld){wants("v1"), func(w *plugWorld) { change(w.s.Storage.Claims["c-v1"]) }}
	}
	pending := func(class string) []func(*plugWorld) {
		return claim(func(c *corev1.PersistentVolumeClaim) {
			c.Status.Phase, c.Spec.StorageClassName = corev1.ClaimPending, &class
		})
	}
	spec := func(change func(*v1.VirtualMachineInstanceSpec)) func(*plugWorld) {
		return func(w *plugWorld) {
			w.s.Storage.Claims["c-v1"] = boundClaim("c-v1")
			change(&w.s.VMI.Spec)
		}
	}
	utility := func(s *v1.VirtualMachineInstanceSpec) {
		s.UtilityVolumes = []v1.UtilityVolume{{Name: "v1",
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c-v1"}}}
	}
	block := func(w *plugWorld) {
		w.s.Storage.Claims["c-v1"].Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	}
	const claimBy = " PersistentVolumeClaim ns/c-v1 by "
	const fillBy = " DataVolume ns/c-v1 by "
	tests := map[string]struct {
		world   []func(*plugWorld)
		actions string
		waits   string
		reason  string
	}{
		"89 a volume of the launcher by its name": {
			world: []func(*plugWorld){wants("v1"), func(w *plugWorld) { brings(w.launcher, "v1") }}, actions: only9,
		},
		"89 a memory dump": {
			world: []func(*plugWorld){spec(func(s *v1.VirtualMachineInstanceSpec) {
				s.Volumes = []v1.Volume{{Name: "v1", VolumeSource: v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{
					PersistentVolumeClaimVolumeSource: v1.PersistentVolumeClaimVolumeSource{PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c-v1"}}}}}}
			})}, actions: both,
		},
		"89 a DataVolume": {
			world: []func(*plugWorld){spec(func(s *v1.VirtualMachineInstanceSpec) {
				s.Volumes = []v1.Volume{{Name: "v1", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "c-v1"}}}}
			})}, actions: both,
		},
		"89 a volume without a claim": {
			world: []func(*plugWorld){spec(func(s *v1.VirtualMachineInstanceSpec) {
				s.Volumes = []v1.Volume{{Name: "v1", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}}}}
			})}, actions: only9,
		},
		"89 a utility volume": {world: []func(*plugWorld){spec(utility)}, actions: "CreateAttachment launcher volumes=v9,v1"},
		"89 a utility volume of a block device": {
			world: []func(*plugWorld){spec(utility), block}, actions: only9, waits: "PVCNotReady" + claimBy + "user", reason: "PVCNotReady",
		},
		"a utility volume whose claim is missing": {
			world: []func(*plugWorld){spec(utility), claimless("v1")}, actions: only9, waits: "PVCNotReady" + claimBy + "user", reason: "FailedPvcNotFound",
		},
		"a volume of a block device": {world: []func(*plugWorld){wants("v1"), block}, actions: both},
		"a claim that is missing holds no other up": {
			world: []func(*plugWorld){wants("v1"), claimless("v1")}, actions: only9, waits: "PVCNotReady" + claimBy + "user", reason: "FailedPvcNotFound",
		},
		"a claim that its DataVolume has yet to make": {
			world: []func(*plugWorld){wants("v1"), populatedBy(cdiv1.Pending, "v1"), claimless("v1")}, actions: only9,
			waits: "PVCNotReady" + claimBy + "storage", reason: "FailedPvcNotFound",
		},
		"a claim that is being deleted": {
			world:   claim(func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = ptr.To(metav1.NewTime(plugNow)) }),
			actions: only9, waits: "PVCNotReady" + claimBy + "user", reason: "PVCNotReady",
		},
		"a claim that lost its volume": {
			world:   claim(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }),
			actions: only9, waits: "PVCNotReady" + claimBy + "user", reason: "PVCNotReady",
		},
		"an unbound claim that waits for a Pod: the attachment is it":      {world: pending("later"), actions: both},
		"an unbound claim that no Pod helps":                               {world: pending("now"), actions: only9, waits: "PVCNotReady" + claimBy + "storage", reason: "PVCNotReady"},
		"an unbound claim of a class that is none":                         {world: pending("none"), actions: only9, waits: "PVCNotReady" + claimBy + "storage", reason: "PVCNotReady"},
		"an unbound claim where classes are not known":                     {world: append(pending("now"), func(w *plugWorld) { w.s.Storage.Classes = nil }), actions: both},
		"a claim that was filled":                                          {world: []func(*plugWorld){wants("v1"), populatedBy(cdiv1.Succeeded, "v1")}, actions: both},
		"a claim that is filled when a Pod waits for it":                   {world: []func(*plugWorld){wants("v1"), populatedBy(cdiv1.PendingPopulation, "v1")}, actions: both},
		"a claim that is being filled":                                     {world: []func(*plugWorld){wants("v1"), populatedBy(cdiv1.ImportInProgress, "v1")}, actions: only9, waits: "PVCNotReady" + fillBy + "storage", reason: "PVCNotReady"},
		"a claim that could not be filled":                                 {world: []func(*plugWorld){wants("v1"), populatedBy(cdiv1.Failed, "v1")}, actions: only9, waits: "PVCNotReady" + fillBy + "user", reason: "PVCNotReady"},
		"a claim whose DataVolume is gone":                                 {world: []func(*plugWorld){wants("v1"), populatedBy(cdiv1.Succeeded, "v1"), noDataVolumes}, actions: only9, waits: "FailedDataVolumeImport" + fillBy + "user", reason: "FailedDataVolumeImport"},
		"a claim that waits for its first consumer":                        {world: []func(*plugWorld){wants("v1"), unplaced("v1")}, actions: "CreateTrigger launcher volumes=v1; " + only9, reason: "PVCNotReady"},
		"14 it has its trigger":                                            {world: []func(*plugWorld){wants("v1"), unplaced("v1"), has("t", "v1", temporary)}, actions: only9, waits: "PVCNotReady Pod ns/t by storage", reason: "PVCNotReady"},
		"14 it has two":                                                    {world: []func(*plugWorld){wants("v1"), unplaced("v1"), has("t", "v1", temporary), has("u", "v1", temporary, aged(time.Hour))}, actions: "DeletePod u grace=0s; " + only9, waits: "PVCNotReady Pod ns/t by storage", reason: "PVCNotReady"},
		"14 one claim behind two volumes has one trigger":                  {world: []func(*plugWorld){wants("v1"), unplaced("v1"), func(w *plugWorld) { w.s.VMI.Spec.Volumes = append(w.s.VMI.Spec.Volumes, claimVolume("v2", "c-v1")) }}, actions: "CreateTrigger launcher volumes=v1; " + only9, reason: "PVCNotReady"},
		"14 its trigger is on its way out":                                 {world: []func(*plugWorld){wants("v1"), unplaced("v1"), has("t", "v1", temporary, onItsWayOut)}, actions: only9, waits: "PodInTheWay Pod ns/t by kubelet", reason: "PVCNotReady"},
		"its trigger failed just now":                                      {world: []func(*plugWorld){wants("v1"), unplaced("v1"), has("t", "v1", temporary, aged(time.Second), inPhase(corev1.PodFailed))}, actions: only9, waits: "PodFailed Pod ns/t by controller", reason: "PVCNotReady"},
		"its trigger failed long ago":                                      {world: []func(*plugWorld){wants("v1"), unplaced("v1"), has("t", "v1", temporary, aged(time.Hour), inPhase(corev1.PodFailed))}, actions: "DeletePod t grace=0s; " + only9, waits: "PodInTheWay Pod ns/t by kubelet", reason: "PVCNotReady"},
		"its trigger has done its work":                                    {world: []func(*plugWorld){wants("v1"), has("t", "v1", temporary)}, actions: "DeletePod t grace=0s; " + both},
		"a trigger of a volume that was removed":                           {world: []func(*plugWorld){has("t", "v1", temporary, inPhase(corev1.PodPending))}, actions: "DeletePod t grace=0s; " + only9},
		"a trigger that is needed no more and on its way out":              {world: []func(*plugWorld){has("t", "v1", temporary, onItsWayOut)}, actions: only9},
		"a trigger of another Pod of the guest":                            {world: []func(*plugWorld){has("t", "v1", temporary, func(p *corev1.Pod) { p.OwnerReferences[0].UID = "uid-target" })}, actions: only9},
		"a trigger whose claim was named by two volumes of the guest once": {world: []func(*plugWorld){has("t", "v2=c-v1", temporary), wants("v1"), unplaced("v1")}, actions: only9, waits: "PVCNotReady Pod ns/t by storage", reason: "PVCNotReady"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newPlugWorld(append(test.world, wants("v9"))...)
			plan := w.decide()
			if got := verbs(plan.Actions); got != test.actions {
				t.Errorf("actions: %q, want %q", got, test.actions)
			}
			if got := reasons(plan.Waits); got != test.waits {
				t.Errorf("waits: %q, want %q", got, test.waits)
			}
			state := plan.Plugged["v1"]
			if state.Reason != test.reason || (state.Message == "") != (test.reason == "") {
				t.Errorf("reported %q, %q, want %q", state.Reason, state.Message, test.reason)
			}
		})
	}
}

func unplaced(volumes ...string) func(*plugWorld) {
	return populatedBy(cdiv1.WaitForFirstConsumer, volumes...)
}

func noDataVolumes(w *plugWorld) { clear(w.s.Storage.DataVolumes) }

// TestHotplugRetry covers a failed attachment: its replacement has the same name.
func TestHotplugRetry(t *testing.T) {
	failed := inPhase(corev1.PodFailed)
	since := func(age time.Duration) func(*plugWorld) {
		return func(w *plugWorld) {
			w.launcher.CreationTimestamp = metav1.NewTime(plugNow.Add(-age))
			w.s.Storage.Claims["c-v1"].CreationTimestamp = metav1.NewTime(plugNow.Add(-24 * time.Hour))
		}
	}
	claimed := func(age time.Duration) func(*plugWorld) {
		return func(w *plugWorld) {
			w.s.Storage.Claims["c-v1"].CreationTimestamp = metav1.NewTime(plugNow.Add(-age))
		}
	}
	tests := map[string]struct {
		world   []func(*plugWorld)
		actions string
		waits   string
		requeue time.Duration
	}{
		"the first at once after the launcher": {
			world: []func(*plugWorld){since(2 * time.Second), has("p1", "v1", failed, aged(time.Second))}, waits: "PodFailed Pod ns/p1 by controller", requeue: 9 * time.Second,
		},
		"one made a minute after it waits a minute": {
			world: []func(*plugWorld){since(80 * time.Second), has("p1", "v1", failed, aged(20*time.Second))}, waits: "PodFailed Pod ns/p1 by controller", requeue: 40 * time.Second,
		},
		"a young claim makes it less": {
			world: []func(*plugWorld){since(time.Hour), claimed(40 * time.Second), has("p1", "v1", failed, aged(20*time.Second))}, actions: "DeletePod p1 grace=0s", waits: "PodInTheWay Pod ns/p1 by kubelet",
		},
		"never more than five minutes": {
			world: []func(*plugWorld){since(24 * time.Hour), has("p1", "v1", failed, aged(20*time.Second))}, waits: "PodFailed Pod ns/p1 by controller", requeue: 280 * time.Second,
		},
		"one that lived long is replaced at once": {
			world: []func(*plugWorld){since(24 * time.Hour), has("p1", "v1", failed, aged(time.Hour))}, actions: "DeletePod p1 grace=0s", waits: "PodInTheWay Pod ns/p1 by kubelet",
		},
		"so is one that ended well": {
			world: []func(*plugWorld){since(24 * time.Hour), has("p1", "v1", inPhase(corev1.PodSucceeded), aged(time.Hour))}, actions: "DeletePod p1 grace=0s", waits: "PodInTheWay Pod ns/p1 by kubelet",
		},
		"one on its way out is waited for": {
			world: []func(*plugWorld){has("p1", "v1", onItsWayOut)}, waits: "PodInTheWay Pod ns/p1 by kubelet",
		},
		"one of another set is in nobody's way": {
			world: []func(*plugWorld){has("p1", "v1 v2", failed, aged(time.Second))}, actions: "CreateAttachment launcher volumes=v1; DeletePod p1 grace=0s",
		},
		"one that another took the place of": {
			world: []func(*plugWorld){has("p1", "v1", failed, aged(time.Second)), has("p2", "v1"), uses(v1.VolumeReady, "v1")}, actions: "DeletePod p1 grace=0s",
		},
		"what serves meanwhile stays": {
			world: []func(*plugWorld){wants("v2"), since(24 * time.Hour), has("p1", "v1"), has("p2", "v1 v2", failed, aged(time.Second))},
			waits: "PodFailed Pod ns/p2 by controller", requeue: 299 * time.Second,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan := newPlugWorld(append([]func(*plugWorld){wants("v1")}, test.world...)...).decide()
			if got := verbs(plan.Actions); got != test.actions {
				t.Errorf("actions: %q, want %q", got, test.actions)
			}
			if got := reasons(plan.Waits); got != test.waits {
				t.Errorf("waits: %q, want %q", got, test.waits)
			}
			var requeue time.Duration
			if plan.RequeueAt != nil {
				requeue = plan.RequeueAt.Sub(plugNow)
			}
			if requeue != test.requeue {
				t.Errorf("looks again after %s, want %s", requeue, test.requeue)
			}
		})
	}
}
