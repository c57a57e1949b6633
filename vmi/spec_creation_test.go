// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

const (
	noPodYet = "Ready=False/PodNotExists"
	notYet   = "Ready=False/GuestNotRunning"
	runs     = "Ready=True"

	// entered is the timestamp of a phase that is entered now.
	entered = `[{"phase":%q,"phaseTransitionTimestamp":"2026-01-02T03:04:05Z"}]`
)

// fresh makes a Pod one that was created just now.
func fresh(p *corev1.Pod) {
	p.Labels, p.Spec.NodeName, p.Status = nil, "", corev1.PodStatus{Phase: corev1.PodPending}
}

func specCreation() specRows {
	created := fmt.Sprintf(entered, "Scheduling")
	versions := `{"kubevirt.io/latest-observed-api-version":"v1","kubevirt.io/storage-observed-api-version":"v1"}`
	slirp := func(g *v1.VirtualMachineInstance) {
		g.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "net",
			InterfaceBindingMethod: v1.InterfaceBindingMethod{DeprecatedSlirp: &v1.DeprecatedInterfaceSlirp{}}}}
	}
	custom := set(func(c *vmi.Config) {
		c.SpecValidator = func(*v1.VirtualMachineInstance) []metav1.StatusCause {
			return []metav1.StatusCause{{Field: "spec.networks[0]", Message: "no"}}
		}
	})
	ungated := func(p *corev1.Pod) { p.Status.Conditions = p.Status.Conditions[:1] }
	unseen := func(s *vmi.Snapshot) { s.Pending = []string{"create Pod ns/p"} }
	refusal := `create Pod ns/p: pods "p" is forbidden: violates PodSecurity "restricted"; use a namespace with the label pod-security.kubernetes.io/enforce=privileged`
	return specRows{
		"1 no versions of the API observed (better: that goes with the first write, which records the Pod)": {
			given: given(of(v1.Pending)), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet,
			fields: texts{"metadata annotations": versions}},
		"1 a guest that runs (better: nothing is written for that alone)": {
			given: given(of(v1.Running), with(pod("p"))), phase: v1.Running, conditions: runs, settled: true,
			fields: texts{"metadata annotations": "-"}},
		"2 pending, without volumes: a Pod is asked for": {
			given: given(of(v1.Pending)), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet},
		"2 the Pod was created in this pass: Scheduling in the same": {
			given: given(of(v1.Pending), with(pod("p", fresh))), phase: v1.Scheduling, conditions: notYet, waits: "ContainersNotReady",
			fields: texts{"status phaseTransitionTimestamps": created}, settled: true},
		"2 a new object without finalizer and phase gets them with that": {
			given: given(of("", func(g *v1.VirtualMachineInstance) { g.Finalizers = nil }), with(pod("p", fresh))), phase: v1.Scheduling,
			conditions: notYet, waits: "ContainersNotReady", fields: texts{"metadata finalizers": `["kubevirt.io/foregroundDeleteVirtualMachine"]`}},
		"2 (better: the readiness gate and the labels of the Pod go with the hand-over, in one write)": {
			given: given(of(v1.Scheduling), with(pod("p", ungated, func(p *corev1.Pod) { p.Labels = nil }))), phase: v1.Scheduled, conditions: notYet,
			do: "PatchPod p unpaused=true labels[kubevirt.io/nodeName=node-a]", waits: "GuestNotRunning"},
		"4 the Pod violates PodSecurity": {
			given: given(of(v1.Pending), failed(vmi.ReasonFailedCreate, refusal)), phase: v1.Pending,
			conditions: noPodYet + " Synchronized=False/FailedCreate", events: "Warning/FailedCreate", waits: "FailedCreate", settled: true,
			says: "use a namespace with the label pod-security.kubernetes.io/enforce=privileged"},
		"5 a network binding that is no more (better: it is an event as well, once)": {
			given: given(of(v1.Pending, slirp)), phase: v1.Pending, conditions: noPodYet + " Synchronized=False/FailedCreateValidation",
			events: "Warning/FailedCreateValidation", waits: "FailedCreateValidation", settled: true, says: "failed create validation: spec."},
		"5 another validator": {
			given: given(of(v1.Pending), custom), phase: v1.Pending, conditions: noPodYet + " Synchronized=False/FailedCreateValidation",
			events: "Warning/FailedCreateValidation", waits: "FailedCreateValidation", settled: true, says: "failed create validation: spec."},
		"7 a creation is not seen yet (better: expectations are data, and what is not known is not said)": {
			given: given(of(v1.Pending), unseen), phase: v1.Pending, waits: "WaitingForCache", settled: true},
		"7 nor is anything deleted": {
			given: given(of(v1.Running, deleting), with(pod("p")), unseen), phase: v1.Running, conditions: runs, waits: "WaitingForCache GuestEnding PodTerminating"},
		"8 it was never seen (better: nothing is given up after a time, a live read settles it)": {
			given: given(of(v1.Pending), func(s *vmi.Snapshot) { s.Pending = nil }), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet},
		"16 scheduling without a Pod": {
			given: given(of(v1.Scheduling)), phase: v1.Failed, conditions: noPodYet},
		"16 scheduled without a Pod": {
			given: given(of(v1.Scheduled)), phase: v1.Failed, conditions: noPodYet},
		"16 running without a Pod": {
			given: given(of(v1.Running)), phase: v1.Failed, conditions: noPodYet},
		"16 ended without a Pod": {
			given: given(of(v1.Failed)), phase: v1.Failed, conditions: noPodYet, fields: texts{"metadata finalizers": "-"}},
	}
}

