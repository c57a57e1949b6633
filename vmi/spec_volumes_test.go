// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi"
)

func specVolumeStatus() specRows {
	is := func(volumes string, more ...func(*vmi.Snapshot)) specCase {
		return specCase{given: append(given(of(v1.Running, owned), with(pod("p"))), more...), phase: v1.Running, conditions: runs,
			fields: texts{"status volumeStatus": volumes}, settled: true}
	}
	state := exists("persistent-state-for-guest", corev1.ClaimBound, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{one}
	})
	entry := func(name string) func(*vmi.Snapshot) {
		return func(s *vmi.Snapshot) {
			s.VMI.Status.VolumeStatus = append(s.VMI.Status.VolumeStatus, v1.VolumeStatus{Name: name, Target: "vdb"})
		}
	}
	plain := func(names ...string) func(*vmi.Snapshot) {
		return func(s *vmi.Snapshot) {
			for _, name := range names {
				s.VMI.Spec.Volumes = append(s.VMI.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}}})
			}
		}
	}
	reported := `{"name":"persistent-state-for-this-vm","persistentVolumeClaimInfo":{"accessModes":["ReadWriteOnce"],"claimName":"persistent-state-for-guest"},"target":"%s"}`
	return specRows{
		"97 the state under its old name":                     is("["+fmt.Sprintf(reported, "vdb")+"]", tpm, state, entry("persistent-state-for-guest")),
		"97 the state under its name":                         is("["+fmt.Sprintf(reported, "vdb")+"]", tpm, state, entry("persistent-state-for-this-vm")),
		"97 the state that was not reported before":           is("["+fmt.Sprintf(reported, "")+"]", tpm, state),
		"122 the entries are sorted by name":                  is(`[{"name":"a","target":""},{"name":"b","target":""},{"name":"c","target":""}]`, plain("c", "a", "b")),
		"122 a volume that is not plugged says nothing of it": is(`[{"name":"a","target":"vdb"}]`, plain("a"), entry("a")),
	}
}

func specOverhead() specRows {
	is := func(overhead string, more ...func(*vmi.Snapshot)) specCase {
		return specCase{given: append(given(of(v1.Running, owned), with(pod("p", has("data"))), reads("data", false)), more...), phase: v1.Running, conditions: runs,
			fields: texts{"status volumeStatus": `[{"name":"data","persistentVolumeClaimInfo":{"claimName":"data","filesystemOverhead":"` + overhead + `"` + "%s" + `},"target":""}]`}, settled: true}
	}
	file := func(c specCase) specCase {
		c.fields["status volumeStatus"] = fmt.Sprintf(c.fields["status volumeStatus"], "")
		return c
	}
	block := func(c specCase) specCase {
		c.fields["status volumeStatus"] = fmt.Sprintf(c.fields["status volumeStatus"], `,"volumeMode":"Block"`)
		return c
	}
	cdi := func(s *vmi.Snapshot) {
		s.Storage.Overhead = &cdiv1.FilesystemOverhead{Global: "0.1", StorageClass: map[string]cdiv1.Percent{"fast": "0.2"}}
	}
	claim := func(change ...func(*corev1.PersistentVolumeClaim)) func(*vmi.Snapshot) {
		return exists("data", corev1.ClaimBound, change...)
	}
	asBlock := func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }
	return specRows{
		"98 there is not exactly one CDI, or it has no configuration (better: nothing is held up)": file(is("0.055", claim())),
		"98 a block device":            block(is("0", claim(asBlock), cdi)),
		"98 a claim without a class":   file(is("0.1", claim(), cdi)),
		"98 a class that is not known": file(is("0.1", claim(classed("slow")), cdi)),
		"98 a class that is known":     file(is("0.2", claim(classed("fast")), cdi)),
	}
}

// specSilence is the part of KubeVirt's node controller that is decided here (case 101):
// the VMIs of an unresponsive node. Which nodes are unresponsive, and the evidence, is in
// the snapshot of vmi/vmictrl.
func specSilence() specRows {
	silent := func(s *vmi.Snapshot) { s.Silent = map[string]time.Time{"node-a": now.Add(-10 * time.Minute)} }
	proven := func(s *vmi.Snapshot) {
		s.Evidence = map[string]handoff.Evidence{"node-a": {Kind: handoff.NodeGone, Detail: "the Node object does not exist"}}
	}
	lost := lease(handoff.Lease{State: handoff.Lost, Was: handoff.Owned, Epoch: 1, Holder: "node-a", Deadline: until(now)})
	const reported = "Ready=True Synchronized=False/NodeUnresponsive"
	running := with(pod("p"))
	return specRows{
		"101 the node of a guest is silent (better: the guest stays its own, and nothing else starts it)": {
			given: given(of(v1.Running, owned), running, silent), phase: v1.Running, conditions: reported,
			events: "Warning/NodeUnresponsive", waits: "NodeUnresponsive", requeue: handoff.FenceAfter},
		"101 it is known not to run there: Failed": {
			given: given(of(v1.Running, lost), running, silent, proven), phase: v1.Failed, conditions: reported,
			events: "Warning/NodeUnresponsive", fields: texts{"status reason": "NodeUnresponsive"}},
		"101 that its Pods are gone is no evidence by itself (better: where the guest lives outside of its Pod)": {
			given: given(of(v1.Running, lost), silent), phase: v1.Running, conditions: noPodYet,
			waits: "NodeUnresponsive", requeue: time.Minute},
		"101 a guest of a node agent of KubeVirt stays as long as a Pod of it may live": {
			given: given(of(v1.Running, on("node-a")), running, silent, proven), phase: v1.Running, conditions: runs,
			waits: "NodeUnresponsive", requeue: time.Minute, settled: true},
		"101 a guest of a node agent of KubeVirt without a live Pod has failed": {
			given: given(of(v1.Running, on("node-a")), running, silent, func(s *vmi.Snapshot) {
				s.Evidence = map[string]handoff.Evidence{"node-a": {Kind: handoff.PodGone, Detail: "no Pod of the guest is left there"}}
			}), phase: v1.Failed, conditions: reported, events: "Warning/NodeUnresponsive", fields: texts{"status reason": "NodeUnresponsive"}},
		"101 another node is silent": {
			given: given(of(v1.Running, owned), running, func(s *vmi.Snapshot) { s.Silent = map[string]time.Time{"node-b": now} }),
			phase: v1.Running, conditions: runs, settled: true},
	}
}
