// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
)

// stateLabel is the label of a claim with the state of the guest that the value
// names; with a dash and that name it is also the name of claims from before there
// was the label.
const stateLabel = "persistent-state-for"

// needsState returns the field by which the guest asks for state that outlives its Pod:
// what its TPM and its firmware remember, and which blocks of its disks have changed.
func needsState(vmi *v1.VirtualMachineInstance) (field string, needed bool) {
	d := &vmi.Spec.Domain
	if tpm := d.Devices.TPM; tpm != nil && ptr.Deref(tpm.Enabled, true) && ptr.Deref(tpm.Persistent, false) {
		return "spec.domain.devices.tpm.persistent", true
	}
	if f := d.Firmware; f != nil && f.Bootloader != nil && f.Bootloader.EFI != nil && ptr.Deref(f.Bootloader.EFI.Persistent, false) {
		return "spec.domain.firmware.bootloader.efi.persistent", true
	}
	if tracksBlocks(vmi) {
		return "status.changedBlockTracking", true
	}
	return "", false
}

func tracksBlocks(vmi *v1.VirtualMachineInstance) bool {
	t := vmi.Status.ChangedBlockTracking
	return t != nil && (t.State == v1.ChangedBlockTrackingInitializing || t.State == v1.ChangedBlockTrackingEnabled)
}

// stateClaims are the claims with the guest's state that are not being deleted, the one
// in use first: those with the label, the newest first, then one that has but the name.
func stateClaims(s Snapshot) []*corev1.PersistentVolumeClaim {
	claims := s.labelledClaims(false)
	old := s.Storage.Claims[stateLabel+"-"+s.VMI.Name]
	if old != nil && old.DeletionTimestamp == nil && !slices.Contains(claims, old) {
		claims = append(claims, old)
	}
	return claims
}

// labelledClaims are the claims with the label of the guest's state, either those that
// are being deleted or the others, the newest first. Names decide within a second.
func (s Snapshot) labelledClaims(terminating bool) []*corev1.PersistentVolumeClaim {
	var all []*corev1.PersistentVolumeClaim
	for _, c := range s.Storage.Claims {
		if c != nil && s.VMI.Name != "" && c.Labels[stateLabel] == s.VMI.Name && (c.DeletionTimestamp != nil) == terminating {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *corev1.PersistentVolumeClaim) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return all
}

// stateClaim sees to the claim that keeps the guest's state, before the guest has a
// Pod. class is the StorageClass that the cluster's configuration names for such claims;
// empty leaves it to the defaults. The result is one of
//
//   - what the claim waits for, or what is wrong with it;
//   - the claim to create, and that it is waited for: the Pod comes in a later pass;
//   - the claim to delete, as the guest keeps no state any more: its Pod may be created
//     in the same pass;
//   - neither: all is well.
func stateClaim(s Snapshot, class string) (*Wait, *Action) {
	field, needed := needsState(s.VMI)
	claims := stateClaims(s)
	switch {
	case !needed:
		return nil, s.forgetState(claims)
	case len(claims) > 0:
		return s.stateReady(claims[0], field), nil
	}
	return s.makeState(field, class)
}

// forgetState deletes a claim of a guest that keeps no state. That it has the label is
// not enough: somebody may have given it one who means to keep it.
func (s Snapshot) forgetState(claims []*corev1.PersistentVolumeClaim) *Action {
	for _, c := range claims {
		if s.ownsClaim(c) && !s.mounts(c.Name) {
			return &Action{Verb: DeleteClaim, Claim: c, Fault: ReasonBackendStorageDelete, Why: "the guest keeps no state any more"}
		}
	}
	return nil
}

// mounts tells whether a volume of the guest names the claim.
func (s Snapshot) mounts(claim string) bool {
	return slices.ContainsFunc(s.VMI.Spec.Volumes, func(v v1.Volume) bool { return sourceClaim(&v) == claim }) ||
		slices.ContainsFunc(s.VMI.Spec.UtilityVolumes, func(v v1.UtilityVolume) bool { return v.ClaimName == claim })
}

// ownsClaim tells whether the claim belongs to the guest, or to what the guest belongs to.
func (s Snapshot) ownsClaim(c *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(c.OwnerReferences, func(r metav1.OwnerReference) bool { return s.kin(r.UID) })
}

func (s Snapshot) kin(uid types.UID) bool {
	return uid != "" && (uid == s.VMI.UID ||
		slices.ContainsFunc(s.VMI.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == uid }))
}

// foreignOwner names the other guest that a claim belongs to; it is empty where there is
// none. A guest of the same name that was deleted is another one: its claim goes with it.
func (s Snapshot) foreignOwner(c *corev1.PersistentVolumeClaim) string {
	if s.ownsClaim(c) {
		return ""
	}
	for _, r := range c.OwnerReferences {
		if strings.HasPrefix(r.APIVersion, v1.GroupVersion.Group+"/") && (r.Kind == "VirtualMachine" || r.Kind == "VirtualMachineInstance") {
			return fmt.Sprintf("%s %s/%s of UID %s", r.Kind, s.VMI.Namespace, r.Name, r.UID)
		}
	}
	return ""
}

// stateReady says what keeps the claim from being used; nil if nothing does.
func (s Snapshot) stateReady(c *corev1.PersistentVolumeClaim, field string) *Wait {
	object := s.claimObject(c.Name)
	w := &Wait{Reason: ReasonBackendStorageProbe, Object: object, Until: "the claim is Bound", By: ByUser}
	owner := s.foreignOwner(c)
	class := s.Storage.Classes[ptr.Deref(c.Spec.StorageClassName, "")]
	switch {
	case owner != "":
		w.Until = "the claim is gone"
		w.Message = fmt.Sprintf("%s, labelled %s=%s, belongs to %s; it goes when that goes, or take its label away", object, stateLabel, s.VMI.Name, owner)
	case isBlock(c):
		w.Until = "the claim is replaced"
		w.Message = object + " is a block device and has no folders; make it anew with spec.volumeMode Filesystem"
	case c.Status.Phase == corev1.ClaimBound:
		return nil
	case c.Status.Phase == corev1.ClaimLost:
		w.Message = object + " is Lost, its volume is gone; restore the PersistentVolume, or delete the claim and with it the state"
	case class == nil && ptr.Deref(c.Spec.StorageClassName, "") != "":
		w.Message = fmt.Sprintf("%s: spec.storageClassName: StorageClass %s does not exist; create it, or delete the claim", object, *c.Spec.StorageClassName)
	case class != nil && ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer:
		return nil // it is bound when the guest's Pod is placed
	default:
		w.Reason, w.By = ReasonBackendStorageNotReady, ByStorage
		w.Message = object + " is not Bound yet; see its events"
	}
	w.Message = field + ": " + w.Message
	return w
}
