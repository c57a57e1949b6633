// SPDX-License-Identifier: Apache-2.0

package validate

import (
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

// Config is what of a cluster the rules depend on. The zero Config is a cluster with KubeVirt's defaults.
type Config struct {
	// Architecture of VMIs without one. Defaults to amd64.
	Architecture string
	// MachineType of VMIs without one, whatever their architecture. Defaults to MachineTypes.
	MachineType string
	// MachineTypes by architecture. Missing architectures default to KubeVirt's.
	MachineTypes map[string]string
	// EmulatedMachines are patterns of the supported machine types by architecture. Missing architectures default to
	// KubeVirt's.
	EmulatedMachines map[string][]string
	// NetworkInterface is the binding of VMIs without networks to the Pod network, bridge or masquerade. Defaults to bridge.
	NetworkInterface v1.NetworkInterfaceType
	// ForbidPodBridge rejects bridge bindings to the Pod network.
	ForbidPodBridge bool
	// NetworkBindings are the registered binding plugins.
	NetworkBindings map[string]v1.InterfaceBindingPlugin
	// PermittedHostDevices are the host devices that VMIs may use; nil permits all.
	PermittedHostDevices *v1.PermittedHostDevices
	// FeatureGates are the feature gates of the cluster.
	FeatureGates Gates
}

func (c *Config) cluster() *vmidefaults.Cluster {
	return &vmidefaults.Cluster{Architecture: c.Architecture, MachineType: c.MachineType, MachineTypes: c.MachineTypes,
		NetworkInterface: c.NetworkInterface, ForbidPodBridge: c.ForbidPodBridge}
}