func specMigrations() specRows {
	rows := specRows{}
	for _, phase := range []v1.VirtualMachineInstanceMigrationPhase{
		v1.MigrationPreparingTarget, v1.MigrationTargetReady, v1.MigrationScheduled, v1.MigrationRunning,
	} {
		rows["10 a migration in phase "+string(phase)+" (better: its end is an event, nothing is retried)"] = specCase{
			given: given(of(v1.Pending), migrating(phase)), phase: v1.Pending, conditions: noPodYet + " Synchronized=False/FailedCreate",
			events: "Warning/FailedCreate", waits: "FailedCreate", settled: true}
	}
	for _, phase := range []v1.VirtualMachineInstanceMigrationPhase{
		v1.MigrationSucceeded, v1.MigrationFailed, v1.MigrationWaitingForSync, v1.MigrationSynchronizing,
	} {
		rows["10 a migration in phase "+string(phase)+" is in nobody's way"] = specCase{
			given: given(of(v1.Pending), migrating(phase)), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet}
	}
	for _, phase := range []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationPhaseUnset, v1.MigrationPending} {
		rows["11 a migration in phase "+string(phase)] = specCase{
			given: given(of(v1.Pending), migrating(phase)), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet}
	}
	rows["11 a migration in phase Scheduling"] = specCase{
		given: given(of(v1.Pending), migrating(v1.MigrationScheduling)), phase: v1.Pending, conditions: noPodYet + " Synchronized=False/FailedCreate",
		events: "Warning/FailedCreate", waits: "FailedCreate", settled: true}
	rows["11 a migration in phase Scheduling that sends the guest to another cluster"] = specCase{
		given: given(of(v1.Pending), migrating(v1.MigrationScheduling), func(s *vmi.Snapshot) {
			s.Migrations[0].Spec.SendTo = &v1.VirtualMachineInstanceMigrationSource{MigrationID: "m"}
		}), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet}
	return rows
}

func specClocks() specRows {
	ticking := func(s *vmi.Snapshot) {
		s.Nodes = []vmi.Node{{Name: "node-a", Schedulable: true, Labels: texts{"cpu-timer.node.kubevirt.io/tsc-frequency": "2000000000"}}}
	}
	known := func(g *v1.VirtualMachineInstance) {
		g.Status.TopologyHints = &v1.TopologyHints{TSCFrequency: ptr.To[int64](2000000000)}
	}
	return specRows{
		"13 reenlightenment, and no node has a frequency": {
			given: given(of(v1.Pending, reenlightened(ptr.To(true)))), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet,
			fields: texts{"status topologyHints": "-"}},
		"13 reenlightenment, and a node has one: the hints are stored first": {
			given: given(of(v1.Pending, reenlightened(ptr.To(true))), ticking), phase: v1.Pending, conditions: noPodYet, waits: "WaitingForTopologyHints",
			fields: texts{"status topologyHints": `{"tscFrequency":2000000000}`}},
		"14 invtsc, and no node has a frequency (better: the object says so, the event comes once)": {
			given: given(of(v1.Pending, invtsc("require"))), phase: v1.Pending,
			conditions: noPodYet + " Synchronized=False/FailedGatherhingClusterTopologyHints", events: "Warning/FailedGatherhingClusterTopologyHints",
			waits: "FailedGatherhingClusterTopologyHints", settled: true, fields: texts{"status topologyHints": "-"}},
		"14 invtsc, and the hints are stored": {
			given: given(of(v1.Pending, invtsc("require"), known), ticking), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet},
		"14 invtsc of another architecture": {
			given: given(of(v1.Pending, invtsc("require"), arch("arm64"))), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet},
	}
}
