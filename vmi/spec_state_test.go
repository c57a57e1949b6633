// SPDX-License-Identifier: Apache-2.0

package vmi_test

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi"
)

var (
	clusterDefault = texts{"storageclass.kubernetes.io/is-default-class": "true"}
	guestsDefault  = texts{"storageclass.kubevirt.io/is-default-virt-class": "true"}
)

const (
	one  = corev1.ReadWriteOnce
	many = corev1.ReadWriteMany

	immediate = storagev1.VolumeBindingImmediate
	firstPod  = storagev1.VolumeBindingWaitForFirstConsumer
)

func specState() specRows {
	const faulty = noPodYet + " Synchronized=False/FailedBackendStorageProbe"
	asks := func(need func(*vmi.Snapshot), more ...func(*vmi.Snapshot)) []func(*vmi.Snapshot) {
		return append(given(of(v1.Pending), need), more...)
	}
	class := keepsClass("fast", clusterDefault, immediate)
	made := "CreateClaim persistent-state-for=guest class=fast ReadWriteOnce 10Mi owner=VirtualMachineInstance/guest"
	madeLarge := "CreateClaim persistent-state-for=guest class=fast ReadWriteOnce 522Mi owner=VirtualMachineInstance/guest"
	of := func(phase corev1.PersistentVolumeClaimPhase) func(*vmi.Snapshot) {
		return exists("state", phase, labelled("uid-1"), classed("fast"))
	}
	return specRows{
		"31 the claim for the state is bound": {given: asks(tpm, class, of(corev1.ClaimBound)), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet},
		"31 the claim is bound to the first Pod": {
			given: asks(tpm, keepsClass("fast", nil, firstPod), of(corev1.ClaimPending)), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet},
		"31 the claim is to be bound at once (better: its events wake the guest, nothing is retried)": {
			given: asks(tpm, class, of(corev1.ClaimPending)), phase: v1.Pending, conditions: noPodYet + " Synchronized=False/BackendStorageNotReady",
			events: "Warning/BackendStorageNotReady", waits: "BackendStorageNotReady", settled: true},
		"31 the class of the claim is gone": {
			given: asks(tpm, of(corev1.ClaimPending)), phase: v1.Pending, conditions: faulty,
			events: "Warning/FailedBackendStorageProbe", waits: "FailedBackendStorageProbe", settled: true},
		"32 persistent firmware variables": {
			given: asks(persistentEFI, class, offersModes("fast", one)), phase: v1.Pending, do: made, conditions: noPodYet, waits: "BackendStorageNotReady"},
		"32 a persistent TPM": {
			given: asks(tpm, class, offersModes("fast", one)), phase: v1.Pending, do: made, conditions: noPodYet, waits: "BackendStorageNotReady"},
		"32 changed blocks are to be tracked": {
			given: asks(tracking(v1.ChangedBlockTrackingInitializing), class, offersModes("fast", one)), phase: v1.Pending, do: madeLarge,
			conditions: noPodYet, waits: "BackendStorageNotReady"},
		"34 changed blocks are tracked no more: the claim goes, the Pod comes": {
			given: asks(tracking(v1.ChangedBlockTrackingDisabled), class, of(corev1.ClaimBound)), phase: v1.Pending,
			do: "DeleteClaim claim=state; CreateLauncher", conditions: noPodYet},
		"34 a claim with the label that is not the guest's (better: it is let alone)": {
			given: asks(tracking(v1.ChangedBlockTrackingDisabled), exists("state", corev1.ClaimBound, labelled(""))), phase: v1.Pending,
			do: "CreateLauncher", conditions: noPodYet},
		"34 a claim with the label that is a disk of the guest (better: it is let alone)": {
			given: asks(reads("state", false), of(corev1.ClaimBound)), phase: v1.Pending, do: "CreateLauncher", conditions: noPodYet},
		"34 the claim could not be deleted": {
			given: asks(tracking(v1.ChangedBlockTrackingDisabled), of(corev1.ClaimBound), failed(vmi.ReasonBackendStorageDelete, "x")), phase: v1.Pending,
			conditions: noPodYet + " Synchronized=False/Failed deleting backend storage", events: "Warning/Failed deleting backend storage",
			waits: "Failed deleting backend storage"},
		"35 the claim for the state is lost": {
			given: asks(tpm, class, of(corev1.ClaimLost)), phase: v1.Pending, conditions: faulty,
			events: "Warning/FailedBackendStorageProbe", waits: "FailedBackendStorageProbe", settled: true},
	}
}

// specStateClaims are the cases on class and owner of the backend storage claim.
func specStateClaims() specRows {
	const waits = "BackendStorageNotReady"
	fast, slow := keepsClass("fast", guestsDefault, immediate), keepsClass("slow", clusterDefault, immediate)
	configured := set(func(c *vmi.Config) { c.StateClass = "named" })
	claim := func(class, mode string) string {
		return "CreateClaim persistent-state-for=guest class=" + class + " " + mode + " 10Mi owner=VirtualMachineInstance/guest"
	}
	asks := func(more ...func(*vmi.Snapshot)) []func(*vmi.Snapshot) {
		return append(given(of(v1.Pending), tpm), more...)
	}
	makes := func(class, mode string, more ...func(*vmi.Snapshot)) specCase {
		return specCase{given: asks(more...), phase: v1.Pending, do: claim(class, mode), conditions: noPodYet, waits: waits}
	}
	none := specCase{given: asks(keepsClass("other", nil, immediate)), phase: v1.Pending,
		conditions: noPodYet + " Synchronized=False/FailedBackendStorageCreate", events: "Warning/FailedBackendStorageCreate",
		waits: "FailedBackendStorageCreate", settled: true}
	absent := none
	absent.given = asks(configured, fast, slow)
	owned := makes("fast", "ReadWriteOnce", fast, func(s *vmi.Snapshot) {
		s.VMI.OwnerReferences = []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "machine", UID: "vm"}}
	})
	owned.do = "CreateClaim persistent-state-for=guest class=fast ReadWriteOnce 10Mi owner=VirtualMachine/machine"
	return specRows{
		"127 the class of the configuration wins":                        makes("named", "ReadWriteMany", configured, fast, slow, keepsClass("named", nil, immediate)),
		"127 then the default for virtual machines":                      makes("fast", "ReadWriteOnce", fast, slow),
		"127 then that of the cluster":                                   makes("slow", "ReadWriteOnce", slow, keepsClass("other", nil, immediate)),
		"127 then there is none":                                         none,
		"127 the class of the configuration does not exist":              absent,
		"127 a profile that offers both: many nodes":                     makes("fast", "ReadWriteMany", fast, offersModes("fast", one, many)),
		"127 a profile that offers one node, of a class configured":      makes("named", "ReadWriteOnce", configured, keepsClass("named", nil, immediate), offersModes("named", one)),
		"128 a guest by itself owns the claim":                           makes("fast", "ReadWriteOnce", fast),
		"128 a guest of a VirtualMachine leaves the claim to that owner": owned,
	}
}
