// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
)

const (
	// stateVolume is the volume of a launcher Pod with the claim that keeps what
	// the guest's TPM and firmware remember and which of its blocks have changed.
	stateVolume = "vm-state"
	// stateLabel marks the claim with the state of the guest that its value names.
	stateLabel = "persistent-state-for"
)

// TargetStateName is the name of the claim that takes over the guest's state from
// one that only one node at a time can use. Equal arguments give equal names, so of
// however many attempts to create it one has an effect.
func TargetStateName(vmi *v1.VirtualMachineInstance, migration types.UID) string {
	sum := sha256.Sum256([]byte("state of migration\x00" + migration))
	return stateLabel + "-" + vmi.Name + "-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:10]
}

// StateClaims returns the names of the claims with the guest's state before and
// after the migration, which are one where the claim can be used on many nodes.
// Both are empty for a guest without such state. They need Snapshot.Claims to have
// the first of them, and SourcePod until they are recorded in the migration.
func (s Snapshot) StateClaims() (source, target string) {
	switch st := s.Migration.Status.MigrationState; {
	case s.Migration.Status.Phase == v1.MigrationPhaseUnset, s.Migration.Status.Phase == v1.MigrationPending:
		// Until there is a target Pod the guest may come to be in another one.
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

// CheckState demands that the claim with the guest's state, if it has one, is there
// to be followed.
func CheckState(s Snapshot) Finding {
	source, target := s.StateClaims()
	switch field, guest := persistentState(s.VMI), s.Migration.Spec.VMIName; {
	case source == "" && field != "" && s.SourcePod != nil:
		return never(ReasonNotMigratable, fmt.Sprintf("%s asks for state that is kept, but Pod %q of the guest has no volume %q for it", field, s.SourcePod.Name, stateVolume),
			"restart the guest")
	case source != target && len(validation.IsValidLabelValue(guest)) > 0:
		// Claims from before there was the label have it in their name only.
		return never(ReasonNotMigratable, fmt.Sprintf("the claim for the guest's state at the target needs the guest's name as label %s, for which %q is too long", stateLabel, guest),
			"give the guest a shorter name, or its state a claim that many nodes can use")
	case source == "" || s.Claims[source] != nil:
		return Finding{}
	}
	return later(ReasonWaitingForState, fmt.Sprintf("PersistentVolumeClaim %q with the guest's state is not known", source), "it must exist")
}

// persistentState returns the field by which the guest asks for state that is
// kept in a claim of its own, or nothing.
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

// stateReady sees to the claim for the guest's state at the target, before there is
// a Pod that uses it, and reports whether it is there.
func (d *decision) stateReady() bool {
	source, target := d.s.StateClaims()
	if target == "" || d.s.Claims[target] != nil {
		return true
	}
	if f := CheckState(d.s); f.Blocked { // an evaluator of one's own may be without this check
		d.blocked(f)
		return false
	}
	d.explain(OwnerController, ReasonWaitingForState, fmt.Sprintf("PersistentVolumeClaim %q, for the guest's state at the target, is being created", target))
	d.act(Action{Kind: CreateClaim, Why: "only one node at a time can use the claim with the guest's state",
		Claim: stateClaimLike(d.s.Claims[source], target, d.s.Migration)})
	return false
}

// stateClaimLike returns the claim for the target: of the size, class, mode and
// owners of the one that the guest uses, so that it lives as long. It is empty: the
// hypervisors carry the state over.
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
		owner.BlockOwnerDeletion = nil // that would need a right on whatever it is
		c.OwnerReferences = append(c.OwnerReferences, owner)
	}
	return c.DeepCopy()
}

// claimFollows makes the target's claim the one with the guest's state once the
// guest is there, and reports whether it is. It is done before the migration counts
// as succeeded: a guest that is started anew uses the claim with the label.
func (d *decision) claimFollows() bool {
	source, target := d.s.StateClaims()
	c := d.s.Claims[target]
	guest := d.s.Migration.Spec.VMIName
	if target == source || c == nil || c.Labels[stateLabel] == guest && c.Labels[v1.MigrationNameLabel] == "" {
		return true
	}
	if err := d.s.Failures[ChangeClaim]; err != nil {
		d.failing(ReasonStateClaim, fmt.Sprintf("the guest has moved; PersistentVolumeClaim %q with its state cannot be labelled as such", target), err)
		return false
	}
	next := c.DeepCopy()
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	next.Labels[stateLabel] = guest
	delete(next.Labels, v1.MigrationNameLabel)
	d.act(Action{Kind: ChangeClaim, Why: "the guest's state is there now", Claim: next})
	d.explain(OwnerController, ReasonStateClaim, fmt.Sprintf("the guest has moved; PersistentVolumeClaim %q is being labelled as that with its state", target))
	return false
}

// dropState deletes the claim that the guest's state is not in, if the migration
// made another one: the source's after a move, the target's when there was none.
// Where the outcome is not known both stay.
func (d *decision) dropState(moved bool) {
	name, why := d.outdated(moved)
	c := d.s.Claims[name]
	if name == "" || c == nil || c.DeletionTimestamp != nil {
		return
	}
	if used := !moved && c.Labels[stateLabel] != ""; !used { // a guest may have been started anew with it
		d.act(Action{Kind: DeleteClaim, Why: why, Claim: c})
	}
}

// outdated names the claim that the guest's state is not in, and why it is not; nothing
// where that is not known, or where the migration made no other claim.
func (d *decision) outdated(moved bool) (name, why string) {
	source, target := d.s.StateClaims()
	if source == target || target == "" || d.s.VMI != nil && target != TargetStateName(d.s.VMI, d.s.Migration.UID) {
		return "", ""
	}
	if !moved {
		return target, "the guest's state is not there"
	}
	kept := d.s.Claims[target]
	if kept == nil || kept.DeletionTimestamp != nil || kept.Labels[stateLabel] == "" {
		return "", "" // whatever became of it, the other one is not to be lost as well
	}
	return source, "the guest's state has moved to " + target
}
