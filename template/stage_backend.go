// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	stateVolume = "vm-state"
	// stateLabel is the label of a claim with persistent state; its value is the VMI's name. With a dash and that name it is
	// also the name of claims from releases without the label.
	stateLabel      = "persistent-state-for"
	stateMetaDir    = "/run/kubevirt-private/backend-storage-meta"
	libvirtStateDir = "/var/lib/libvirt"
)

// backendStorage adds the claim with the persistent state: TPM, firmware variables, changed block map.
func backendStorage(d *render.Draft) error {
	parts := stateParts(d.VMI())
	if len(parts) == 0 {
		return nil
	}
	claim, err := stateClaim(d, parts[0].field)
	if err != nil {
		return err
	}
	if isBlock(claim) {
		return render.Invalid(parts[0].field, fmt.Sprintf("claim %q must not be a block device", claim.Name),
			"recreate the claim with volumeMode Filesystem")
	}
	from := d.From(parts[0].field + ", Facts.Claims")
	from.Volume(corev1.Volume{Name: stateVolume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
	}})
	from.Container(computeContainer).Mount(corev1.VolumeMount{Name: stateVolume, MountPath: stateMetaDir, SubPath: "meta"})
	if nonRoot(d.VMI()) {
		for _, v := range []corev1.VolumeMount{
			{Name: "private-libvirt", MountPath: privateDir + "/libvirt"},
			{Name: "private-libvirt-qemu", MountPath: privateDir + "/libvirt/qemu"},
		} {
			from.EmptyDir(v.Name)
			from.Container(computeContainer).Mount(v)
		}
	}
	for _, p := range parts {
		for _, m := range p.mounts {
			path := m.root
			if nonRoot(d.VMI()) {
				path = m.user
			}
			d.From(p.field).Container(computeContainer).Mount(corev1.VolumeMount{Name: stateVolume, MountPath: path, SubPath: m.folder})
		}
	}
	return nil
}

// statePart is one kind of persistent state.
type statePart struct {
	field  string // field of the VMI that requests it
	mounts []stateMount
}

// stateMount is a folder of the claim and its mount path for a launcher that runs as root or as qemu's user.
type stateMount struct{ folder, root, user string }

func stateParts(vmi *v1.VirtualMachineInstance) (parts []statePart) {
	if tpm := vmi.Spec.Domain.Devices.TPM; tpm != nil && (tpm.Enabled == nil || *tpm.Enabled) && ptr.Deref(tpm.Persistent, false) {
		parts = append(parts, statePart{"spec.domain.devices.tpm.persistent", []stateMount{
			{"swtpm", libvirtStateDir + "/swtpm", privateDir + "/libvirt/qemu/swtpm"},
			{"swtpm-localca", "/var/lib/swtpm-localca", privateDir + "/var/lib/swtpm-localca"},
		}})
	}
	if f := vmi.Spec.Domain.Firmware; f != nil && f.Bootloader != nil && f.Bootloader.EFI != nil && ptr.Deref(f.Bootloader.EFI.Persistent, false) {
		parts = append(parts, statePart{"spec.domain.firmware.bootloader.efi.persistent", []stateMount{
			{"nvram", libvirtStateDir + "/qemu/nvram", privateDir + "/libvirt/qemu/nvram"},
		}})
	}
	if tracksBlocks(vmi) {
		parts = append(parts, statePart{"status.changedBlockTracking", []stateMount{
			{"cbt", libvirtStateDir + "/qemu/cbt", privateDir + "/libvirt/qemu/cbt"},
		}})
	}
	return parts
}

func tracksBlocks(vmi *v1.VirtualMachineInstance) bool {
	s := vmi.Status.ChangedBlockTracking
	return s != nil && (s.State == v1.ChangedBlockTrackingInitializing || s.State == v1.ChangedBlockTrackingEnabled)
}

// stateClaim returns the claim with the VMI's state; a migration's target may have another one.
func stateClaim(d *render.Draft, field string) (*corev1.PersistentVolumeClaim, error) {
	find := launcherClaim
	if d.Migration() != nil {
		find = targetClaim
	}
	claim, wanted := find(d)
	if claim == nil {
		return nil, &render.Error{
			Field: field, Reason: wanted + " not found; it holds the VMI's persistent state",
			Remedy: "create the PersistentVolumeClaim in the namespace of the VMI", Err: render.ErrMissingFact,
		}
	}
	return claim, nil
}

// launcherClaim returns the claim of a new launcher and a description of the lookup.
func launcherClaim(d *render.Draft) (*corev1.PersistentVolumeClaim, string) {
	name := stateLabel + "-" + d.VMI().Name
	claim := labelledClaim(d, stateLabel, d.VMI().Name)
	if old := d.Facts().Claims[name]; claim == nil && old != nil && old.DeletionTimestamp == nil {
		claim = old
	}
	return claim, fmt.Sprintf("a claim with label %s=%s, or named %s,", stateLabel, d.VMI().Name, name)
}

// targetClaim returns the claim of a migration's target and a description of the lookup.
func targetClaim(d *render.Draft) (*corev1.PersistentVolumeClaim, string) {
	if name := targetClaimName(d); name != "" {
		return d.Facts().Claims[name], fmt.Sprintf("claim %q", name)
	}
	return labelledClaim(d, v1.MigrationNameLabel, d.Migration().Name),
		fmt.Sprintf("a claim with label %s=%s", v1.MigrationNameLabel, d.Migration().Name)
}

// targetClaimName returns the claim name that the migration sets for its target, if any. The VMI's status counts only if it
// is about this migration: that of an earlier one names the claim of the source.
func targetClaimName(d *render.Draft) string {
	if d.Migration().StateClaim != "" {
		return d.Migration().StateClaim
	}
	if s := d.VMI().Status.MigrationState; s != nil && s.MigrationUID == d.Migration().UID {
		return s.TargetPersistentStatePVCName
	}
	return ""
}

// labelledClaim returns the claim with a label. Of several the newest counts: after a migration, the claim of the source
// keeps its label for a while.
func labelledClaim(d *render.Draft, label, value string) (found *corev1.PersistentVolumeClaim) {
	for _, name := range sortedKeys(d.Facts().Claims) {
		c := d.Facts().Claims[name]
		if c == nil || c.DeletionTimestamp != nil || c.Labels[label] != value || (c.Namespace != "" && c.Namespace != d.VMI().Namespace) {
			continue
		}
		if found == nil || c.CreationTimestamp.After(found.CreationTimestamp.Time) {
			found = c
		}
	}
	return found
}
