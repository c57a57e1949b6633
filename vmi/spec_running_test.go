// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
)

var owned = lease(handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"})

// rested replaces the VMI by its settled state.
func rested(s *vmi.Snapshot) { s.VMI = vmi.Decide(*s, now).VMI }

// quiet is a row in which nothing changes on a settled VMI.
func quiet(phase v1.VirtualMachineInstancePhase, conditions, waits string, given ...func(*vmi.Snapshot)) specCase {
	return specCase{given: append(given, rested), phase: phase, conditions: conditions, waits: waits, settled: true}
}

func specHanded() specRows {
	rows := specRows{}
	for _, phase := range podPhases {
		down := phase == corev1.PodSucceeded || phase == corev1.PodFailed
		row := quiet(v1.Scheduled, notYet, "GuestNotRunning", of(v1.Scheduled, owned), with(pod("p", podPhase(phase))))
		if down {
			row.conditions, row.waits = terminatingPod, "PodTerminating"
		}
		rows["52 scheduled, its Pod in phase "+string(phase)] = row
	}
	for _, phase := range []v1.VirtualMachineInstancePhase{v1.Scheduled, v1.Running} {
		for name, change := range map[string]func(*v1.VirtualMachineInstance){"of virtloom": owned, "of KubeVirt": on("node-a")} {
			row := specCase{given: given(of(phase, change)), phase: v1.Failed, conditions: noPodYet,
				fields: texts{"status phaseTransitionTimestamps": fmt.Sprintf(entered, "Failed")}}
			if strings.HasSuffix(name, "virtloom") {
				row.waits = "GuestEnding"
			}
			rows[fmt.Sprintf("53 %s without a Pod, by a node agent %s (better: the phase has its time stamp)", phase, name)] = row
		}
	}
	rows["53 running, and only a target of a migration is left"] = specCase{
		given: given(of(v1.Running, owned), with(pod("t", target))), phase: v1.Failed, conditions: noPodYet, waits: "GuestEnding"}
	rows["53 a Pod that may be unseen is not missed"] = specCase{
		given: given(of(v1.Running, owned), func(s *vmi.Snapshot) { s.Pending = []string{"x"} }), phase: v1.Running, waits: "WaitingForCache"}
	return rows
}

func specRunning() specRows {
	owned := of(v1.Running, owned)
	bare := func(p *corev1.Pod) { p.Status.Conditions = p.Status.Conditions[1:] }
	unready := func(p *corev1.Pod) {
		p.Status.Conditions[0] = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady"}
	}
	image := func(configured string) func(*vmi.Snapshot) {
		return set(func(c *vmi.Config) { c.LauncherImage = configured })
	}
	outdated := func(s *vmi.Snapshot) { s.VMI.Labels[v1.OutdatedLauncherImageLabel] = "" }
	outdatedPod := pod("p", func(p *corev1.Pod) { p.Labels[v1.OutdatedLauncherImageLabel] = "" })
	finalizers := func(all ...string) func(*vmi.Snapshot) { return func(s *vmi.Snapshot) { s.VMI.Finalizers = all } }
	is := func(conditions string, fields texts, given ...func(*vmi.Snapshot)) specCase {
		return specCase{given: given, phase: v1.Running, conditions: conditions, fields: fields, settled: true}
	}
	kept := `["other","kubevirt.io/foregroundDeleteVirtualMachine"]`
	return specRows{
		"55 its Pod is ready":     is(runs, nil, owned, with(pod("p"))),
		"55 its Pod is not ready": is("Ready=False/ContainersNotReady", nil, owned, with(pod("p", unready))),
		"55 its Pod is on its way out": {given: given(owned, with(pod("p", terminating))), phase: v1.Running, conditions: terminatingPod,
			waits: "PodTerminating", settled: true},
		"55 its Pod says nothing":     is("Ready=False/PodConditionMissing", nil, owned, with(pod("p", bare))),
		"56 the Pods and their nodes": is(runs, texts{"status activePods": `{"uid-p":"node-a","uid-t":"node-b"}`}, owned, moving, with(pod("p"), pod("t", target))),
		"56 also one that has ended":  is(runs, texts{"status activePods": `{"uid-o":"node-b","uid-p":"node-a"}`}, owned, moving, with(pod("p"), pod("o", target, podPhase(corev1.PodFailed)))),
		"58 its Pod has another image than it would have now": {
			given: given(owned, with(pod("p")), image("launcher:2")), phase: v1.Running, conditions: runs,
			do: "PatchPod p labels[kubevirt.io/outdatedLauncherImage=]", fields: texts{"status launcherContainerImageVersion": "launcher:1",
				"metadata labels": `{"kubevirt.io/nodeName":"node-a","kubevirt.io/outdatedLauncherImage":""}`}},
		"58 its Pod has that image": {
			given: given(owned, outdated, with(outdatedPod), image("launcher:1")), phase: v1.Running, conditions: runs,
			do: "PatchPod p labels[kubevirt.io/outdatedLauncherImage-]", fields: texts{"status launcherContainerImageVersion": "launcher:1",
				"metadata labels": `{"kubevirt.io/nodeName":"node-a"}`}},
		"130 the image is another since the controller was restarted, and the Pod is known to be outdated": is(runs,
			texts{"metadata labels": `{"kubevirt.io/nodeName":"node-a","kubevirt.io/outdatedLauncherImage":""}`}, owned, outdated, with(outdatedPod), image("launcher:2")),
		"130 the guest is let alone beside that": {
			given: given(owned, with(pod("p")), rested, image("launcher:2")), phase: v1.Running, conditions: runs,
			do: "PatchPod p labels[kubevirt.io/outdatedLauncherImage=]", fields: texts{"status nodeName": "node-a"}},
		"59 the old finalizer": is(runs, texts{"metadata finalizers": kept}, owned, with(pod("p")), finalizers("other", "foregroundDeleteVirtualMachine")),
		"59 both finalizers (better: it is there once)": is(runs, texts{"metadata finalizers": kept}, owned, with(pod("p")),
			finalizers("foregroundDeleteVirtualMachine", "other", v1.VirtualMachineInstanceFinalizer)),
		"73 what the hypervisor needs": is(runs, texts{"status memory": `{"memoryOverhead":"256Mi"}`}, owned,
			with(pod("p", annotated("kubevirt.io/memory-overhead-bytes", "268435456"))), reporting),
		"73 the Pod does not say": is(runs, texts{"status memory": `{"memoryOverhead":"1Mi"}`}, owned, with(pod("p")), reporting, needs("1Mi")),
		"73 nobody wants to know": is(runs, texts{"status memory": "-"}, owned, with(pod("p", annotated("kubevirt.io/memory-overhead-bytes", "268435456")))),
		"73b (better: it is stored while the guest runs)": is(runs, texts{"status memory": `{"memoryOverhead":"256Mi"}`}, owned,
			with(pod("p", annotated("kubevirt.io/memory-overhead-bytes", "268435456"))), reporting, needs("1Mi")),
	}
}

func reporting(s *vmi.Snapshot) { s.Config.ReportOverhead = true }

// needs sets the stored memory overhead.
func needs(amount string) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) {
		q := resource.MustParse(amount)
		s.VMI.Status.Memory = &v1.MemoryStatus{MemoryOverhead: &q}
	}
}

