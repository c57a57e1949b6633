// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/vmi"
)

// reads adds a disk of a claim.
func reads(claim string, hot bool) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) {
		s.VMI.Spec.Volumes = append(s.VMI.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: hot,
				PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}})
	}
}

// exists adds a claim to the cluster; whole is a usable one.
func exists(name string, phase corev1.PersistentVolumeClaimPhase, change ...func(*corev1.PersistentVolumeClaim)) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
			Status: corev1.PersistentVolumeClaimStatus{Phase: phase}}
		for _, f := range change {
			f(c)
		}
		if s.Storage.Claims == nil {
			s.Storage.Claims = map[string]*corev1.PersistentVolumeClaim{}
		}
		s.Storage.Claims[name] = c
	}
}

// imports adds a disk of a DataVolume, with its claim.
func imports(name string, phase cdiv1.DataVolumePhase, ready corev1.ConditionStatus) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) {
		s.VMI.Spec.Volumes = append(s.VMI.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: name}}})
		exists(name, corev1.ClaimBound, func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume", Name: name, UID: types.UID("dv-" + name), Controller: ptr.To(true)}}
		})(s)
		if s.Storage.DataVolumes == nil {
			s.Storage.DataVolumes = map[string]*cdiv1.DataVolume{}
		}
		dv := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("dv-" + name)}, Status: cdiv1.DataVolumeStatus{Phase: phase}}
		if ready != "" {
			dv.Status.Conditions = []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeReady, Status: ready}}
		}
		s.Storage.DataVolumes[name] = dv
	}
}

func hotImports(name string, phase cdiv1.DataVolumePhase) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) {
		imports(name, phase, corev1.ConditionFalse)(s)
		s.VMI.Spec.Volumes[len(s.VMI.Spec.Volumes)-1].DataVolume.Hotpluggable = true
	}
}

func specClaims() specRows {
	missing := "PodScheduled=False/Unschedulable " + noPodYet + " Synchronized=False/FailedPvcNotFound"
	imported := func(phase cdiv1.DataVolumePhase) []func(*vmi.Snapshot) {
		return given(of(v1.Pending), imports("root", phase, corev1.ConditionFalse))
	}
	unready := "DataVolumesReady=False/NotAllDVsReady "
	return specRows{
		"17 missing claim: of a claim (better: one event, a warning, for as long as it is the same)": {
			given: given(of(v1.Pending), reads("data", false)), phase: v1.Pending, conditions: missing,
			events: "Warning/FailedPvcNotFound", waits: "FailedPvcNotFound", settled: true, says: "PersistentVolumeClaim ns/data does not exist"},
		"17 missing claim: of a DataVolume": {
			given: given(of(v1.Pending), disk), phase: v1.Pending, conditions: missing,
			events: "Warning/FailedPvcNotFound", waits: "FailedPvcNotFound", settled: true},
		"17 missing claim: one of two": {
			given: given(of(v1.Pending), reads("root", false), reads("data", false), exists("root", corev1.ClaimBound)), phase: v1.Pending,
			conditions: missing, events: "Warning/FailedPvcNotFound", waits: "FailedPvcNotFound", settled: true},
		"17 missing claim: of a volume to be plugged, which is not waited for": {
			given: given(of(v1.Pending), reads("data", true)), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet},
		"17 missing claim: it is there now, and nothing is left of that": {
			given: given(of(v1.Pending, synchronizedFalse("FailedPvcNotFound", "x"), cannotBePlaced), reads("data", false), exists("data", corev1.ClaimBound)),
			phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet},
		"19 a claim that no DataVolume fills, bound": {
			given: given(of(v1.Pending), reads("data", false), exists("data", corev1.ClaimBound)), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet},
		"19 a claim that no DataVolume fills, not bound": {
			given: given(of(v1.Pending), reads("data", false), exists("data", corev1.ClaimPending)), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet},
		"20 a DataVolume in phase Pending": {
			given: imported(cdiv1.Pending), phase: v1.Pending, conditions: unready + noPodYet, waits: "NotAllDVsReady", settled: true},
		"20 a DataVolume that imports": {
			given: imported(cdiv1.ImportInProgress), phase: v1.Pending, conditions: unready + noPodYet, waits: "NotAllDVsReady", settled: true},
		"20 a DataVolume that waits for its population is filled by the Pod": {
			given: imported(cdiv1.PendingPopulation), phase: v1.Pending, conditions: unready + noPodYet, do: "CreateLauncher"},
		"28 a DataVolume has failed": {
			given: imported(cdiv1.Failed), phase: v1.Failed, conditions: unready + noPodYet},
		"28 a DataVolume to be plugged has failed": {
			given: given(of(v1.Pending), hotImports("data", cdiv1.Failed)), phase: v1.Failed, conditions: unready + noPodYet},
		"28 one of several has failed": {
			given: append(imported(cdiv1.WaitForFirstConsumer), imports("data", cdiv1.Failed, corev1.ConditionFalse)), phase: v1.Failed,
			conditions: unready + noPodYet},
		"28 a DataVolume has failed, and there is a Pod": {
			given: append(imported(cdiv1.Failed), with(pod("p", fresh, has("root")))), phase: v1.Scheduling, conditions: unready + notYet, waits: "ContainersNotReady"},
	}
}

