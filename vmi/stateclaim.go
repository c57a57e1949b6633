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

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/volumeclaim"
)

// stateLabel is the label of a backend storage claim; its value is the VMI's name. Claims
// created before the label existed are named by it, a dash and the VMI's name.
const stateLabel = "persistent-state-for"

// needsState returns the field by which the VMI requests persistent state beside its disks:
// TPM, EFI variables or changed block tracking.
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

// stateClaims returns the backend storage claims that are not being deleted, the one in use
// first: labeled claims, newest first, then the claim with the legacy name.
func stateClaims(s Snapshot) []*corev1.PersistentVolumeClaim {
	// There can be several: a migration to other storage creates the next one beside the one in use,
	// and a restored backup may be labeled by hand. The newest is what the last of them meant.
	claims := labelledClaims(s, false)
	old := s.Storage.Claims[stateLabel+"-"+s.VMI.Name]
	if old != nil && old.DeletionTimestamp == nil && !slices.Contains(claims, old) {
		claims = append(claims, old)
	}
	return claims
}

// labelledClaims returns the labeled backend storage claims, either the terminating ones or the
// others, newest first. Within a second the name decides.
func labelledClaims(s Snapshot, terminating bool) []*corev1.PersistentVolumeClaim {
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

// stateClaim decides about the backend storage claim before the launcher Pod is created. class
// is the configured StorageClass; empty means the default class. The result is one of
//
//   - the wait for the claim, or what is wrong with it;
//   - the claim to create, and the wait for it: the Pod follows in a later pass;
//   - the claim to delete, because the VMI no longer requests persistent state: its Pod may
//     be created in the same pass;
//   - neither: the claim is usable, or none is needed.
func stateClaim(s Snapshot, class string) (*Wait, *Action) {
	field, needed := needsState(s.VMI)
	claims := stateClaims(s)
	switch {
	case !needed:
		return nil, forgetState(s.VMI, claims)
	// Used, not repaired: a claim of the wrong class or size has the guest's keys in it.
	case len(claims) > 0:
		return stateReady(s, claims[0], field), nil
	}
	return makeState(s, field, class)
}

// forgetState deletes the claim of a VMI without persistent state. The label does not suffice:
// a user may have set it on a claim that must be kept.
func forgetState(vmi *v1.VirtualMachineInstance, claims []*corev1.PersistentVolumeClaim) *Action {
	for _, c := range claims {
		if ownsClaim(vmi, c) && !usesClaim(vmi, c.Name) {
			return &Action{Verb: DeleteClaim, Claim: c, Fault: ReasonBackendStorageDelete, Why: "the VirtualMachineInstance has no persistent state"}
		}
	}
	return nil
}

// usesClaim reports whether a volume of the VMI names the claim.
func usesClaim(vmi *v1.VirtualMachineInstance, claim string) bool {
	return slices.ContainsFunc(vmi.Spec.Volumes, func(v v1.Volume) bool { return volumeclaim.Read(&v) == claim }) ||
		slices.ContainsFunc(vmi.Spec.UtilityVolumes, func(v v1.UtilityVolume) bool { return v.ClaimName == claim })
}

// ownsClaim reports whether the claim is owned by the VMI or by an owner of the VMI.
func ownsClaim(vmi *v1.VirtualMachineInstance, c *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(c.OwnerReferences, func(r metav1.OwnerReference) bool { return sharesOwner(vmi, r.UID) })
}

func sharesOwner(vmi *v1.VirtualMachineInstance, uid types.UID) bool {
	return uid != "" && (uid == vmi.UID ||
		slices.ContainsFunc(vmi.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == uid }))
}

// foreignOwner describes another VM or VMI that owns a claim; it is empty if there is none. A
// deleted VMI of the same name is another one: its claim is deleted with it.
func foreignOwner(vmi *v1.VirtualMachineInstance, c *corev1.PersistentVolumeClaim) string {
	if ownsClaim(vmi, c) {
		return ""
	}
	for _, r := range c.OwnerReferences {
		if strings.HasPrefix(r.APIVersion, v1.GroupVersion.Group+"/") && (r.Kind == "VirtualMachine" || r.Kind == "VirtualMachineInstance") {
			return fmt.Sprintf("%s %s/%s of UID %s", r.Kind, vmi.Namespace, r.Name, r.UID)
		}
	}
	return ""
}

// stateReady returns the wait for a claim that is not usable; nil if it is.
func stateReady(s Snapshot, c *corev1.PersistentVolumeClaim, field string) *Wait {
	object := claimObject(s.VMI, c.Name)
	w := &Wait{Reason: ReasonBackendStorageProbe, Object: object, Until: "the claim is Bound", Responsible: handoff.ByUser}
	owner := foreignOwner(s.VMI, c)
	class := s.Storage.Classes[ptr.Deref(c.Spec.StorageClassName, "")]
	switch {
	case owner != "":
		w.Until = "the claim is deleted"
		w.Message = fmt.Sprintf("%s, labelled %s=%s, is owned by %s; delete the owner, or remove the claim's label", object, stateLabel, s.VMI.Name, owner)
	case isBlock(c):
		w.Until = "the claim is replaced"
		w.Message = object + " is a block device, which is not supported; recreate it with spec.volumeMode Filesystem"
	case c.Status.Phase == corev1.ClaimBound:
		return nil
	case c.Status.Phase == corev1.ClaimLost:
		w.Message = object + " is in phase Lost; restore the PersistentVolume, or delete the claim and with it the state"
	case class == nil && ptr.Deref(c.Spec.StorageClassName, "") != "":
		w.Message = fmt.Sprintf("%s: spec.storageClassName: StorageClass %s does not exist; create it, or delete the claim", object, *c.Spec.StorageClassName)
	case class != nil && ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer:
		return nil // it is bound once the launcher Pod is scheduled
	default:
		w.Reason, w.Responsible = ReasonBackendStorageNotReady, handoff.ByStorage
		w.Message = object + " is not Bound yet; check its events"
	}
	w.Message = field + ": " + w.Message
	return w
}
