// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

const (
	// stateVolume is the volume of a launcher Pod with the claim that persists the VMI's
	// TPM and firmware state and its changed block tracking.
	stateVolume = "vm-state"
	// stateLabel marks the claim with the state of the VMI that its value names.
	stateLabel = "persistent-state-for"
)

// targetObjects decides about the claims and Pods that the target needs beside its launcher.
type targetObjects struct{ *decision }

// TargetStateName returns the name of the claim that takes over the VMI's state from a claim
// that only one node can use at a time. Equal arguments give equal names, so that repeated
// creations have one effect.
func TargetStateName(vmi *v1.VirtualMachineInstance, migration types.UID) string {
	sum := sha256.Sum256([]byte("state of migration\x00" + migration))
	return stateLabel + "-" + vmi.Name + "-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:10]
}

// StateClaims returns the names of the claims with the VMI's state before and after the
// migration, which are equal if the claim can be used on many nodes. Both are empty for a VMI
// without such state. It needs the first of them in Snapshot.Claims, and SourcePod until they
// are recorded in the migration.
func (s Snapshot) StateClaims() (source, target string) {
	switch st := s.Migration.Status.MigrationState; {
	case s.Migration.Status.Phase == v1.MigrationPhaseUnset, s.Migration.Status.Phase == v1.MigrationPending:
		// Until there is a target Pod the VMI may still get into another Pod.
	case st != nil && st.TargetPersistentStatePVCName != "":
		return st.SourcePersistentStatePVCName, st.TargetPersistentStatePVCName
	}
	if s.VMI == nil || s.SourcePod == nil {
		return "", ""
	}
	for i := range s.SourcePod.Spec.Volumes {
		if v := &s.SourcePod.Spec.Volumes[i]; v.Name == stateVolume && v.PersistentVolumeClaim != nil {
			source = v.PersistentVolumeClaim.ClaimName
		}
	}
	if source == "" || shared(s.Claims[source]) {
		return source, source
	}
	return source, TargetStateName(s.VMI, s.Migration.UID)
}

// shared reports whether Pods on several nodes can write to the claim.
func shared(c *corev1.PersistentVolumeClaim) bool {
	if c == nil {
		return false
	}
	modes := c.Status.AccessModes
	if len(modes) == 0 {
		modes = c.Spec.AccessModes
	}
	return slices.Contains(modes, corev1.ReadWriteMany)
}

// checkState requires that the claim with the VMI's state, if it has one, exists.
func checkState(s Snapshot, _ time.Time) Finding {
	source, target := s.StateClaims()
	switch field, guest := persistentState(s.VMI), s.Migration.Spec.VMIName; {
	case source == "" && field != "" && s.SourcePod != nil:
		return never(ReasonNotMigratable, fmt.Sprintf("%s requires persistent state, but Pod %q of the VMI has no volume %q for it", field, s.SourcePod.Name, stateVolume),
			"restart the VMI")
	case source != target && len(validation.IsValidLabelValue(guest)) > 0:
		// Older claims have no such label, but a name that contains the VMI's.
		return never(ReasonNotMigratable, fmt.Sprintf("the VMI's name %q is too long for the label %s of its state claim", guest, stateLabel),
			"give the VMI a shorter name, or use a ReadWriteMany claim for its state")
	case source == "" || s.Claims[source] != nil:
		return Finding{}
	}
	return later(reasonWaitingForState, fmt.Sprintf("PersistentVolumeClaim %q with the VMI's state was not found", source), "it must exist")
}

// persistentState returns the field by which the VMI requires state that is persisted in a
// claim of its own, or "".
func persistentState(vmi *v1.VirtualMachineInstance) string {
	if vmi == nil {
		return ""
	}
	d := &vmi.Spec.Domain
	if tpm := d.Devices.TPM; tpm != nil && isSet(tpm.Persistent) && (tpm.Enabled == nil || *tpm.Enabled) {
		return "spec.domain.devices.tpm.persistent"
	}
	if f := d.Firmware; f != nil && f.Bootloader != nil && f.Bootloader.EFI != nil && isSet(f.Bootloader.EFI.Persistent) {
		return "spec.domain.firmware.bootloader.efi.persistent"
	}
	return ""
}

func isSet(b *bool) bool { return b != nil && *b }

