// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// Reasons of the Synchronized condition for storage, as KubeVirt spells them.
const (
	// ReasonFailedHotplugSync: an attachment, trigger or first-consumer Pod could not be
	// created or deleted.
	ReasonFailedHotplugSync = "FailedHotplugSync"
	// ReasonFailedDataVolumeImport: a DataVolume does not exist.
	ReasonFailedDataVolumeImport = "FailedDataVolumeImport"
	// ReasonPVCNotReady: the claim of a hotplugged volume is not usable yet.
	ReasonPVCNotReady = "PVCNotReady"
	// ReasonBackendStorageCreate, ReasonBackendStorageProbe, ReasonBackendStorageNotReady
	// and ReasonBackendStorageDelete: the backend storage claim could not be created,
	// is not usable, is not bound yet, or could not be deleted.
	ReasonBackendStorageCreate   = "FailedBackendStorageCreate"
	ReasonBackendStorageProbe    = "FailedBackendStorageProbe"
	ReasonBackendStorageNotReady = "BackendStorageNotReady"
	ReasonBackendStorageDelete   = "Failed deleting backend storage"
)

// claimsExist requires the claim of every volume that is not hotplugged, and the
// DataVolume of a claim that one populates.
func claimsExist(s Snapshot) *Wait {
	for i := range s.VMI.Spec.Volumes {
		v := &s.VMI.Spec.Volumes[i]
		name, field := claimName(v)
		if field == "" {
			continue
		}
		field = fmt.Sprintf("spec.volumes[%d].%s", i, field)
		claim := s.Storage.Claims[name]
		if claim == nil {
			return noClaim(s, v, name, field)
		}
		if dv, filler := s.Storage.importer(claim); filler != "" && dv == nil {
			return noDataVolume(s.VMI, name, filler, field)
		}
	}
	return nil
}

// noClaim returns the wait for a missing claim.
func noClaim(s Snapshot, v *v1.Volume, name, field string) *Wait {
	object := claimObject(s.VMI, name)
	w := &Wait{
		Reason:  ReasonPvcNotFound,
		Message: field + ": " + object + " does not exist; create it or correct the name",
		Object:  object, Until: "the claim is created", Responsible: handoff.ByUser,
	}
	switch {
	case name == "":
		w.Message = field + ": Required value: name a PersistentVolumeClaim in namespace " + s.VMI.Namespace
	case v.DataVolume == nil:
	case s.Storage.DataVolumes[name] != nil:
		w.Message = field + ": " + object + " does not exist; waiting for CDI to create it for the DataVolume of the same name" + trouble(s.Storage.DataVolumes[name])
		w.Responsible = handoff.ByStorage
	default:
		w.Message = field + ": neither " + object + " nor a DataVolume of the same name exists; create the DataVolume or correct the name"
	}
	return w
}

// noDataVolume returns the wait for a claim whose DataVolume is missing: whether the claim
// was ever populated is unknown.
func noDataVolume(vmi *v1.VirtualMachineInstance, claim, filler, field string) *Wait {
	object := dataVolumeObject(vmi, filler)
	return &Wait{
		Reason: ReasonFailedDataVolumeImport,
		Message: fmt.Sprintf("%s: %s belongs to %s, which does not exist; recreate both, or remove the claim's owner reference if it is fully populated",
			field, claimObject(vmi, claim), object),
		Object: object, Until: "the DataVolume is created, or the claim has no DataVolume owner", Responsible: handoff.ByUser,
	}
}

// claimName returns the claim that a volume needs before the launcher Pod can exist,
// and the field that names it; both are empty when the volume needs none.
func claimName(v *v1.Volume) (claim, field string) {
	switch {
	case v.PersistentVolumeClaim != nil && !v.PersistentVolumeClaim.Hotpluggable:
		return v.PersistentVolumeClaim.ClaimName, "persistentVolumeClaim.claimName"
	case v.DataVolume != nil && !v.DataVolume.Hotpluggable:
		return v.DataVolume.Name, "dataVolume.name"
	case v.Ephemeral != nil && v.Ephemeral.PersistentVolumeClaim != nil:
		return v.Ephemeral.PersistentVolumeClaim.ClaimName, "ephemeral.persistentVolumeClaim.claimName"
	default:
		return "", ""
	}
}

func claimObject(vmi *v1.VirtualMachineInstance, name string) string {
	return "PersistentVolumeClaim " + vmi.Namespace + "/" + name
}

func dataVolumeObject(vmi *v1.VirtualMachineInstance, name string) string {
	return "DataVolume " + vmi.Namespace + "/" + name
}

func isBlock(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
}
