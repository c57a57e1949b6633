// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
)

var released = lease(handoff.Lease{State: handoff.Released, Epoch: 2})

func finalizers(all ...string) func(*v1.VirtualMachineInstance) {
	return func(g *v1.VirtualMachineInstance) { g.Finalizers = all }
}

func specFinal() specRows {
	ours := finalizers("other", "foregroundDeleteVirtualMachine", v1.VirtualMachineInstanceFinalizer)
	outdated := func(g *v1.VirtualMachineInstance) {
		g.Labels = texts{v1.OutdatedLauncherImageLabel: "", "mine": "1"}
		g.Status.LauncherContainerImageVersion = "launcher:1"
	}
	reported := func(g *v1.VirtualMachineInstance) {
		g.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionFalse, Reason: "PodNotExists"}}
	}
	machines := finalizers(v1.VirtualMachineInstanceFinalizer, v1.VirtualMachineControllerFinalizer)
	exists := func(s *vmi.Snapshot) { s.VMExists = true }
	gone := func(is bool, given ...func(*vmi.Snapshot)) specCase {
		c := specCase{given: given, phase: v1.Failed, conditions: noPodYet, settled: true, fields: texts{"metadata finalizers": "-"}}
		if !is {
			c.fields["metadata finalizers"] = `["kubevirt.io/virtualMachineControllerFinalize"]`
		}
		return c
	}
	rows := specRows{
		"76 nothing is left to be done":                    quiet(v1.Succeeded, noPodYet, "", of(v1.Succeeded, reported, finalizers())),
		"80 the guest of no VirtualMachine":                gone(true, of(v1.Failed, machines)),
		"80 the VirtualMachine is there":                   gone(false, of(v1.Failed, machines), exists),
		"80 the VirtualMachine is there, and ours is gone": gone(false, of(v1.Failed, finalizers(v1.VirtualMachineControllerFinalizer)), exists),
		"80 the VirtualMachine is gone, and ours before":   gone(true, of(v1.Failed, finalizers(v1.VirtualMachineControllerFinalizer))),
		"80 (better: while a Pod is left nothing is taken away)": {
			given: given(of(v1.Failed, machines), with(pod("p", podPhase(corev1.PodFailed)))), phase: v1.Failed, conditions: terminatingPod, settled: true},
		"74 (better: while its node has it nothing is taken away)": {
			given: given(of(v1.Failed, owned)), phase: v1.Failed, conditions: noPodYet, waits: "GuestEnding", settled: true},
	}
	says := func(reason string) func(*v1.VirtualMachineInstance) {
		return func(g *v1.VirtualMachineInstance) {
			g.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: reason}}
		}
	}
	rows["76 (better: what its node says of one that has ended stays, or both would write without end)"] = specCase{
		given: given(of(v1.Failed, says("GuestUnresponsive"), released, finalizers())), phase: v1.Failed, conditions: noPodYet + " Synchronized=False/GuestUnresponsive", settled: true}
	rows["76 what was in this controller's own way is taken away"] = specCase{
		given: given(of(v1.Failed, says(vmi.ReasonFailedDelete), released, finalizers())), phase: v1.Failed, conditions: noPodYet, settled: true}
	rows["76 so is what was said of one that was never handed over"] = specCase{
		given: given(of(v1.Failed, says("ErrImagePull"), finalizers())), phase: v1.Failed, conditions: noPodYet, settled: true}
	for _, phase := range []v1.VirtualMachineInstancePhase{v1.Succeeded, v1.Failed} {
		for name, change := range map[string]func(*v1.VirtualMachineInstance){"of virtloom": released, "of KubeVirt": on("node-a")} {
			rows[fmt.Sprintf("74 %s, without Pods, by a node agent %s", phase, name)] = specCase{
				given: given(of(phase, change, ours, outdated)), phase: phase, conditions: noPodYet, settled: true,
				fields: texts{"metadata finalizers": `["other"]`, "metadata labels": `{"mine":"1"}`, "status launcherContainerImageVersion": "-"}}
		}
	}
	return rows
}