func specPodSync() specRows {
	synced := func(labels, annotations texts, keys ...string) func(*vmi.Snapshot) {
		return func(s *vmi.Snapshot) {
			s.VMI = guest(v1.Running, owned)
			for key, value := range labels {
				s.VMI.Labels[key] = value
			}
			for key, value := range annotations {
				s.VMI.Annotations[key] = value
			}
			s.Config.SyncLabels, s.Config.SyncAnnotations = keys, keys
		}
	}
	labelledPod := func(labels texts) *corev1.Pod {
		return pod("p", func(p *corev1.Pod) {
			for key, value := range labels {
				p.Labels[key] = value
			}
		})
	}
	is := func(do string, given ...func(*vmi.Snapshot)) specCase {
		return specCase{given: given, phase: v1.Running, conditions: runs, do: do}
	}
	green := texts{"team/a": "green"}
	plain := pod("p", func(p *corev1.Pod) { p.Annotations = nil })
	starting := pod("p", func(p *corev1.Pod) { p.Annotations = nil }, statuses(container("compute", true), container("sidecar", false)))
	return specRows{
		"61 a ready Pod lacks request-evict-only":    is("PatchPod p annotations["+evictOnly+"=]", synced(nil, nil), with(plain)),
		"61 a Pod that is not ready":                 is("", synced(nil, nil), with(starting)),
		"62 a label that differs, and an annotation": is("PatchPod p labels[team/a=green] annotations[team/a=green]", synced(green, green, "team/a"), with(labelledPod(texts{"team/a": "red"}))),
		"62 the same":                                  is("", synced(green, nil, "team/a"), with(labelledPod(green))),
		"62 the guest lacks it":                        is("PatchPod p labels[team/a-]", synced(nil, nil, "team/a"), with(labelledPod(green))),
		"62 nobody asked for it":                       is("", synced(green, green), with(pod("p"))),
		"62 a prefix":                                  is("PatchPod p labels[team/a=green,team/b-]", synced(green, nil, "team/*"), with(labelledPod(texts{"team/b": "red"}))),
		"62 a star alone counts for nothing":           is("", synced(green, green, "*", ""), with(pod("p"))),
		"62 what is always synchronized":               is("PatchPod p annotations["+evict+"=true,"+noEvict+"=true]", synced(nil, texts{evict: "true", noEvict: "true"}), with(pod("p"))),
		"62 the node that a guest was moved to":        is("PatchPod p labels[kubevirt.io/nodeName=node-a]", synced(nil, nil), with(labelledPod(texts{"kubevirt.io/nodeName": "node-b"}))),
		"62 a Pod that is on its way out is let alone": {given: given(synced(green, green, "team/a"), with(pod("p", terminating))), phase: v1.Running, conditions: terminatingPod, waits: "PodTerminating"},
	}
}

