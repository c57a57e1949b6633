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
)

const (
	// profileLabel asks CDI to complete a claim by the profile of its class.
	profileLabel = "cdi.kubevirt.io/applyStorageProfile"

	virtDefaultClass = "storageclass.kubevirt.io/is-default-virt-class"
	defaultClass     = "storageclass.kubernetes.io/is-default-class"

	// stateSize is what TPM and firmware need, blockMapSize the maps of changed blocks.
	stateSize, blockMapSize = 10 << 20, 512 << 20

	stateHashSize = 10 // characters of five bits each
)

// StateClaimName is the name of the claim for the guest's state. A guest of a
// VirtualMachine leaves its state to the next one, so the name is that of the owner's
// UID: of however many attempts to create the claim one has an effect. A claim of that
// name belongs into a snapshot, whatever its labels.
func StateClaimName(vmi *v1.VirtualMachineInstance) string {
	uid := vmi.UID
	if c := metav1.GetControllerOf(vmi); c != nil {
		uid = c.UID
	} else if len(vmi.OwnerReferences) > 0 {
		uid = vmi.OwnerReferences[0].UID
	}
	sum := sha256.Sum256([]byte("state\x00" + uid))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:stateHashSize]
	return stateLabel + "-" + vmi.Name + "-" + hash
}

// makeState is the claim to create, or what is in its way.
func (s Snapshot) makeState(field, configured string) (*Wait, *Action) {
	name := StateClaimName(s.VMI)
	if w := s.stateNameFree(name); w != nil {
		w.Message = field + ": " + w.Message
		return w, nil
	}
	class, fault := stateClass(s.Storage.Classes, configured)
	if class == nil {
		return &Wait{
			Reason: ReasonBackendStorageCreate, Message: field + ": " + fault,
			Object: s.claimObject(name), Until: "there is a StorageClass for it", By: ByUser,
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
	// That is no fault, so Synchronized does not tell it.
	return &Wait{
		Reason: ReasonBackendStorageNotReady, Message: field + ": " + s.claimObject(name) + " is being created",
		Object: s.claimObject(name), Until: "the claim is created", By: ByController, Condition: v1.VirtualMachineInstanceReady,
	}, &Action{Verb: CreateClaim, Claim: claim, Fault: ReasonBackendStorageCreate, Why: field + " asks for state that outlives the guest's Pod"}
}

// stateNameFree says what keeps a claim of that name from being created; nil if nothing
// does. State that is being deleted is waited out: the guest would start without it.
func (s Snapshot) stateNameFree(name string) *Wait {
	w := &Wait{Reason: ReasonBackendStorageCreate, Object: s.claimObject(name), Until: "the claim is gone", By: ByUser}
	if problems := validation.IsValidLabelValue(s.VMI.Name); len(problems) > 0 {
		w.Object = "VirtualMachineInstance " + s.VMI.Namespace + "/" + s.VMI.Name
		w.Until = "the guest is created anew under another name"
		w.Message = fmt.Sprintf("metadata.name cannot be the value of label %s of the claim for the guest's state: %s; give the guest a shorter name", stateLabel, problems[0])
		return w
	}
	c := s.Storage.Claims[name]
	if ending := s.labelledClaims(true); len(ending) > 0 {
		c = ending[0]
	} else if old := s.Storage.Claims[stateLabel+"-"+s.VMI.Name]; c == nil {
		c = old // it is being deleted, or it would have been found
	}
	switch {
	case c == nil:
		return nil
	case c.DeletionTimestamp != nil:
		w.Object, w.By = s.claimObject(c.Name), ByStorage
		w.Message = w.Object + " with the guest's state is being deleted; end what uses it, then one without state is created"
	default:
		w.Until = "the claim is gone, or has the label"
		w.Message = fmt.Sprintf("%s has the name of the claim for the guest's state; delete it, or label it %s=%s if that is what it has", w.Object, stateLabel, s.VMI.Name)
	}
	return w
}

// stateOwners are what the claim is deleted with: what the guest belongs to, so that the
// state outlives the guest, or the guest.
func stateOwners(vmi *v1.VirtualMachineInstance) []metav1.OwnerReference {
	if len(vmi.OwnerReferences) == 0 {
		return []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)}
	}
	owners := make([]metav1.OwnerReference, 0, len(vmi.OwnerReferences))
	for i := range vmi.OwnerReferences {
		owner := *vmi.OwnerReferences[i].DeepCopy()
		owner.BlockOwnerDeletion = nil // that would need a right on whatever it is
		owners = append(owners, owner)
	}
	return owners
}

// stateClass is the class of the claim: the one configured, else the default for
// virtual machines, else that of the cluster. If there is none, fault says what to do.
func stateClass(classes map[string]*storagev1.StorageClass, configured string) (class *storagev1.StorageClass, fault string) {
	if configured != "" {
		if class = classes[configured]; class == nil {
			fault = fmt.Sprintf("StorageClass %s, of spec.configuration.vmStateStorageClass of KubeVirt, does not exist; create it or correct the name", configured)
		}
		return class, fault
	}
	for _, annotation := range []string{virtDefaultClass, defaultClass} {
		if class = newestDefault(classes, annotation); class != nil {
			return class, ""
		}
	}
	return nil, fmt.Sprintf("there is no StorageClass for the guest's state; annotate one with %s=true, or name one in spec.configuration.vmStateStorageClass of KubeVirt", virtDefaultClass)
}

// newestDefault is the class with the annotation. Of several the newest counts, and of
// equally old ones the first by name, as in Kubernetes.
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

// stateAccess is the access mode of the claim. From many nodes at once is best: then a
// guest that moves takes its state along by itself.
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

// offers tells whether the class has file systems with that access mode, by its profile.
func offers(p *cdiv1.StorageProfile, mode corev1.PersistentVolumeAccessMode) bool {
	return p != nil && slices.ContainsFunc(p.Status.ClaimPropertySets, func(set cdiv1.ClaimPropertySet) bool {
		return ptr.Deref(set.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeFilesystem &&
			slices.Contains(set.AccessModes, mode)
	})
}
