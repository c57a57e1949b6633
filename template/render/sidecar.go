// SPDX-License-Identifier: Apache-2.0

package render

import corev1 "k8s.io/api/core/v1"

// Sidecar is an additional container that takes part in the configuration of the domain (hooks.kubevirt.io/hookSidecars, or
// the sidecar of a network binding plugin). It is rendered as container hook-sidecar-<index>.
type Sidecar struct {
	// Image defaults to Config.SidecarShimImage.
	Image string `json:"image,omitempty"`
	// PullPolicy defaults to the kubelet's.
	PullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// Command and Args default to those of the image.
	Command []string `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	// ConfigMap, if set, mounts one key of a ConfigMap.
	ConfigMap *SidecarConfigMap `json:"configMap,omitempty"`
	// Claim, if set, mounts a PersistentVolumeClaim.
	Claim *SidecarClaim `json:"pvc,omitempty"`
	// Plugin is the name of the network binding plugin that the sidecar belongs to; empty for others.
	Plugin string `json:"-"`
	// DeviceInfo mounts the Pod's network-info file into the sidecar.
	DeviceInfo bool `json:"-"`
	// From is the field of the VMI, or the fact, that the sidecar is derived from, for errors and for Explain. Defaults to
	// sidecars[<index>].
	From string `json:"-"`
}

// SidecarConfigMap is a key of a ConfigMap that is mounted into a sidecar as a file.
type SidecarConfigMap struct {
	// Name of the ConfigMap, in the namespace of the VMI.
	Name string `json:"name"`
	// Key is the key in the ConfigMap.
	Key string `json:"key"`
	// HookPath is the path of the file in the sidecar.
	HookPath string `json:"hookPath"`
}

// SidecarClaim is a claim that is mounted into a sidecar.
type SidecarClaim struct {
	// Name of the PersistentVolumeClaim, in the namespace of the VMI.
	Name string `json:"name"`
	// VolumePath is the mount path in the sidecar.
	VolumePath string `json:"volumePath"`
	// SharedComputePath is the mount path in the compute container. Defaults to no mount.
	SharedComputePath string `json:"sharedComputePath,omitempty"`
}