// has adds volumes of these names to a Pod.
func has(volumes ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, v := range volumes {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: v})
		}
	}
}

// cannotBePlaced adds the condition of a VMI with a missing claim.
func cannotBePlaced(g *v1.VirtualMachineInstance) {
	g.Status.Conditions = append(g.Status.Conditions, v1.VirtualMachineInstanceCondition{Type: "PodScheduled", Status: corev1.ConditionFalse, Reason: "Unschedulable"})
}

// provisions adds a temporary Pod.
func provisions(change ...func(*corev1.Pod)) func(*vmi.Snapshot) {
	return with(pod("t", append([]func(*corev1.Pod){temporary}, change...)...))
}

func specFirstConsumer() specRows {
	const waits = "DataVolumesReady=False/NotAllDVsReady "
	const filled = "DataVolumesReady=True/AllDVsReady "
	wffc := func(more ...func(*vmi.Snapshot)) []func(*vmi.Snapshot) {
		return append(given(of(v1.Pending), imports("root", cdiv1.WaitForFirstConsumer, corev1.ConditionFalse)), more...)
	}
	succeeded := func(more ...func(*vmi.Snapshot)) []func(*vmi.Snapshot) {
		return append(given(of(v1.Pending), imports("root", cdiv1.Succeeded, corev1.ConditionTrue)), more...)
	}
	broken := func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
	}
	foreign := func(s *vmi.Snapshot) {
		s.Pods = vmi.OwnedPods(s.VMI, []corev1.Pod{*pod("t", temporary)})
	}
	ours := func(s *vmi.Snapshot) {
		p := pod("t", temporary)
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(s.VMI, v1.VirtualMachineInstanceGroupVersionKind)}
		s.Pods = vmi.OwnedPods(s.VMI, []corev1.Pod{*p})
	}
	launchers := func(s *vmi.Snapshot) { s.Attachments = []*corev1.Pod{pod("t", temporary)} }
	return specRows{
		"22 a DataVolume waits for its first consumer": {
			given: wffc(), phase: v1.Pending, do: "CreateTemporary", conditions: waits + "Provisioning=True " + noPodYet},
		"22 one of two does": {
			given: wffc(imports("data", cdiv1.Succeeded, corev1.ConditionTrue)), phase: v1.Pending, do: "CreateTemporary", conditions: waits + "Provisioning=True " + noPodYet},
		"22 one does, and another is not ready": {
			given: wffc(imports("data", cdiv1.ImportInProgress, corev1.ConditionFalse)), phase: v1.Pending, waits: "NotAllDVsReady",
			conditions: waits + "Provisioning=True " + noPodYet},
		"23 its Pod runs": {
			given: wffc(provisions()), phase: v1.Pending, waits: "WaitingForFirstConsumer", conditions: waits + "Provisioning=True " + noPodYet, settled: true},
		"23 its Pod has succeeded": {
			given: wffc(provisions(podPhase(corev1.PodSucceeded))), phase: v1.Pending, waits: "WaitingForFirstConsumer",
			conditions: waits + "Provisioning=True " + noPodYet, settled: true},
		"23 its Pod cannot be placed": {
			given: wffc(provisions(unscheduled)), phase: v1.Pending, waits: "WaitingForFirstConsumer",
			conditions: waits + "PodScheduled=False/Unschedulable Provisioning=True " + noPodYet, settled: true},
		"23 its Pod has failed": {
			given: wffc(provisions(podPhase(corev1.PodFailed))), phase: v1.Failed, conditions: waits + noPodYet},
		"23 its Pod ends with an error": {
			given: wffc(provisions(broken)), phase: v1.Failed, conditions: waits + noPodYet},
		"25 the DataVolume is filled and the Pod runs": {
			given: succeeded(provisions()), phase: v1.Pending, do: "DeletePod t grace=0s", waits: "PodTerminating", conditions: filled + noPodYet},
		"25 the Pod has succeeded": {
			given: succeeded(provisions(podPhase(corev1.PodSucceeded))), phase: v1.Pending, do: "DeletePod t grace=0s", waits: "PodTerminating", conditions: filled + noPodYet},
		"25 the Pod is on its way out (better: it is deleted once)": {
			given: succeeded(provisions(terminating)), phase: v1.Pending, waits: "PodTerminating", conditions: filled + noPodYet, settled: true},
		"25 the Pod is gone": {given: succeeded(), phase: v1.Pending, do: "CreateLauncher", conditions: filled + noPodYet},
		"25 a Pod that could not be placed (better: it goes as well, it would be in the way)": {
			given: succeeded(provisions(unscheduled)), phase: v1.Pending, do: "DeletePod t grace=0s", waits: "PodTerminating", conditions: filled + noPodYet},
		"26 a temporary Pod of somebody else": {given: succeeded(foreign), phase: v1.Pending, do: "CreateLauncher", conditions: filled + noPodYet},
		"26 a temporary Pod of the guest": {
			given: succeeded(ours), phase: v1.Pending, do: "DeletePod t grace=0s", waits: "PodTerminating", conditions: filled + noPodYet},
		"26 a temporary Pod of the guest's Pod": {
			given: given(of(v1.Scheduling), imports("root", cdiv1.Succeeded, corev1.ConditionTrue), with(pod("p", fresh)), launchers), phase: v1.Scheduling,
			do: "DeletePod t grace=0s", waits: "ContainersNotReady", conditions: filled + notYet},
	}
}

