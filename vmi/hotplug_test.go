// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// TestHotplugPods covers the creation and deletion of attachments.
func TestHotplugPods(t *testing.T) {
	const create1 = "CreateAttachment launcher volumes=v1"
	const create2 = "CreateAttachment launcher volumes=v1,v2"
	tests := map[string]struct {
		world    []func(*plugWorld)
		actions  string
		carriers string
		waits    string
		requeue  time.Duration
	}{
		"88 (∅,∅): nothing": {},
		"88 ({1},{1}): nothing": {
			world:    []func(*plugWorld){wants("v1"), has("p1", "v1"), uses(v1.VolumeReady, "v1")},
			carriers: "v1=p1",
		},
		"88 ({1,2},1 pod): one Pod with both, the other stays": {
			world:    []func(*plugWorld){wants("v1", "v2"), has("p1", "v1"), uses(v1.VolumeReady, "v1")},
			actions:  create2,
			carriers: "v1=p1 v2=",
		},
		"88 ({1},2 pods): the older one goes": {
			world:    []func(*plugWorld){wants("v1"), has("p1", "v1", aged(time.Hour)), has("p2", "v1"), uses(v1.VolumeReady, "v1")},
			actions:  "DeletePod p1 grace=0s",
			carriers: "v1=p2",
		},
		"88 ({1,3},{1,2}): another": {
			world:    []func(*plugWorld){wants("v1", "v3"), has("p1", "v1 v2")},
			actions:  "CreateAttachment launcher volumes=v1,v3",
			carriers: "v1=p1 -v2=p1 v3=",
		},
		"88 (∅,1 pod): it goes": {
			world:    []func(*plugWorld){has("p1", "v1")},
			actions:  "DeletePod p1 grace=0s",
			carriers: "-v1=p1",
		},
		"88 (1 volume,∅): the first is created at once": {
			world: []func(*plugWorld){wants("v1")}, actions: create1, carriers: "v1=",
		},
		"88 ({1},2 pods): one that runs is better than one that may never": {
			world:   []func(*plugWorld){wants("v1"), has("p1", "v1"), has("p2", "v1", aged(time.Second), inPhase(corev1.PodPending))},
			actions: "DeletePod p2 grace=0s", carriers: "v1=p1",
		},
		"12 volumes that others put into the Pod are no difference": {
			world:    []func(*plugWorld){wants("v1"), has("p1", "v1", token), uses(v1.VolumeReady, "v1")},
			carriers: "v1=p1",
		},
		"12 a Pod without a token fits": {
			world: []func(*plugWorld){wants("v1"), uses(v1.VolumeReady, "v1"), has("p1", "", func(p *corev1.Pod) {
				p.Spec.Volumes = nil
				brings(p, "v1")
			})},
			carriers: "v1=p1",
		},
		"12 the same name with another claim does not fit": {
			world: []func(*plugWorld){wants("v1"), has("p1", "v1=old")}, actions: create1 + "; DeletePod p1 grace=0s", carriers: "v1=",
		},
		"a swapped claim that the guest uses keeps its Pod": {
			world:    []func(*plugWorld){wants("v1"), has("p1", "v1=old", aged(time.Hour)), has("p2", "v1"), uses(v1.VolumeReady, "v1")},
			carriers: "v1=p2", waits: "VolumeInUse Pod ns/p1 by node",
		},
		"a swapped claim that the guest uses is reported with its Pod": {
			world:    []func(*plugWorld){wants("v1"), has("p1", "v1=old"), uses(v1.VolumeReady, "v1")},
			actions:  create1,
			carriers: "v1=p1", waits: "VolumeInUse Pod ns/p1 by node",
		},
		"91 removed, and of its Pods the one that stays is reported": {
			world:    []func(*plugWorld){has("p1", "v1", aged(time.Hour)), has("p2", "v1", onItsWayOut), uses(v1.VolumeReady, "v1")},
			carriers: "-v1=p1", waits: "VolumeInUse Pod ns/p1 by node",
		},
		"91 removed, and its last Pod is on its way out": {
			world: []func(*plugWorld){has("p1", "v1", onItsWayOut), uses(v1.HotplugVolumeUnMounted, "v1")}, carriers: "-v1=p1",
		},
		"91 removed and not used: deleted": {
			world: []func(*plugWorld){has("p1", "v1"), uses("", "v1")}, actions: "DeletePod p1 grace=0s", carriers: "-v1=p1",
		},
		"91 removed and mounted: kept": {
			world: []func(*plugWorld){has("p1", "v1"), uses(v1.HotplugVolumeMounted, "v1")}, carriers: "-v1=p1", waits: "VolumeInUse Pod ns/p1 by node",
		},
		"91 removed while the guest's memory is dumped into it: kept": {
			world: []func(*plugWorld){has("p1", "v1"), uses(v1.MemoryDumpVolumeInProgress, "v1")}, carriers: "-v1=p1", waits: "VolumeInUse Pod ns/p1 by node",
		},
		"91 removed and ready: kept": {
			world: []func(*plugWorld){has("p1", "v1"), uses(v1.VolumeReady, "v1")}, carriers: "-v1=p1", waits: "VolumeInUse Pod ns/p1 by node",
		},
		"91 removed and unmounted: deleted": {
			world: []func(*plugWorld){has("p1", "v1"), uses(v1.HotplugVolumeUnMounted, "v1")}, actions: "DeletePod p1 grace=0s", carriers: "-v1=p1",
		},
		"92 removed and its Pod gone: it is not reported": {
			world: []func(*plugWorld){uses(v1.HotplugVolumeUnMounted, "v1")},
		},
		"36 a status without hotplugVolume": {
			world: []func(*plugWorld){has("p1", "v1"), func(w *plugWorld) {
				w.s.VMI.Status.VolumeStatus = []v1.VolumeStatus{{Name: "v1", Phase: v1.VolumeReady}}
			}}, carriers: "-v1=p1", waits: "VolumeInUse Pod ns/p1 by node",
		},
		"94 its only volume is detaching: deleted": {
			world:   []func(*plugWorld){wants("v2"), has("p1", "v1", aged(0)), uses(v1.HotplugVolumeDetaching, "v1")},
			actions: "CreateAttachment launcher volumes=v2; DeletePod p1 grace=0s", carriers: "-v1=p1 v2=",
		},
		"94 a volume is in the spec: kept until the other runs": {
			world:    []func(*plugWorld){wants("v1", "v2"), has("p1", "v1"), has("p2", "v1 v2", aged(time.Second), inPhase(corev1.PodPending))},
			carriers: "v1=p1 v2=p2", waits: "AttachmentPodPending Pod ns/p2 by kubelet",
		},
		"94 the other runs: deleted": {
			world:   []func(*plugWorld){wants("v1", "v2"), has("p1", "v1"), has("p2", "v1 v2", aged(time.Second)), uses(v1.VolumeReady, "v1", "v2")},
			actions: "DeletePod p1 grace=0s", carriers: "v1=p2 v2=p2",
		},
		"94 a removed volume is ready: kept though another runs": {
			world:    []func(*plugWorld){wants("v2"), has("p1", "v1"), has("p2", "v2", aged(time.Second)), uses(v1.VolumeReady, "v1", "v2")},
			carriers: "-v1=p1 v2=p2", waits: "VolumeInUse Pod ns/p1 by node",
		},
		"94 a removed volume is ready: all that carry it are kept": {
			world:    []func(*plugWorld){wants("v2"), has("p1", "v1 v2", aged(time.Hour)), has("p2", "v1 v2 v3"), uses(v1.VolumeReady, "v1"), has("p3", "v2", aged(time.Second))},
			carriers: "-v1=p2 v2=p3 -v3=p2", waits: "VolumeInUse Pod ns/p2 by node; VolumeInUse Pod ns/p1 by node",
		},
		"94 mixed, one detaching and one in the spec: kept": {
			world:    []func(*plugWorld){wants("v2", "v3"), has("p1", "v1 v2"), uses(v1.HotplugVolumeDetaching, "v1")},
			actions:  "CreateAttachment launcher volumes=v2,v3",
			carriers: "-v1=p1 v2=p1 v3=",
		},
		"94 exactly one is kept, the newest": {
			world: []func(*plugWorld){wants("v1", "v2"), has("p0", "v1 v0", aged(2*time.Hour)), has("p1", "v1", aged(time.Hour)),
				has("p2", "v1 v2", inPhase(corev1.PodPending))},
			actions: "DeletePod p0 grace=0s", carriers: "-v0=p0 v1=p1 v2=p2", waits: "AttachmentPodPending Pod ns/p2 by kubelet",
		},
		"94 no ready volumes: all go": {
			world:   []func(*plugWorld){has("p1", "v1", aged(time.Hour)), has("p2", "v2 v3")},
			actions: "DeletePod p2 grace=0s; DeletePod p1 grace=0s", carriers: "-v1=p1 -v2=p2 -v3=p2",
		},
		"94 only what is not ready and what was removed: it goes": {
			world:   []func(*plugWorld){wants("v1"), has("p1", "v1 v2"), claimless("v1")},
			actions: "DeletePod p1 grace=0s", carriers: "v1=p1 -v2=p1", waits: "PVCNotReady PersistentVolumeClaim ns/c-v1 by user",
		},
		"95 a Pod on its way out is not the active one": {
			world:    []func(*plugWorld){wants("v1"), has("p1", "v1", aged(time.Hour)), has("p2", "v1", onItsWayOut), uses(v1.VolumeReady, "v1")},
			carriers: "v1=p1",
		},
		"11 a Pod is replaced when it is old enough": {
			world:   []func(*plugWorld){wants("v1", "v2"), has("p1", "v1", aged(time.Second))},
			requeue: 2 * time.Second, carriers: "v1=p1 v2=", waits: "CollectingVolumes Pod ns/p1 by controller",
		},
		"11 one that is only pending waits for its turn too": {
			world:   []func(*plugWorld){wants("v1", "v2", "v3"), has("p1", "v1"), has("p2", "v1 v2", aged(time.Second), inPhase(corev1.PodPending))},
			requeue: 2 * time.Second, carriers: "v1=p1 v2=p2 v3=", waits: "CollectingVolumes Pod ns/p2 by controller",
		},
		"11 a pending one that is old enough goes": {
			world:   []func(*plugWorld){wants("v1", "v2", "v3"), has("p1", "v1"), has("p2", "v1 v2", aged(3*time.Second), inPhase(corev1.PodPending))},
			actions: "CreateAttachment launcher volumes=v1,v2,v3; DeletePod p2 grace=0s", carriers: "v1=p1 v2=p2 v3=",
		},
		"11 the removal of one waits no longer than that": {
			world:   []func(*plugWorld){wants("v1"), has("p1", "v1 v2", aged(time.Second))},
			requeue: 2 * time.Second, carriers: "v1=p1 -v2=p1", waits: "CollectingVolumes Pod ns/p1 by controller",
		},
		"11 the removal of all does not wait": {
			world: []func(*plugWorld){has("p1", "v1 v2", aged(0))}, actions: "DeletePod p1 grace=0s", carriers: "-v1=p1 -v2=p1",
		},
		"11 a Pod of a clock hours ahead is old": {
			world: []func(*plugWorld){wants("v1", "v2"), has("p1", "v1", aged(-time.Hour))}, actions: create2, carriers: "v1=p1 v2=",
		},
		"13 a volume that is not ready any more keeps its Pod": {
			world:    []func(*plugWorld){wants("v1"), has("p1", "v1"), uses(v1.HotplugVolumeMounted, "v1"), claimless("v1")},
			carriers: "v1=p1", waits: "PVCNotReady PersistentVolumeClaim ns/c-v1 by user",
		},
		"13 nor does it lose it to another": {
			world: []func(*plugWorld){wants("v1", "v2"), has("p1", "v1", aged(time.Hour)), has("p2", "v2"),
				uses(v1.HotplugVolumeMounted, "v1", "v2"), claimless("v1")},
			carriers: "v1=p1 v2=p2", waits: "PVCNotReady PersistentVolumeClaim ns/c-v1 by user",
		},
		"an attachment of another Pod of the guest is not touched": {
			world: []func(*plugWorld){has("p1", "v1", func(p *corev1.Pod) { p.OwnerReferences[0].UID = "uid-target" })},
		},
		"a Pod that does not say it is an attachment is not touched": {
			world: []func(*plugWorld){has("p1", "v1", func(p *corev1.Pod) { p.Labels = nil })},
		},
		"without the SELinux context nothing can be made": {
			world: []func(*plugWorld){wants("v1"), func(w *plugWorld) { w.s.VMI.Status.SelinuxContext = "" }}, carriers: "v1=",
			waits: "SELinuxContextUnknown VirtualMachineInstance ns/guest by node",
		},
		"without the SELinux context neither attachment nor trigger, reported once": {
			world: []func(*plugWorld){wants("v1", "v2"), unplaced("v2"), func(w *plugWorld) { w.s.VMI.Status.SelinuxContext = "" }}, carriers: "v1= v2=",
			waits: "SELinuxContextUnknown VirtualMachineInstance ns/guest by node",
		},
		"a launcher on its way out gets nothing": {
			world: []func(*plugWorld){wants("v1"), func(w *plugWorld) { onItsWayOut(w.launcher) }}, carriers: "v1=",
		},
		"a launcher that is not ready gets nothing": {
			world: []func(*plugWorld){wants("v1"), func(w *plugWorld) { w.launcher.Status.Phase = corev1.PodPending }}, carriers: "v1=",
		},
		"own writes that were not seen": {
			world: []func(*plugWorld){wants("v1"), func(w *plugWorld) { w.s.Pending = []string{"Pod ns/p1"} }}, carriers: "v1=",
		},
		"on the node and not in the guest": {
			world:    []func(*plugWorld){wants("v1"), has("p1", "v1"), uses(v1.HotplugVolumeAttachedToNode, "v1")},
			carriers: "v1=p1", waits: "VolumeNotMounted Pod ns/launcher by node",
		},
		"the scheduler finds no place": {
			world: []func(*plugWorld){wants("v1"), has("p1", "v1", inPhase(corev1.PodPending), func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no room"}}
			})},
			carriers: "v1=p1", waits: "AttachmentPodPending Pod ns/p1 by scheduler",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newPlugWorld(test.world...)
			plan := w.decide()
			for _, c := range [][3]string{
				{"actions", verbs(plan.Actions), test.actions},
				{"plugged", carriers(plan.Plugged), test.carriers},
				{"waits", reasons(plan.Waits), test.waits},
			} {
				if c[1] != c[2] {
					t.Errorf("%s:\n%q, want\n%q", c[0], c[1], c[2])
				}
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

// claimless removes the claims of volumes.
func claimless(volumes ...string) func(*plugWorld) {
	return func(w *plugWorld) {
		for _, v := range volumes {
			delete(w.s.Storage.Claims, "c-"+v)
		}
	}
}

// TestUnplug covers VMIs in a final phase.
func TestUnplug(t *testing.T) {
	end := func(phase v1.VirtualMachineInstancePhase) func(*plugWorld) {
		return func(w *plugWorld) { w.s.VMI.Status.Phase = phase }
	}
	deleted := func(w *plugWorld) { w.s.VMI.DeletionTimestamp = ptr.To(metav1.NewTime(plugNow)) }
	ended := func(w *plugWorld) { w.launcher.Status.Phase = corev1.PodFailed }
	inPod := func(w *plugWorld) { w.s.Config.PodHoldsDomain = true }
	const both = "DeletePod p1 grace=0s; DeletePod t1 grace=0s"
	tests := map[string]struct {
		world []func(*plugWorld)
		want  string
	}{
		"final: all go": {[]func(*plugWorld){end(v1.Succeeded)}, both},
		"deleting and used: it shuts down with disks": {[]func(*plugWorld){deleted}, "DeletePod t1 grace=0s"},
		"deleting and not used":                       {[]func(*plugWorld){deleted, func(w *plugWorld) { w.s.VMI.Status.VolumeStatus = nil }}, both},
		"deleting before a node had the guest": {[]func(*plugWorld){deleted, func(w *plugWorld) {
			w.s.VMI.Labels, w.s.VMI.Status.NodeName = nil, ""
			w.s.VMI.Status.Phase = v1.Scheduling
		}}, both},
		"deleting with a lease that cannot be read": {[]func(*plugWorld){deleted, func(w *plugWorld) {
			w.s.VMI.Annotations = map[string]string{handoff.Annotation: "{"}
		}}, "DeletePod t1 grace=0s"},
		"offered and used: a stock node may be starting it": {[]func(*plugWorld){deleted, end(v1.Scheduled)}, "DeletePod t1 grace=0s"},
		"those on their way out are left alone": {[]func(*plugWorld){end(v1.Failed), func(w *plugWorld) {
			for _, p := range w.s.Attachments {
				onItsWayOut(p)
			}
		}}, ""},
		"its Pod has ended and held the guest":              {[]func(*plugWorld){ended, inPod}, both},
		"its Pod has ended and the guest may be beside it":  {[]func(*plugWorld){ended}, "DeletePod t1 grace=0s"},
		"those beside a migration's source that has ended":  {[]func(*plugWorld){ended, moved}, both},
		"those beside a migration's source that still runs": {[]func(*plugWorld){moved}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newPlugWorld(append([]func(*plugWorld){has("p1", "v1"), has("t1", "v2", temporary), uses(v1.VolumeReady, "v1"), wants("v1")}, test.world...)...)
			plan := hotplug(w.s, w.s.Launcher(), plugNow, 0)
			if got := verbs(plan.Actions); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// moved makes the VMI one that was migrated to node-b, where its volumes are as well.
func moved(w *plugWorld) {
	target := plugPod("target", w.s.VMI, "VirtualMachineInstance", plugNow.Add(-time.Minute))
	target.Spec.NodeName = "node-b"
	w.s.Pods = append(w.s.Pods, target)
	w.s.VMI.Status.NodeName, w.s.VMI.Labels = "node-b", map[string]string{v1.NodeNameLabel: "node-b"}
	source := w.launcher
	w.launcher = target
	has("p-target", "v1")(w)
	w.launcher = source
}