func specDeletion() specRows {
	const bothEnding = "PodTerminating " + "PodTerminating"
	rows := specRows{}
	pods := func(s *vmi.Snapshot) {
		var all []corev1.Pod
		for _, name := range []string{"a", "b", "foreign"} {
			p := pod(name)
			if name != "foreign" {
				p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(s.VMI, v1.VirtualMachineInstanceGroupVersionKind)}
			}
			all = append(all, *p)
		}
		s.Pods = vmi.OwnedPods(s.VMI, all)
	}
	for phase, want := range map[v1.VirtualMachineInstancePhase]specCase{
		"":                {phase: v1.Scheduling, do: "DeletePod a grace=1s; DeletePod b grace=1s", conditions: notYet, waits: bothEnding},
		v1.Pending:        {phase: v1.Scheduling, do: "DeletePod a grace=1s; DeletePod b grace=1s", conditions: notYet, waits: bothEnding},
		v1.Scheduling:     {phase: v1.Scheduling, do: "DeletePod a grace=1s; DeletePod b grace=1s", conditions: notYet, waits: bothEnding},
		v1.Scheduled:      {phase: v1.Scheduled, do: "DeletePod a; DeletePod b", conditions: notYet, waits: "GuestEnding " + bothEnding},
		v1.Running:        {phase: v1.Running, do: "DeletePod a; DeletePod b", conditions: runs, waits: "GuestEnding " + bothEnding},
		v1.Succeeded:      {phase: v1.Succeeded, do: "DeletePod a grace=1s; DeletePod b grace=1s", conditions: notYet, waits: bothEnding},
		v1.Failed:         {phase: v1.Failed, do: "DeletePod a grace=1s; DeletePod b grace=1s", conditions: notYet, waits: bothEnding},
		v1.WaitingForSync: {phase: v1.WaitingForSync, do: "DeletePod a grace=1s; DeletePod b grace=1s", conditions: notYet, waits: bothEnding},
	} {
		owner := owned
		switch phase {
		case v1.Scheduled, v1.Running:
		default:
			owner = func(*v1.VirtualMachineInstance) {}
		}
		want.given = given(of(phase, owner, deleting), pods)
		rows[fmt.Sprintf("77 deleted in phase %q (better: nobody is waited for where no guest is)", phase)] = want
	}
	rows["77 a Pod that is on its way out is not deleted again"] = specCase{
		given: given(of(v1.Running, owned, deleting), with(pod("p", terminating))), phase: v1.Running, conditions: terminatingPod,
		waits: "GuestEnding PodTerminating", settled: true}
	rows["77 a Pod that has ended and is on its way out (better: nor that)"] = specCase{
		given: given(of(v1.Failed, released, deleting), with(pod("p", podPhase(corev1.PodFailed), terminating, func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = nil }))),
		phase: v1.Failed, conditions: terminatingPod, waits: "PodTerminating", settled: true}
	return rows
}

func specFailedDeletion() specRows {
	rows := specRows{}
	fault := failed(vmi.ReasonFailedDelete, "delete Pod ns/p: no")
	for phase, conditions := range map[v1.VirtualMachineInstancePhase]string{
		v1.Pending: notYet, v1.Scheduling: notYet, v1.Succeeded: notYet, v1.WaitingForSync: notYet,
	} {
		to := phase
		if phase == v1.Pending {
			to = v1.Scheduling
		}
		rows["79 a Pod cannot be deleted, phase "+string(phase)] = specCase{
			given: given(of(phase, deleting), with(pod("p")), fault), phase: to, do: "DeletePod p grace=1s",
			conditions: conditions + " Synchronized=False/FailedDelete", events: "Warning/FailedDelete", waits: "FailedDelete PodTerminating"}
	}
	rows["79 a Pod cannot be deleted, phase Running: the condition is the node's, which reports it"] = specCase{
		given: given(of(v1.Running, owned, deleting), with(pod("p")), fault), phase: v1.Running, do: "DeletePod p",
		conditions: runs, waits: "FailedDelete GuestEnding PodTerminating"}
	return rows
}

