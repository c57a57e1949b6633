// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

const terminatingPod = "Ready=False/PodTerminating"

var podPhases = []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown}

// statuses sets the container statuses of a Pod.
func statuses(all ...corev1.ContainerStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.ContainerStatuses = all }
}

// container returns the status of a running container.
func container(name string, ready bool) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, Ready: ready, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func stopped(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
}

func specScheduling() specRows {
	rows := specRows{}
	for _, phase := range podPhases {
		for _, ready := range []bool{true, false} {
			row := specCase{phase: v1.Scheduling, conditions: notYet,
				given:  given(of(v1.Pending), with(pod("p", podPhase(phase), statuses(container("compute", ready))))),
				fields: texts{"status phaseTransitionTimestamps": fmt.Sprintf(entered, "Scheduling")}}
			switch row.waits = "ContainersNotReady"; phase {
			case corev1.PodSucceeded, corev1.PodFailed:
				row.conditions, row.waits = terminatingPod, "PodTerminating"
			case corev1.PodRunning:
				row.waits = "GuestNotRunning"
			}
			rows[fmt.Sprintf("38 a Pod in phase %s, ready %t", phase, ready)] = row
		}
	}
	unplaced := "PodScheduled=False/Unschedulable " + notYet
	reported := func(g *v1.VirtualMachineInstance) {
		cannotBePlaced(g)
		g.Status.Conditions[0].Message = "0/2 nodes"
	}
	rows["46 the Pod cannot be placed"] = specCase{
		given: given(of(v1.Scheduling), with(pod("p", unscheduled))), phase: v1.Scheduling, conditions: unplaced, waits: "Unschedulable", settled: true, says: "0/3 nodes"}
	rows["46 another message is no news"] = specCase{
		given: given(of(v1.Scheduling, reported), with(pod("p", unscheduled))), phase: v1.Scheduling, conditions: unplaced, waits: "Unschedulable", settled: true, says: "0/2 nodes"}
	rows["46 the Pod has been placed"] = specCase{
		given: given(of(v1.Scheduling, reported), with(pod("p", waiting("compute", "ContainerCreating")))), phase: v1.Scheduling, conditions: notYet,
		waits: "ContainersNotReady"}
	for _, reason := range []string{"ErrImagePull", "ImagePullBackOff"} {
		rows["46 an image cannot be pulled: "+reason] = specCase{
			given: given(of(v1.Scheduling), with(pod("p", waiting("compute", reason)))), phase: v1.Scheduling,
			conditions: notYet + " Synchronized=False/" + reason, events: "Warning/" + reason, waits: reason, settled: true}
	}
	return rows
}

func specReadyPods() specRows {
	now := func(all ...corev1.ContainerStatus) specCase {
		return specCase{given: given(of(v1.Scheduling), with(pod("p", statuses(all...)))), phase: v1.Scheduled, conditions: notYet, waits: "GuestNotRunning"}
	}
	later := func(all ...corev1.ContainerStatus) specCase {
		return specCase{given: given(of(v1.Scheduling), with(pod("p", statuses(all...)))), phase: v1.Scheduling, conditions: notYet, waits: "ContainersNotReady", settled: true}
	}
	starting := corev1.ContainerStatus{Name: "compute", Ready: true}
	hotplug := func(s *vmi.Snapshot) {
		s.Attachments = []*corev1.Pod{attachment("a", "launcher", carries("v1"), podPhase(corev1.PodPending), statuses(corev1.ContainerStatus{}))}
	}
	return specRows{
		"40 compute runs and is not ready":         now(container("compute", false)),
		"40 istio-proxy runs and is not ready":     now(container("compute", false), container("istio-proxy", false)),
		"40 another container is ready":            now(container("compute", false), container("sidecar", true)),
		"40 another container is not ready":        later(container("compute", true), container("sidecar", false)),
		"40 compute does not run":                  later(starting),
		"40 istio-proxy does not run":              later(container("compute", true), corev1.ContainerStatus{Name: "istio-proxy", Ready: true}),
		"112 a Pod that runs without any statuses": now(),
		"49 an attachment Pod is not ready": {
			given: given(of(v1.Scheduling), with(pod("launcher")), usesHot("v1"), hotplug), phase: v1.Scheduled, conditions: notYet,
			events: "Normal/SuccessfulCreate", waits: "AttachmentPodPending GuestNotRunning"},
	}
}

