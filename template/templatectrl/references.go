// SPDX-License-Identifier: Apache-2.0

package templatectrl

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/volumeclaim"
	"github.com/virtloom/virtloom/template/render"
)

const (
	// hookSidecars is the annotation with the VMI's hook sidecars.
	hookSidecars = "hooks.kubevirt.io/hookSidecars"
	// PersistentStateLabel is the label of a claim with the persistent state of a VMI's TPM, firmware and backups. Its value
	// is the VMI's name.
	PersistentStateLabel = "persistent-state-for"
)

// ClaimNames returns the sorted names of the PersistentVolumeClaims in the VMI's namespace that a Pod of the VMI may mount:
// those of its volumes (including DataVolumes, hotplugged volumes and memory dumps), utility volumes and hook sidecars, and
// those of its persistent state with a fixed or recorded name. Claims with [PersistentStateLabel] may have any other name.
func ClaimNames(vmi *v1.VirtualMachineInstance) []string {
	names := map[string]bool{PersistentStateLabel + "-" + vmi.Name: true}
	for i := range vmi.Spec.Volumes {
		names[volumeclaim.Read(&vmi.Spec.Volumes[i])] = true
	}
	for i := range vmi.Spec.UtilityVolumes {
		names[vmi.Spec.UtilityVolumes[i].ClaimName] = true
	}
	for _, s := range sidecarsOf(vmi) {
		if s.Claim != nil {
			names[s.Claim.Name] = true
		}
	}
	if m := vmi.Status.MigrationState; m != nil {
		names[m.SourcePersistentStatePVCName], names[m.TargetPersistentStatePVCName] = true, true
	}
	delete(names, "")
	return slices.Sorted(maps.Keys(names))
}

// configMapNames returns the names of the ConfigMaps that hook sidecars read, sorted.
func configMapNames(vmi *v1.VirtualMachineInstance) []string {
	names := map[string]bool{}
	for _, s := range sidecarsOf(vmi) {
		if s.ConfigMap != nil {
			names[s.ConfigMap.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// sidecarsOf returns the valid hook sidecars. Rendering reports the invalid ones.
func sidecarsOf(vmi *v1.VirtualMachineInstance) []render.Sidecar {
	var elements []json.RawMessage
	if json.Unmarshal([]byte(vmi.Annotations[hookSidecars]), &elements) != nil {
		return nil
	}
	var list []render.Sidecar
	for _, e := range elements {
		var s render.Sidecar
		if json.Unmarshal(e, &s) == nil {
			list = append(list, s)
		}
	}
	return list
}

// networkKeys returns the NetworkAttachmentDefinitions of the VMI's networks, in the order of the networks. The namespace
// defaults to the VMI's.
func networkKeys(vmi *v1.VirtualMachineInstance) []types.NamespacedName {
	var keys []types.NamespacedName
	for i := range vmi.Spec.Networks {
		m := vmi.Spec.Networks[i].Multus
		if m == nil {
			continue
		}
		key := types.NamespacedName{Namespace: vmi.Namespace, Name: m.NetworkName}
		if namespace, name, both := strings.Cut(m.NetworkName, "/"); both {
			key = types.NamespacedName{Namespace: namespace, Name: name}
		}
		if key.Namespace != "" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
