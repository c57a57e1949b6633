// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// VolumeClaims locates claims that are bound to hostPath or local volumes. The data of other
// volumes is where a kubelet mounts it, which this node does not have.
type VolumeClaims struct {
	// Reader reads PersistentVolumeClaims and PersistentVolumes.
	Reader client.Reader
}

// PersistentVolume returns the name of the volume that the claim is bound to.
func (c VolumeClaims) PersistentVolume(ctx context.Context, namespace, name string) (string, error) {
	pvc, err := c.bound(ctx, namespace, name)
	return pvc.Spec.VolumeName, err
}

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get

func (c VolumeClaims) bound(ctx context.Context, namespace, name string) (pvc corev1.PersistentVolumeClaim, err error) {
	if err := c.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &pvc); err != nil {
		return pvc, fmt.Errorf("read PersistentVolumeClaim %s/%s: %w", namespace, name, err)
	}
	if pvc.Status.Phase != corev1.ClaimBound {
		return pvc, fmt.Errorf("PersistentVolumeClaim %s/%s is %s, not Bound", namespace, name, pvc.Status.Phase)
	}
	return pvc, nil
}

// +kubebuilder:rbac:groups="",resources=persistentvolumes,verbs=get

// Locate returns where the claim's data lies on this node.
func (c VolumeClaims) Locate(ctx context.Context, namespace, name string) (Claim, error) {
	pvc, err := c.bound(ctx, namespace, name)
	if err != nil {
		return Claim{}, err
	}
	var pv corev1.PersistentVolume
	if err := c.Reader.Get(ctx, types.NamespacedName{Name: pvc.Spec.VolumeName}, &pv); err != nil {
		return Claim{}, fmt.Errorf("read PersistentVolume %s: %w", pvc.Spec.VolumeName, err)
	}
	out := Claim{
		Block:  pvc.Spec.VolumeMode != nil && *pvc.Spec.VolumeMode == corev1.PersistentVolumeBlock,
		Shared: slices.Contains(pvc.Spec.AccessModes, corev1.ReadWriteMany),
		Bytes:  pv.Spec.Capacity.Storage().Value(),
	}
	switch {
	case pv.Spec.HostPath != nil:
		out.Path = pv.Spec.HostPath.Path
	case pv.Spec.Local != nil:
		out.Path = pv.Spec.Local.Path
	default:
		return Claim{}, fmt.Errorf("PersistentVolume %s is neither hostPath nor local: volume type is not supported", pv.Name)
	}
	return out, nil
}
