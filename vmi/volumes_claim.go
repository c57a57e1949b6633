// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
)

// defaultOverhead is the default file system overhead.
const defaultOverhead v1.Percent = "0.055"

// claimInfo records the properties of a volume's claim for the node. Those of a missing claim are
// kept.
func (w *volumeWriter) claimInfo(entry *v1.VolumeStatus, name string) {
	claim := w.Storage.Claims[name]
	if claim == nil {
		return
	}
	info := &v1.PersistentVolumeClaimInfo{
		ClaimName:    claim.Name,
		AccessModes:  slices.Clone(claim.Spec.AccessModes),
		Capacity:     maps.Clone(claim.Status.Capacity),
		Requests:     maps.Clone(claim.Spec.Resources.Requests),
		Preallocated: preallocated(claim),
	}
	if claim.Spec.VolumeMode != nil {
		info.VolumeMode = ptr.To(*claim.Spec.VolumeMode)
	}
	info.FilesystemOverhead = ptr.To(w.overhead(claim))
	entry.PersistentVolumeClaimInfo = info
}

// claimPhase returns the phase of a volume without a Pod, with reason and message.
func (w *volumeWriter) claimPhase(name string) (phase v1.VolumePhase, reason, message string) {
	claim := w.Storage.Claims[name]
	switch {
	case claim == nil:
		return v1.VolumePending, ReasonPvcNotFound, claimObject(w.VMI, name) + " does not exist; create it or correct the name"
	case claim.Status.Phase == corev1.ClaimBound:
		return v1.VolumeBound, ReasonPVCNotReady, claimObject(w.VMI, name) + " is Bound and not attached to the node yet"
	case claim.Status.Phase == corev1.ClaimLost:
		return v1.VolumePending, ReasonPVCNotReady, claimObject(w.VMI, name) + " is in phase Lost; restore the PersistentVolume or name another claim"
	default:
		return v1.VolumePending, ReasonPVCNotReady, claimObject(w.VMI, name) + " is in phase Pending; check its events"
	}
}

// overhead returns the file system overhead of a claim.
func (w *volumeWriter) overhead(claim *corev1.PersistentVolumeClaim) v1.Percent {
	said := w.Storage.Overhead
	switch {
	case said == nil:
		return defaultOverhead
	case isBlock(claim):
		return "0"
	}
	share := said.Global
	if of, known := said.StorageClass[ptr.Deref(claim.Spec.StorageClassName, "")]; known {
		share = of
	}
	if share == "" {
		return defaultOverhead
	}
	return v1.Percent(share)
}

// preallocated reports whether an annotation of the claim requests preallocation.
func preallocated(claim *corev1.PersistentVolumeClaim) bool {
	for key, value := range claim.Annotations {
		if value == "true" && (strings.Contains(key, "/storage.preallocation") || strings.Contains(key, "/storage.thick-provisioned")) {
			return true
		}
	}
	return false
}
