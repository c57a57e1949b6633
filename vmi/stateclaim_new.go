// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/handoff"
)

const (
	// profileLabel requests CDI to complete a claim from the StorageProfile of its class.
	profileLabel = "cdi.kubevirt.io/applyStorageProfile"

	virtDefaultClass = "storageclass.kubevirt.io/is-default-virt-class"
	defaultClass     = "storageclass.kubernetes.io/is-default-class"

	// stateSize suffices for TPM and EFI variables, blockMapSize for changed block tracking, in bytes.
	stateSize, blockMapSize = 10 << 20, 512 << 20

	stateHashSize = 10 // characters of five bits each
)

// StateClaimName returns the name of the VMI's backend storage claim. The name is derived
// from the owner's UID, so that the state survives the VMI, and repeated attempts to create
// the claim create only one. A snapshot must include the claim of that name, whatever its
// labels.
func StateClaimName(vmi *v1.VirtualMachineInstance) string {
	uid := vmi.UID
	if c := metav1.GetControllerOf(vmi); c != nil {
		uid = c.UID
	} else if len(vmi.OwnerReferences) > 0 {
		uid = vmi.OwnerReferences[0].UID
	}
	// With "state" in it, so that no other name that is derived from the same UID is ever equal.
	sum := sha256.Sum256([]byte("state\x00" + uid))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:stateHashSize]
	return stateLabel + "-" + vmi.Name + "-" + hash
}

// makeState returns the claim to create, or the wait for what blocks it.
func makeState(s Snapshot, field, configured string) (*Wait, *Action) {
	name := StateClaimName(s.VMI)
	if w := stateNameFree(s, name); w != nil {
		w.Message = field + ": " + w.Message
		return w, nil
	}
	class, fault := stateClass(s.Storage.Classes, configured)
	if class == nil {
		return &Wait{
			Reason: ReasonBackendStorageCreate, Message: field + ": " + fault,
			Object: claimObject(s.VMI, name), Until: "a StorageClass is available", Responsible: handoff.ByUser,
		}, nil
	}
	size := int64(stateSize)
	if tracksBlocks(s.VMI) {
		size += blockMapSize
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.VMI.Namespace, Name: name,
			Labels:          map[string]string{stateLabel: s.VMI.Name, profileLabel: "true"},
			OwnerReferences: stateOwners(s.VMI),
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(class.Name), VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			AccessModes: []corev1.PersistentVolumeAccessMode{stateAccess(s.Storage.Profiles[class.Name], configured != "")},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)},
			},
		},
	}
	// This is no problem, so Synchronized does not report it.
	return &Wait{
		Reason: ReasonBackendStorageNotReady, Message: field + ": " + claimObject(s.VMI, name) + " is being created",
		Object: claimObject(s.VMI, name), Until: "the claim is created", Responsible: handoff.ByController, Condition: v1.VirtualMachineInstanceReady,
	}, &Action{Verb: CreateClaim, Claim: claim, Fault: ReasonBackendStorageCreate, Why: field + " requires persistent state"}
}

