// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// Storage is the storage state of a VMI's volumes. Missing objects are not in the maps; a map
// is nil if the cluster does not serve the kind, such as DataVolumes without CDI.
type Storage struct {
	// Claims are PersistentVolumeClaims of the VMI's namespace by name: those that its
	// volumes and utility volumes name, including DataVolumes and memory dumps, and those
	// with the label persistent-state-for=<name of the VMI>.
	Claims map[string]*corev1.PersistentVolumeClaim
	// DataVolumes are those, by name, that volumes name or that control one of Claims.
	DataVolumes map[string]*cdiv1.DataVolume
	// Classes are all StorageClasses of the cluster by name.
	Classes map[string]*storagev1.StorageClass
	// Profiles are CDI's StorageProfiles by name of their class: at least that of the
	// class of a backend storage claim.
	Profiles map[string]*cdiv1.StorageProfile
	// Overhead is the file system overhead from CDI's configuration; nil if there is not
	// exactly one CDI, which means 0.055.
	Overhead *cdiv1.FilesystemOverhead
}

// KeepsState reports whether the VMI has persistent state beside its disks, which is stored in
// a backend storage claim: TPM, EFI variables, changed block tracking.
func KeepsState(vmi *v1.VirtualMachineInstance) bool {
	_, needed := needsState(vmi)
	return needed
}