func receiving(g *v1.VirtualMachineInstance) {
	g.Annotations = texts{v1.CreateMigrationTarget: "true"}
}

func specReceivers() specRows {
	failedMove := func(g *v1.VirtualMachineInstance) {
		g.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{Failed: true}
	}
	pending := func(g *v1.VirtualMachineInstance) {
		g.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}
	}
	ticking := func(s *vmi.Snapshot) {
		s.Nodes = []vmi.Node{{Name: "node-a", Schedulable: true, Labels: texts{"cpu-timer.node.kubevirt.io/tsc-frequency": "2000000000"}}}
	}
	waits := func(conditions, waits string, given ...func(*vmi.Snapshot)) specCase {
		return specCase{given: given, phase: v1.WaitingForSync, conditions: conditions, waits: waits, settled: true}
	}
	down, going := with(pod("p", podPhase(corev1.PodFailed))), with(pod("p", terminating))
	here := waits(noPodYet, "WaitingForSync", of(v1.Pending, receiving, invtsc("require")), ticking)
	here.fields = texts{"status topologyHints": `{"tscFrequency":2000000000}`, "status phaseTransitionTimestamps": fmt.Sprintf(entered, "WaitingForSync")}
	ended := waits(noPodYet, "", of(v1.Scheduled, receiving, pending))
	ended.fields = texts{"status migrationState completed": "true", "status migrationState failed": "true", "status migrationState endTimestamp": "2026-01-02T03:04:05Z"}
	ended.waits = "WaitingForSync"
	scheduling := func(change ...func(*v1.VirtualMachineInstance)) specCase {
		return specCase{given: given(of(v1.WaitingForSync, change...), with(pod("p", fresh))), phase: v1.Scheduling, conditions: notYet, waits: "ContainersNotReady"}
	}
	return specRows{
		"83 a guest to be received":                        here,
		"83 it has waited":                                 waits(noPodYet, "WaitingForSync", of(v1.WaitingForSync, receiving)),
		"83 it is to be received here, and has no Pod yet": {given: given(of(v1.Pending, receiving, func(g *v1.VirtualMachineInstance) { g.Labels = texts{v1.MigrationTargetNodeNameLabel: "node-a"} })), phase: v1.Pending, conditions: noPodYet, waits: "WaitingForSync"},
		"85 its Pod has ended":                             waits(terminatingPod, "PodTerminating", of(v1.WaitingForSync, receiving), down),
		"85 its Pod is on its way out":                     waits(terminatingPod, "PodTerminating", of(v1.WaitingForSync, receiving), going),
		"85 its move has failed":                           waits(notYet, "WaitingForSync", of(v1.WaitingForSync, receiving, failedMove), with(pod("p", fresh))),
		"85 it has its Pod":                                scheduling(receiving),
		"85 it has its Pod, and its move has not failed":   scheduling(receiving, pending),
		"85 being deleted it stays, and is let go (better: once it has no Pod)": {
			given: given(of(v1.WaitingForSync, receiving, deleting)), phase: v1.WaitingForSync, conditions: noPodYet, fields: texts{"metadata finalizers": "-"}},
		"86 its Pod is gone": waits(noPodYet, "WaitingForSync", of(v1.Scheduling, receiving)),
		"86 its Pod ended":   waits(terminatingPod, "PodTerminating", of(v1.Scheduling, receiving), down),
		"86 handed over, and its Pod is gone (better: that the move has ended is stored)": ended,
		"86 handed over, and its Pod has ended": {
			given: given(of(v1.Scheduled, receiving), down), phase: v1.WaitingForSync, conditions: terminatingPod, waits: "PodTerminating"},
		"86 handed over, and its move has failed": {
			given: given(of(v1.Scheduled, receiving, failedMove), with(pod("p"))), phase: v1.WaitingForSync, conditions: notYet, waits: "WaitingForSync"},
		"86 running, and its Pod is gone": {given: given(of(v1.Running, receiving)), phase: v1.Failed, conditions: noPodYet},
	}
}
