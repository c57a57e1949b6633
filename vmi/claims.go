// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// Reasons of the Synchronized condition that are about storage, as KubeVirt spells
// them.
const (
	// ReasonFailedHotplugSync: what is plugged into the guest, or the Pod that has
	// its claims provisioned, could not be created or deleted.
	ReasonFailedHotplugSync = "FailedHotplugSync"
	// ReasonFailedDataVolumeImport: a DataVolume does not exist.
	ReasonFailedDataVolumeImport = "FailedDataVolumeImport"
	// ReasonPVCNotReady: the claim of a volume to be plugged in cannot be used yet.
	ReasonPVCNotReady = "PVCNotReady"
	// ReasonBackendStorageCreate, ReasonBackendStorageProbe, ReasonBackendStorageNotReady
	// and ReasonBackendStorageDelete: the claim with the guest's state cannot be made,
	// cannot be used, is not bound yet, or cannot be deleted.
	ReasonBackendStorageCreate   = "FailedBackendStorageCreate"
	ReasonBackendStorageProbe    = "FailedBackendStorageProbe"
	ReasonBackendStorageNotReady = "BackendStorageNotReady"
	ReasonBackendStorageDelete   = "Failed deleting backend storage"
)

// claimsExist requires the claim of every volume that is not plugged later, and the
// DataVolume of a claim that is to be filled by one.
func claimsExist(s Snapshot) *Wait {
	for i := range s.VMI.Spec.Volumes {
		v := &s.VMI.Spec.Volumes[i]
		name, field := ClaimName(v)
		if field == "" {
			continue
		}
		field = fmt.Sprintf("spec.volumes[%d].%s", i, field)
		claim := s.Storage.Claims[name]
		if claim == nil {
			return s.noClaim(v, name, field)
		}
		if dv, filler := s.importer(claim); filler != "" && dv == nil {
			return s.noDataVolume(name, filler, field)
		}
	}
	return nil
}

// noClaim is the wait for a claim that does not exist.
func (s Snapshot) noClaim(v *v1.Volume, name, field string) *Wait {
	object := s.claimObject(name)
	w := &Wait{
		Reason:  ReasonPvcNotFound,
		Message: field + ": " + object + " does not exist; create it or correct the name",
		Object:  object, Until: "the claim is created", By: ByUser,
	}
	switch {
	case name == "":
		w.Message = field + " is empty; name a PersistentVolumeClaim of namespace " + s.VMI.Namespace
	case v.DataVolume == nil:
	case s.Storage.DataVolumes[name] != nil:
		w.Message = field + ": " + object + " does not exist; it is for CDI to make it for the DataVolume of that name" + trouble(s.Storage.DataVolumes[name])
		w.By = ByStorage
	default:
		w.Message = field + ": neither " + object + " nor a DataVolume of that name exists; create the DataVolume or correct the name"
	}
	return w
}

// noDataVolume is the wait for a claim whose DataVolume is gone: nobody can tell
// whether the claim was ever filled.
func (s Snapshot) noDataVolume(claim, filler, field string) *Wait {
	object := s.dataVolumeObject(filler)
	return &Wait{
		Reason: ReasonFailedDataVolumeImport,
		Message: fmt.Sprintf("%s: %s belongs to %s, which does not exist; create both anew, or take the owner reference from the claim if it is complete",
			field, s.claimObject(claim), object),
		Object: object, Until: "the DataVolume is created, or the claim belongs to none", By: ByUser,
	}
}

// ClaimName returns the claim a volume needs before the guest's Pod can exist
// and the field that names it; both are empty when it needs none.
func ClaimName(v *v1.Volume) (claim, field string) {
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

// sourceClaim returns the claim of a volume, plugged or not; empty if it has none.
func sourceClaim(v *v1.Volume) string {
	if name := writableClaim(v); name != "" {
		return name
	}
	name, _ := ClaimName(v)
	return name
}

func (s Snapshot) claimObject(name string) string {
	return "PersistentVolumeClaim " + s.VMI.Namespace + "/" + name
}

func (s Snapshot) dataVolumeObject(name string) string {
	return "DataVolume " + s.VMI.Namespace + "/" + name
}

func isBlock(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
}
