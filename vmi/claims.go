// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
)

// claimsExist requires the claim of every volume that is not plugged later.
func claimsExist(s Snapshot) *Wait {
	for i := range s.VMI.Spec.Volumes {
		v := &s.VMI.Spec.Volumes[i]
		claim, field := ClaimName(v)
		if claim == "" || s.Storage.Claims[claim] != nil {
			continue
		}
		object := fmt.Sprintf("PersistentVolumeClaim %s/%s", s.VMI.Namespace, claim)
		return &Wait{
			Reason:  ReasonPvcNotFound,
			Message: fmt.Sprintf("spec.volumes[%d].%s: %s does not exist; create it or correct the name", i, field, object),
			Object:  object, Until: "the claim is created", By: ByUser,
		}
	}
	return nil
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
