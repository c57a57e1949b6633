// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

// usesHot adds volumes to be hotplugged, and their bound claims.
func usesHot(volumes ...string) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) {
		for _, v := range volumes {
			reads(v, true)(s)
			exists(v, corev1.ClaimBound)(s)
		}
	}
}

// labelledByNode sets the SELinux context reported by the node.
func labelledByNode(g *v1.VirtualMachineInstance) { g.Status.SelinuxContext = "none" }

// attachment returns an attachment Pod, an hour old.
func attachment(name, owner string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Labels: texts{v1.AppLabel: "hotplug-disk"},
			CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
			OwnerReferences:   []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: owner, UID: types.UID("uid-" + owner), Controller: ptr.To(true)}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Ready: true}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func carries(volumes ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, v := range volumes {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: v, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v}}})
		}
	}
}

func attached(pods ...*corev1.Pod) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) { s.Attachments = append(s.Attachments, pods...) }
}

// brings returns an attachment of the launcher Pod with volumes.
func brings(name string, volumes ...string) *corev1.Pod {
	return attachment(name, "p", carries(volumes...))
}

// plugging is a VMI that runs in Pod p.
func plugging(more ...func(*vmi.Snapshot)) []func(*vmi.Snapshot) {
	return append(given(of(v1.Running, owned, labelledByNode), with(pod("p"))), more...)
}

// reports adds the status of a hotplugged volume.
func reports(volume string, phase v1.VolumePhase) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) {
		s.VMI.Status.VolumeStatus = append(s.VMI.Status.VolumeStatus, v1.VolumeStatus{Name: volume, Phase: phase, HotplugVolume: &v1.HotplugVolumeStatus{}})
	}
}

func specPlugging() specRows {
	const created = "Normal/SuccessfulCreate"
	is := func(do, events, waits string, more ...func(*vmi.Snapshot)) specCase {
		return specCase{given: plugging(more...), phase: v1.Running, conditions: runs, do: do, events: events, waits: waits}
	}
	dump := func(s *vmi.Snapshot) {
		exists("dump", corev1.ClaimBound)(s)
		s.VMI.Spec.Volumes = append(s.VMI.Spec.Volumes, v1.Volume{Name: "dump", VolumeSource: v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{
			PersistentVolumeClaimVolumeSource: v1.PersistentVolumeClaimVolumeSource{
				PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "dump"}}}}})
	}
	both := func(s *vmi.Snapshot) { has("v1")(s.Pods[0]) }
	utility := func(s *vmi.Snapshot) {
		exists("backup", corev1.ClaimBound)(s)
		s.VMI.Spec.UtilityVolumes = []v1.UtilityVolume{{Name: "backup", PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "backup"}}}
	}
	return specRows{
		"88 nothing wanted, no Pod":             is("", "", ""),
		"88 what is wanted is brought":          is("", "", "", usesHot("v1"), reports("v1", v1.VolumeReady), attached(brings("a", "v1"))),
		"88 two are wanted, the Pod brings one": is("CreateAttachment p volumes=v1,v2", "", "", usesHot("v1", "v2"), reports("v1", v1.VolumeReady), attached(brings("a", "v1"))),
		"88 one is wanted, there are two Pods":  is("DeletePod b grace=0s", "", "", usesHot("v1"), reports("v1", v1.VolumeReady), attached(brings("a", "v1"), attachment("b", "p", carries("v1"), aged(2*time.Hour)))),
		"88 one of two is another":              is("CreateAttachment p volumes=v1,v3", "", "", usesHot("v1", "v3"), reports("v1", v1.VolumeReady), attached(brings("a", "v1", "v2"))),
		"88 nothing is wanted, there is a Pod":  is("DeletePod a grace=0s", "", "", attached(brings("a", "v1"))),
		"88 one is wanted, there is no Pod":     is("CreateAttachment p volumes=v1", "", "", usesHot("v1")),
		"88 the Pod has other volumes beside (better: only claims count)": is("", "", "", usesHot("v1"), reports("v1", v1.VolumeReady),
			attached(attachment("a", "p", carries("v1"), func(p *corev1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "added"}) }))),
		"89 a volume that the guest's Pod has":        is("CreateAttachment p volumes=v2", "", "", usesHot("v1", "v2"), both),
		"89 a memory dump":                            is("CreateAttachment p volumes=dump", "", "", dump),
		"89 a utility volume":                         is("CreateAttachment p volumes=backup", "", "", utility),
		"95 the Pod that brings it is on its way out": is("", "", "PodInTheWay", usesHot("v1"), attached(attachment("a", "p", carries("v1"), terminating))),
		"95 there is another":                         is("", created, "VolumeNotMounted", usesHot("v1"), reports("v1", v1.VolumeBound), attached(attachment("a", "p", carries("v1"), terminating), brings("b", "v1"))),
		"100 volumes in a row (better: what comes is gathered for a time)": {
			given: plugging(usesHot("v1", "v2"), reports("v1", v1.VolumeReady), attached(attachment("a", "p", carries("v1"), aged(time.Second)))),
			phase: v1.Running, conditions: runs, waits: "CollectingVolumes", requeue: 2 * time.Second},
	}
}

