// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// Storage is what the cluster says of a guest's volumes. What does not exist is
// not in the maps; all of one kind are missing where the cluster does not serve it,
// as DataVolumes without CDI.
type Storage struct {
	// Claims are PersistentVolumeClaims of the guest's namespace by name: those that
	// its volumes and utility volumes name, of DataVolumes and memory dumps too, and
	// those with the label persistent-state-for=<guest>.
	Claims map[string]*corev1.PersistentVolumeClaim
	// DataVolumes are those by name that volumes name or that control one of Claims.
	DataVolumes map[string]*cdiv1.DataVolume
	// Classes are all StorageClasses of the cluster by name.
	Classes map[string]*storagev1.StorageClass
	// Profiles are CDI's StorageProfiles by the name of their class: at least that
	// of the class a claim for the guest's state would have.
	Profiles map[string]*cdiv1.StorageProfile
	// Overhead is what file systems take of a claim by CDI's configuration; nil
	// where there is not exactly one CDI, which means 0.055 of it.
	Overhead *cdiv1.FilesystemOverhead
}

// KeepsState tells whether the guest has state beside its disks, which a claim of its
// own keeps: a persistent TPM, firmware variables, the map of changed blocks.
func KeepsState(vmi *v1.VirtualMachineInstance) bool {
	_, needed := needsState(vmi)
	return needed
}