func specEviction() specRows {
	const both = "EvictionRequested=True/EvictionRequested " + runs
	marked := func(g *v1.VirtualMachineInstance) { g.Status.EvacuationNodeName = "node-a" }
	moved := func(g *v1.VirtualMachineInstance) { g.Status.EvacuationNodeName = "node-b" }
	was := func(g *v1.VirtualMachineInstance) {
		g.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: "EvictionRequested", Status: corev1.ConditionTrue}}
	}
	leaving := pod("p", annotated(evicting, "true"), func(p *corev1.Pod) { p.Annotations[evictOnly] = "" })
	return specRows{
		"64 the guest is to leave its node: its Pod is marked, not the target": {
			given: given(of(v1.Running, owned, marked), with(pod("p"), pod("t", target))), phase: v1.Running, conditions: both,
			do: "PatchPod p annotations[" + evicting + "=true]"},
		"64 it is marked": {given: given(of(v1.Running, owned, marked), with(leaving)), phase: v1.Running, conditions: both, settled: true},
		"64 it need not leave any more": {given: given(of(v1.Running, owned, was), with(leaving)), phase: v1.Running, conditions: runs,
			do: "PatchPod p annotations[" + evicting + "-]"},
		"64 another node is meant: the Pod is not marked": {given: given(of(v1.Running, owned, moved), with(pod("p"))), phase: v1.Running, conditions: both, settled: true},
	}
}

func specPaused() specRows {
	const closed = "Paused=True " + runs
	stopped := of(v1.Running, owned, paused)
	is := func(conditions, do string, given ...func(*vmi.Snapshot)) specCase {
		return specCase{given: given, phase: v1.Running, conditions: conditions, do: do}
	}
	silent := pod("p", func(p *corev1.Pod) { p.Status.Conditions = p.Status.Conditions[:1] })
	return specRows{
		"65 paused":                               is(closed, "PatchPod p unpaused=false", stopped, with(pod("p"))),
		"65 paused, and the Pod says so":          is(closed, "", stopped, with(pod("p", gate(corev1.ConditionFalse)))),
		"65 paused, and the Pod says nothing":     is(closed, "", stopped, with(silent)),
		"65 not paused":                           is(runs, "", of(v1.Running, owned), with(pod("p"))),
		"65 paused no more":                       is(runs, "PatchPod p unpaused=true", of(v1.Running, owned), with(pod("p", gate(corev1.ConditionFalse)))),
		"65 not paused, and the Pod says nothing": is(runs, "PatchPod p unpaused=true", of(v1.Running, owned), with(silent)),
	}
}

func specCorners() specRows {
	at := func(node string, age int) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.NodeName, p.CreationTimestamp = node, metav1.NewTime(now.AddDate(0, 0, -age))
		}
	}
	shuffled := func(s *vmi.Snapshot) {
		s.VMI.Status.Conditions = append(s.VMI.Status.Conditions, v1.VirtualMachineInstanceCondition{Type: "AgentConnected", Status: corev1.ConditionTrue})
		slices.Reverse(s.VMI.Status.Conditions)
	}
	image := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Image = name }
	}
	wired := func(s *vmi.Snapshot) {
		reads("data", false)(s)
		s.VMI.Status.VolumeStatus = []v1.VolumeStatus{{Name: "data", Target: "vda", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "data"}}}
	}
	return specRows{
		"113 two Pods, and no node yet: the newest": {
			given: given(of(v1.Scheduling), with(pod("old", at("node-b", 1), podPhase(corev1.PodFailed)), pod("new"))), phase: v1.Scheduled, conditions: notYet,
			waits: "GuestNotRunning", fields: texts{"status nodeName": "node-a", "status activePods": `{"uid-new":"node-a","uid-old":"node-b"}`}},
		"113 two Pods: that on the guest's node, though it is older": {
			given: given(of(v1.Running, owned), with(pod("old", at("node-a", 1), image("launcher:0")), pod("new", at("node-b", 0)))), phase: v1.Running, conditions: runs,
			settled: true, fields: texts{"status launcherContainerImageVersion": "launcher:0"}},
		"115 conditions in another order": quiet(v1.Running, "AgentConnected=True "+runs, "", of(v1.Running, owned), with(pod("p")), rested, shuffled),
		"116 the claim of a guest that runs is gone (better: it is no news to a guest that has its disk)": {
			given: given(of(v1.Running, owned), with(pod("p", has("data"))), wired), phase: v1.Running, conditions: runs, settled: true,
			fields: texts{"status volumeStatus": `[{"name":"data","persistentVolumeClaimInfo":{"claimName":"data"},"target":"vda"}]`}},
		"116 and what else is to be plugged is (better: one volume holds no other up)": {
			given: given(of(v1.Running, owned, labelledByNode), with(pod("launcher", has("data"))), wired, usesHot("v1")), phase: v1.Running, conditions: runs,
			do: "CreateAttachment launcher volumes=v1"},
	}
}