func specAggregate() specRows {
	rows := specRows{}
	for name, want := range map[string]string{
		"TTT": "True/AllDVsReady", "TFT": "False/NotAllDVsReady", "UUU": "Unknown/NotAllDVsReady",
		"TTU": "Unknown/NotAllDVsReady", "TFU": "False/NotAllDVsReady", "TUF": "False/NotAllDVsReady", "TT-": "Unknown/NotAllDVsReady",
	} {
		in := given(of(v1.Pending))
		for i, letter := range name {
			ready := map[rune]corev1.ConditionStatus{'T': corev1.ConditionTrue, 'F': corev1.ConditionFalse, 'U': corev1.ConditionUnknown}[letter]
			in = append(in, imports(string(rune('a'+i)), cdiv1.Succeeded, ready))
		}
		said := "Not all of"
		if name == "TTT" {
			said = "All of"
		}
		rows["29 the guest's DataVolumes are ready: "+name] = specCase{given: in, says: said, phase: v1.Pending, do: "CreateLauncher",
			conditions: "DataVolumesReady=" + want + " " + noPodYet}
	}
	return rows
}

// keepsClass adds a StorageClass to the cluster.
func keepsClass(name string, annotations texts, mode storagev1.VolumeBindingMode) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) {
		if s.Storage.Classes == nil {
			s.Storage.Classes = map[string]*storagev1.StorageClass{}
		}
		s.Storage.Classes[name] = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, VolumeBindingMode: &mode}
	}
}

// offersModes adds a StorageProfile for file systems to the cluster.
func offersModes(class string, modes ...corev1.PersistentVolumeAccessMode) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) {
		p := &cdiv1.StorageProfile{}
		for mode := range slices.Values(modes) {
			p.Status.ClaimPropertySets = append(p.Status.ClaimPropertySets, cdiv1.ClaimPropertySet{AccessModes: []corev1.PersistentVolumeAccessMode{mode}})
		}
		if s.Storage.Profiles == nil {
			s.Storage.Profiles = map[string]*cdiv1.StorageProfile{}
		}
		maps.Copy(s.Storage.Profiles, map[string]*cdiv1.StorageProfile{class: p})
	}
}

func persistentEFI(s *vmi.Snapshot) {
	s.VMI.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{Persistent: ptr.To(true)}}}
}

func tracking(state v1.ChangedBlockTrackingState) func(*vmi.Snapshot) {
	return func(s *vmi.Snapshot) {
		s.VMI.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: state}
	}
}

// labelled makes a claim the backend storage of the VMI.
func labelled(owner string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Labels = texts{"persistent-state-for": "guest"}
		if owner != "" {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: "guest", UID: types.UID(owner)}}
		}
	}
}

func classed(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}
