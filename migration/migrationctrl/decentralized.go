// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/template"
)

// decentralized reports whether KubeVirt's feature gate for migrations between clusters is
// enabled.
func decentralized(kv *v1.KubeVirt) bool {
	return template.ConfigFrom(kv, "").GateEnabled(migration.FeatureGate)
}

// apart reads the additional inputs of a migration between clusters.
func (r gatherer) apart(ctx context.Context, g *gathered) error {
	if !g.Migration.IsDecentralized() {
		return nil
	}
	if g.kubeVirt != nil {
		g.SyncAddresses = g.kubeVirt.Status.SynchronizationAddresses
	}
	if !g.NeedsSending() {
		return nil
	}
	g.Sending = &migration.Sending{}
	if err := r.selectors(ctx, g); err != nil {
		return err
	}
	for i := range g.VMI.Spec.Volumes {
		if err := r.travels(ctx, g, &g.VMI.Spec.Volumes[i]); err != nil {
			return err
		}
	}
	return nil
}

// selecting are the prefixes of the labels that a target node must share with the VMI's
// node. The architecture is among them since a receiver requires at least one
// label.
var selecting = []string{v1.HostModelCPULabel, v1.HostModelRequiredFeaturesLabel, v1.CPUModelVendorLabel, corev1.LabelArchStable}

// selectors reads the labels from the VMI's node.
func (r gatherer) selectors(ctx context.Context, g *gathered) error {
	node := &corev1.Node{}
	err := r.Client.Get(ctx, types.NamespacedName{Name: g.VMI.Status.NodeName}, node)
	if apierrors.IsNotFound(err) {
		g.Sending.Missing = fmt.Sprintf("Node %q", g.VMI.Status.NodeName)
		return nil
	}
	if err != nil {
		return fmt.Errorf("migrationctrl: read Node %s: %w", g.VMI.Status.NodeName, err)
	}
	g.Sending.NodeSelectors = map[string]string{}
	for key, value := range node.Labels {
		for _, prefix := range selecting {
			if strings.HasPrefix(key, prefix) {
				g.Sending.NodeSelectors[key] = value
			}
		}
	}
	return nil
}

// travels adds the claim of a volume. Its target is a claim of the same name, as the VMI's
// spec is the same on both sides.
func (r gatherer) travels(ctx context.Context, g *gathered, volume *v1.Volume) error {
	var name string
	switch {
	case volume.PersistentVolumeClaim != nil:
		name = volume.PersistentVolumeClaim.ClaimName
	case volume.DataVolume != nil:
		name = volume.DataVolume.Name
	default:
		return nil
	}
	claim := &corev1.PersistentVolumeClaim{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: g.VMI.Namespace, Name: name}, claim)
	if apierrors.IsNotFound(err) {
		g.Sending.Missing = fmt.Sprintf("PersistentVolumeClaim %q", name)
		return nil
	}
	if err != nil {
		return fmt.Errorf("migrationctrl: read PersistentVolumeClaim %s/%s: %w", g.VMI.Namespace, name, err)
	}
	info := v1.PersistentVolumeClaimInfo{
		ClaimName: name, AccessModes: claim.Spec.AccessModes, VolumeMode: claim.Spec.VolumeMode,
		Requests: claim.Spec.Resources.Requests, Capacity: claim.Status.Capacity,
	}
	g.Sending.Volumes = append(g.Sending.Volumes, v1.StorageMigratedVolumeInfo{
		VolumeName: volume.Name, SourcePVCInfo: info.DeepCopy(), DestinationPVCInfo: info.DeepCopy(),
	})
	return nil
}

// between lists the unfinished migrations between clusters: they depend on the cluster's
// addresses and the feature gate in the KubeVirt object.
func (r watcher) between(ctx context.Context) []reconcile.Request {
	var list v1.VirtualMachineInstanceMigrationList
	if err := r.Client.List(ctx, &list); err != nil {
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if m := &list.Items[i]; m.IsDecentralized() && !m.IsFinal() {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)})
		}
	}
	return out
}