// stateReady creates the claim for the VMI's state at the target before a Pod uses it, and
// reports whether it exists.
func (d targetObjects) stateReady() bool {
	source, target := d.s.StateClaims()
	if target == "" || d.s.Claims[target] != nil {
		return true
	}
	if f := checkState(d.s, d.now); f.Blocked { // a custom evaluator may not have this check
		refusal(d).blocked(f)
		return false
	}
	d.explain(handoff.ByController, reasonWaitingForState, fmt.Sprintf("creating PersistentVolumeClaim %q for the VMI's state at the target", target))
	d.act(Action{Verb: CreateClaim, Why: "only one node at a time can use the claim with the VMI's state",
		Claim: stateClaimLike(d.s.Claims[source], target, d.s.Migration)})
	return false
}

// stateClaimLike returns the claim for the target: with the size, class, mode and owners of
// the source's, so that it lives as long. It is empty: the hypervisors transfer the state.
func stateClaimLike(source *corev1.PersistentVolumeClaim, name string, m *v1.VirtualMachineInstanceMigration) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: source.Namespace, Name: name, Labels: map[string]string{}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: source.Spec.AccessModes, Resources: source.Spec.Resources,
			StorageClassName: source.Spec.StorageClassName, VolumeMode: source.Spec.VolumeMode,
		},
	}
	if len(validation.IsValidLabelValue(m.Name)) == 0 {
		c.Labels[v1.MigrationNameLabel] = m.Name
	}
	for i := range source.OwnerReferences {
		owner := *source.OwnerReferences[i].DeepCopy()
		owner.BlockOwnerDeletion = nil // this would need permissions on the owner
		c.OwnerReferences = append(c.OwnerReferences, owner)
	}
	return c.DeepCopy()
}

// claimFollows labels the target's claim as the one with the VMI's state once the VMI has
// arrived, and reports whether it is. This happens before the migration counts as succeeded:
// a VMI that is restarted uses the labeled claim.
func (d targetObjects) claimFollows() bool {
	source, target := d.s.StateClaims()
	c := d.s.Claims[target]
	guest := d.s.Migration.Spec.VMIName
	if target == source || c == nil || c.Labels[stateLabel] == guest && c.Labels[v1.MigrationNameLabel] == "" {
		return true
	}
	if err := d.s.Failures[ChangeClaim]; err != nil {
		refusal(d).failing(reasonStateClaim, fmt.Sprintf("the VMI has migrated; labeling PersistentVolumeClaim %q with its state failed", target), err)
		return false
	}
	next := c.DeepCopy()
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	next.Labels[stateLabel] = guest
	delete(next.Labels, v1.MigrationNameLabel)
	d.act(Action{Verb: ChangeClaim, Why: "the VMI's state is in it now", Claim: next})
	d.explain(handoff.ByController, reasonStateClaim, fmt.Sprintf("the VMI has migrated; labeling PersistentVolumeClaim %q with its state", target))
	return false
}

// dropState deletes the claim that no longer has the VMI's state, if the migration created
// another one: the source's after success, the target's otherwise. Where the outcome is
// unknown both stay.
func (d targetObjects) dropState(moved bool) {
	name, why := d.outdated(moved)
	c := d.s.Claims[name]
	if name == "" || c == nil || c.DeletionTimestamp != nil {
		return
	}
	if used := !moved && c.Labels[stateLabel] != ""; !used { // a VMI may have been restarted with it
		d.act(Action{Verb: DeleteClaim, Why: why, Claim: c})
	}
}

// outdated returns the name of the claim that does not have the VMI's state, and why; nothing
// where that is unknown, or where the migration created no other claim.
func (d targetObjects) outdated(moved bool) (name, why string) {
	source, target := d.s.StateClaims()
	if source == target || target == "" || d.s.VMI != nil && target != TargetStateName(d.s.VMI, d.s.Migration.UID) {
		return "", ""
	}
	if !moved {
		return target, "the VMI's state is not in it"
	}
	kept := d.s.Claims[target]
	if kept == nil || kept.DeletionTimestamp != nil || kept.Labels[stateLabel] == "" {
		return "", "" // keep the other claim, whatever became of this one
	}
	return source, "the VMI's state is now in " + target
}
