// SPDX-License-Identifier: Apache-2.0

// Package volumeclaim returns the PersistentVolumeClaims of volumes of VMIs. The claim of a DataVolume has its name.
package volumeclaim

import v1 "kubevirt.io/api/core/v1"

// Of returns the claim that a volume is: named by itself, or by its DataVolume; empty if there is none.
func Of(v *v1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.DataVolume != nil:
		return v.DataVolume.Name
	default:
		return ""
	}
}

// Written returns the claim that a volume writes to, that of a memory dump included; empty if there is none.
func Written(v *v1.Volume) string {
	if v.MemoryDump == nil || v.PersistentVolumeClaim != nil || v.DataVolume != nil {
		return Of(v)
	}
	return v.MemoryDump.ClaimName
}

// Read returns the claim that a volume reads or writes, that below an ephemeral one included; empty if there is none.
func Read(v *v1.Volume) string {
	name, e := Written(v), v.Ephemeral
	if name == "" && e != nil && e.PersistentVolumeClaim != nil {
		return e.PersistentVolumeClaim.ClaimName
	}
	return name
}