func specHandoff() specRows {
	dedicated := func(g *v1.VirtualMachineInstance) { g.Spec.Domain.CPU = &v1.CPU{DedicatedCPUPlacement: true} }
	qos := func(class corev1.PodQOSClass) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.QOSClass = class }
	}
	updater := func(of []v1.VirtualMachineInstanceNetworkInterface, err error) func(*vmi.Snapshot) {
		return set(func(c *vmi.Config) {
			c.NetworkStatus = func(*v1.VirtualMachineInstance, *corev1.Pod) ([]v1.VirtualMachineInstanceNetworkInterface, error) {
				return of, err
			}
		})
	}
	handed := func(fields texts, given ...func(*vmi.Snapshot)) specCase {
		return specCase{given: given, phase: v1.Scheduled, conditions: notYet, waits: "GuestNotRunning", fields: fields}
	}
	scheduling, ready := of(v1.Scheduling), with(pod("p"))
	unix := func(p *corev1.Pod) { p.Annotations["kubevirt.io/migrationTransportUnix"] = "true" }
	vsock := func(g *v1.VirtualMachineInstance) { g.Spec.Domain.Devices.AutoattachVSOCK = ptr.To(true) }
	return specRows{
		"41 the node of the Pod": handed(texts{"metadata labels": `{"kubevirt.io/nodeName":"node-a"}`, "status nodeName": "node-a", "status activePods": `{"uid-p":"node-a"}`,
			"status launcherContainerImageVersion": "launcher:1", "status phaseTransitionTimestamps": fmt.Sprintf(entered, "Scheduled")}, scheduling, ready),
		"41 the interfaces that are found":                  handed(texts{"status interfaces": `[{"name":"blue"}]`}, scheduling, ready, updater([]nic{{Name: "blue"}}, nil)),
		"41 interfaces that cannot be read hold nothing up": handed(texts{"status interfaces": "-"}, scheduling, ready, updater(nil, errors.New("x"))),
		"41 how the guest is to be moved later":             handed(texts{"status migrationTransport": "Unix"}, scheduling, with(pod("p", unix))),
		"41 what kept it from starting is over":             handed(nil, of(v1.Scheduling, synchronizedFalse("ErrImagePull", "x"), cannotBePlaced), ready),
		"43 the Pod's class of service":                     handed(texts{"status qosClass": "Guaranteed"}, scheduling, with(pod("p", qos(corev1.PodQOSGuaranteed)))),
		"43 the Pod has none":                               handed(texts{"status qosClass": "-"}, scheduling, with(pod("p", qos("")))),
		"44 CPUs of its own, and the Pod is Guaranteed":     handed(nil, of(v1.Scheduling, dedicated), with(pod("p", qos(corev1.PodQOSGuaranteed)))),
		"44 CPUs of its own, and the Pod is not (better: the event comes once)": {
			given: given(of(v1.Scheduling, dedicated), ready), phase: v1.Scheduling, conditions: notYet + " Synchronized=False/FailedGuaranteeResources",
			events: "Warning/FailedGuaranteeResources", waits: "FailedGuaranteeResources", settled: true},
		"44 CPUs of its own, and the Pod is not ready yet": {
			given: given(of(v1.Scheduling, dedicated), with(pod("p", fresh))), phase: v1.Scheduling, conditions: notYet, waits: "ContainersNotReady", settled: true},
		"50 an address on VSOCK": handed(texts{"status VSOCKCID": "77"}, of(v1.Scheduling, vsock), ready, func(s *vmi.Snapshot) { s.CID = ptr.To[uint32](77) }),
		"50 no address is reserved": {
			given: given(of(v1.Scheduling, vsock), ready), phase: v1.Scheduling, conditions: notYet, waits: "VSOCKAddressMissing", settled: true},
		"50 an address that it has stays": handed(texts{"status VSOCKCID": "78"}, of(v1.Scheduling, vsock, func(g *v1.VirtualMachineInstance) { g.Status.VSOCKCID = ptr.To[uint32](78) }), ready),
		"41 (better: the handoff is one write, once own writes are observed)": {
			given: given(scheduling, ready, func(s *vmi.Snapshot) { s.Pending = []string{"create Pod ns/a"} }), phase: v1.Scheduling, conditions: notYet,
			waits: "WaitingForCache"},
	}
}

func specLostPods() specRows {
	gone := specCase{given: given(of(v1.Scheduling)), phase: v1.Failed, conditions: noPodYet,
		fields: texts{"status phaseTransitionTimestamps": fmt.Sprintf(entered, "Failed")}}
	ended := func(change ...func(*corev1.Pod)) specCase {
		return specCase{given: given(of(v1.Scheduling), with(pod("p", change...))), phase: v1.Failed, conditions: terminatingPod}
	}
	leaving := specCase{given: given(of(v1.Scheduling, deleting), with(pod("p", terminating))), phase: v1.Scheduling, conditions: terminatingPod,
		do: "DeletePod p grace=1s", waits: "PodTerminating"}
	return specRows{
		"47 the Pod is gone":                            gone,
		"47 the Pod has succeeded":                      ended(podPhase(corev1.PodSucceeded)),
		"47 the Pod has failed":                         ended(podPhase(corev1.PodFailed)),
		"47 the Pod is on its way out":                  ended(terminating),
		"47 compute has ended in a Pod that is Pending": ended(podPhase(corev1.PodPending), statuses(stopped("compute"))),
		"47 the guest is being deleted (better: until its Pod is gone it stays)": leaving,
	}
}