func aged(age time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-age)) }
}

func specUnplugging() specRows {
	is := func(do, waits, volumes string, more ...func(*vmi.Snapshot)) specCase {
		return specCase{given: plugging(more...), phase: v1.Running, conditions: runs, do: do, waits: waits, fields: texts{"status volumeStatus": volumes}}
	}
	carried := attached(brings("a", "v1"))
	status := func(phase string) string {
		return `[{"hotplugVolume":{"attachPodName":"a","attachPodUID":"uid-a"},"name":"v1",` + phase + `"target":""}]`
	}
	kept := func(phase v1.VolumePhase) specCase {
		return is("", "VolumeInUse", status(`"phase":"`+string(phase)+`",`), reports("v1", phase), carried)
	}
	deletedPod := is("", "", `[{"hotplugVolume":{"attachPodName":"a","attachPodUID":"uid-a"},"message":"attachment Pod a of volume v1 was deleted","name":"v1","phase":"Detaching","reason":"SuccessfulDelete","target":""}]`,
		reports("v1", v1.HotplugVolumeDetaching), attached(attachment("a", "p", carries("v1"), terminating)))
	deletedPod.events, deletedPod.settled = "Normal/SuccessfulDelete", true
	stale := kept(v1.VolumeReady)
	stale.given, stale.waits = plugging(reports("v1", v1.VolumeReady)), ""
	stale.fields = texts{"status volumeStatus": `[{"hotplugVolume":{},"name":"v1","phase":"Ready","target":""}]`}
	return specRows{
		"91 a volume is taken that the guest never had":                             is("DeletePod a grace=0s", "", status(`"phase":"Detaching",`), reports("v1", ""), carried),
		"91 one that its node has in the domain":                                    kept(v1.VolumeReady),
		"91 one that its node has mounted":                                          kept(v1.HotplugVolumeMounted),
		"91 one that its node has unmounted":                                        is("DeletePod a grace=0s", "", status(`"phase":"Detaching",`), reports("v1", v1.HotplugVolumeUnMounted), carried),
		"91 its Pod is on its way out (better: it is reported once)":                deletedPod,
		"92 the Pod is gone, phase Detaching":                                       is("", "", "-", reports("v1", v1.HotplugVolumeDetaching)),
		"92 the Pod is gone, no phase":                                              is("", "", "-", reports("v1", "")),
		"92 the Pod is gone, phase UnMountedFromPod":                                is("", "", "-", reports("v1", v1.HotplugVolumeUnMounted)),
		"92 the Pod is gone, phase Ready (better: it stays until the node lets go)": stale,
	}
}

func specCleanUp() specRows {
	old := func(volumes ...string) *corev1.Pod {
		return attachment("old", "p", carries(volumes...), aged(2*time.Hour))
	}
	is := func(do, waits string, more ...func(*vmi.Snapshot)) specCase {
		return specCase{given: plugging(more...), phase: v1.Running, conditions: runs, do: do, waits: waits}
	}
	ready := func(volumes ...string) func(*vmi.Snapshot) {
		return func(s *vmi.Snapshot) {
			for _, v := range volumes {
				reports(v, v1.VolumeReady)(s)
			}
		}
	}
	starts := attachment("new", "p", carries("v1", "v2"), podPhase(corev1.PodPending))
	unready := func(s *vmi.Snapshot) {
		usesHot("v2")(s)
		s.Storage.Claims["v2"].Status.Phase = corev1.ClaimLost
	}
	return specRows{
		"94 an old Pod whose only volume is Detaching":                    is("DeletePod old grace=0s", "", usesHot("v2"), ready("v2"), reports("v1", v1.HotplugVolumeDetaching), attached(old("v1"), brings("new", "v2"))),
		"94 an old Pod with a volume of the spec, until the new one runs": is("", "AttachmentPodPending", usesHot("v1", "v2"), ready("v1"), reports("v2", v1.HotplugVolumeAttachedToNode), attached(old("v1"), starts)),
		"94 an old Pod with a volume of the spec, once the new one runs":  is("DeletePod old grace=0s", "", usesHot("v1", "v2"), ready("v1", "v2"), attached(old("v1"), brings("new", "v1", "v2"))),
		"94 an old Pod with a volume that is Ready":                       is("", "VolumeInUse", usesHot("v2"), ready("v1", "v2"), attached(old("v1"), brings("new", "v2"))),
		"94 an old Pod with a volume that is Ready and one Detaching":     is("", "VolumeInUse", usesHot("v2"), ready("v1", "v2"), reports("v3", v1.HotplugVolumeDetaching), attached(old("v1", "v3"), brings("new", "v2"))),
		"94 no volume is ready: all go":                                   is("DeletePod new grace=0s; DeletePod old grace=0s", "PVCNotReady", unready, attached(old("v1"), brings("new", "v3"))),
	}
}