// stateNameFree returns the wait for what blocks a claim of that name; nil if nothing does. A
// terminating claim must be gone first: otherwise the VMI would start without its state.
func stateNameFree(s Snapshot, name string) *Wait {
	w := &Wait{Reason: ReasonBackendStorageCreate, Object: claimObject(s.VMI, name), Until: "the claim is deleted", Responsible: handoff.ByUser}
	if problems := validation.IsValidLabelValue(s.VMI.Name); len(problems) > 0 {
		w.Object = "VirtualMachineInstance " + s.VMI.Namespace + "/" + s.VMI.Name
		w.Until = "the VirtualMachineInstance is recreated with another name"
		w.Message = fmt.Sprintf("metadata.name: Invalid value for label %s of the backend storage claim: %s; use a shorter name", stateLabel, problems[0])
		return w
	}
	c := s.Storage.Claims[name]
	// A claim may have the label under any name: users restore state from backups that way.
	if ending := labelledClaims(s, true); len(ending) > 0 {
		c = ending[0]
	} else if old := s.Storage.Claims[stateLabel+"-"+s.VMI.Name]; c == nil {
		c = old // it is terminating, otherwise stateClaims would have returned it
	}
	switch {
	case c == nil:
		return nil
	case c.DeletionTimestamp != nil:
		w.Object, w.Responsible = claimObject(s.VMI, c.Name), handoff.ByStorage
		w.Message = w.Object + " with the persistent state is being deleted; stop its users, then an empty claim is created"
	default:
		w.Until = "the claim is deleted or labeled"
		w.Message = fmt.Sprintf("%s has the name of the backend storage claim; delete it, or label it %s=%s if it contains the persistent state", w.Object, stateLabel, s.VMI.Name)
	}
	return w
}

// stateOwners returns the owners of the claim: those of the VMI, so that the state survives it,
// or the VMI.
func stateOwners(vmi *v1.VirtualMachineInstance) []metav1.OwnerReference {
	if len(vmi.OwnerReferences) == 0 {
		return []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)}
	}
	owners := make([]metav1.OwnerReference, 0, len(vmi.OwnerReferences))
	for i := range vmi.OwnerReferences {
		owner := *vmi.OwnerReferences[i].DeepCopy()
		owner.BlockOwnerDeletion = nil // it would require a permission on the owner's finalizers
		owners = append(owners, owner)
	}
	return owners
}

// stateClass returns the class of the claim: the configured one, else the default class for
// virtual machines, else the cluster's default. If there is none, fault contains the remedy.
func stateClass(classes map[string]*storagev1.StorageClass, configured string) (class *storagev1.StorageClass, fault string) {
	if configured != "" {
		if class = classes[configured]; class == nil {
			fault = fmt.Sprintf("KubeVirt spec.configuration.vmStateStorageClass: StorageClass %s does not exist; create it or correct the name", configured)
		}
		return class, fault
	}
	for _, annotation := range []string{virtDefaultClass, defaultClass} {
		if class = newestDefault(classes, annotation); class != nil {
			return class, ""
		}
	}
	return nil, fmt.Sprintf("no default StorageClass for backend storage; annotate one with %s=true, or set spec.configuration.vmStateStorageClass of KubeVirt", virtDefaultClass)
}

// newestDefault returns the class with the annotation: the newest, and among equally old ones
// the first by name, as in Kubernetes.
func newestDefault(classes map[string]*storagev1.StorageClass, annotation string) (newest *storagev1.StorageClass) {
	for _, c := range classes {
		if c == nil || c.Annotations[annotation] != "true" {
			continue
		}
		if newest == nil || newest.CreationTimestamp.Before(&c.CreationTimestamp) ||
			newest.CreationTimestamp.Equal(&c.CreationTimestamp) && c.Name < newest.Name {
			newest = c
		}
	}
	return newest
}

// stateAccess returns the access mode of the claim, preferably ReadWriteMany: then a migrating
// VMI keeps its claim.
func stateAccess(p *cdiv1.StorageProfile, configured bool) corev1.PersistentVolumeAccessMode {
	many, one := corev1.ReadWriteMany, corev1.ReadWriteOnce
	switch {
	case offers(p, many):
		return many
	case offers(p, one):
		return one
	case configured:
		return many
	default:
		return one
	}
}

// offers reports whether the StorageProfile supports file systems with that access mode.
func offers(p *cdiv1.StorageProfile, mode corev1.PersistentVolumeAccessMode) bool {
	return p != nil && slices.ContainsFunc(p.Status.ClaimPropertySets, func(set cdiv1.ClaimPropertySet) bool {
		return ptr.Deref(set.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeFilesystem &&
			slices.Contains(set.AccessModes, mode)
	})
}
