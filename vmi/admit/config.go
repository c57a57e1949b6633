// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
	"github.com/virtloom/virtloom/vmi/validate"
)

// Config holds everything but the VMI that defaults and checks depend on. The zero Config is a cluster with KubeVirt's
// defaults and a request of a user.
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
	// CPUModel of VMIs without one. Defaults to host-model.
	CPUModel string
	// CPURequest of VMIs without one; nil and KubeVirt's own 100m leave it to the renderer of the Pod.
	CPURequest *resource.Quantity
	// NetworkInterface is the binding of VMIs without networks to the Pod network, bridge or masquerade. Defaults to bridge.
	NetworkInterface v1.NetworkInterfaceType
	// ForbidPodBridge rejects bridge bindings to the Pod network.
	ForbidPodBridge bool
	// NetworkBindings are the registered binding plugins.
	NetworkBindings map[string]v1.InterfaceBindingPlugin
	// PermittedHostDevices are the host devices that VMIs may use; nil permits all.
	PermittedHostDevices *v1.PermittedHostDevices
	// EmulatorThreadParity rounds CPUs up to an even number if the emulator thread is isolated.
	EmulatorThreadParity bool
	// QGSSocket is the socket of the quote generation service for TDX. Defaults to KubeVirt's /var/run/tdx-qgs/qgs.socket.
	QGSSocket string
	// LiveUpdate limits the headroom for hotplugged CPUs and memory; nil means KubeVirt's default, four times the initial
	// size.
	LiveUpdate *v1.LiveUpdateConfiguration
	// NoLiveUpdate disables that headroom, since changes are applied by a restart (vmRolloutStrategy: Stage).
	NoLiveUpdate bool
	// FeatureGates are enabled; DisabledFeatureGates are disabled unless they are in FeatureGates.
	FeatureGates, DisabledFeatureGates []string
	// ReservedAnnotations are keys that only the control plane may write, in addition to those of KubeVirt.
	ReservedAnnotations []string
	// Request holds the part that belongs to one request, not to the cluster.
	Request Request
}

// Request describes who writes a VMI, and when.
type Request struct {
	// Now is the transition time of the VMI's first phase.
	Now metav1.Time
	// FirmwareUUID is set on VMIs without a firmware UUID; empty leaves it unset.
	FirmwareUUID types.UID
	// Privileged marks requests of the control plane, which may write spec, status and reserved keys.
	Privileged bool
}

const gateAlignCPUs = "AlignCPUs"

// gateEnabled reports whether a feature gate is enabled: listed in FeatureGates, otherwise not listed in
// DisabledFeatureGates and enabled by default.
func (c Config) gateEnabled(name string) bool {
	return c.gates().Enabled(name)
}

func (c Config) gates() validate.Gates {
	return validate.Gates{On: c.FeatureGates, Off: c.DisabledFeatureGates}
}

// cluster returns what defaults depend on.
func (c *Config) cluster() *vmidefaults.Cluster {
	return &vmidefaults.Cluster{Architecture: c.Architecture, MachineType: c.MachineType, MachineTypes: c.MachineTypes,
		NetworkInterface: c.NetworkInterface, ForbidPodBridge: c.ForbidPodBridge}
}

// rules returns what the rules for specs depend on.
func (c *Config) rules() validate.Config {
	return validate.Config{Architecture: c.Architecture, MachineType: c.MachineType, MachineTypes: c.MachineTypes,
		EmulatedMachines: c.EmulatedMachines, NetworkInterface: c.NetworkInterface, ForbidPodBridge: c.ForbidPodBridge,
		NetworkBindings: c.NetworkBindings, PermittedHostDevices: c.PermittedHostDevices, FeatureGates: c.gates()}
}

const usualQGSSocket = "/var/run/tdx-qgs/qgs.socket" // KubeVirt's default

// ConfigFrom reads the cluster's part of a Config from the KubeVirt object; nil means KubeVirt's defaults. The result
// shares maps, slices and pointers with the object.
func ConfigFrom(kv *v1.KubeVirt) Config {
	var c Config
	if kv == nil {
		return c
	}
	spec := &kv.Spec.Configuration
	c.MachineType, c.CPUModel, c.CPURequest = spec.MachineType, spec.CPUModel, spec.CPURequest
	c.PermittedHostDevices = spec.PermittedHostDevices
	c.Architecture = kv.Status.DefaultArchitecture
	c.architectures(spec)
	if n := spec.NetworkConfiguration; n != nil {
		c.NetworkInterface, c.NetworkBindings = v1.NetworkInterfaceType(n.NetworkInterface), n.Binding
		c.ForbidPodBridge = n.PermitBridgeInterfaceOnPodNetwork != nil && !*n.PermitBridgeInterfaceOnPodNetwork
	}
	if d := spec.DeveloperConfiguration; d != nil {
		c.FeatureGates, c.DisabledFeatureGates = d.FeatureGates, d.DisabledFeatureGates
	}
	_, parity := kv.Annotations[v1.EmulatorThreadCompleteToEvenParity]
	c.EmulatorThreadParity = parity && c.gateEnabled(gateAlignCPUs)
	if cc := spec.ConfidentialCompute; cc != nil && cc.TDX != nil && cc.TDX.Attestation != nil && cc.TDX.Attestation.QgsSocketPath != nil {
		c.QGSSocket = *cc.TDX.Attestation.QgsSocketPath
	}
	c.LiveUpdate = spec.LiveUpdateConfiguration
	c.NoLiveUpdate = spec.VMRolloutStrategy != nil && *spec.VMRolloutStrategy != v1.VMRolloutStrategyLiveUpdate
	return c
}

func (c *Config) architectures(spec *v1.KubeVirtConfiguration) {
	c.MachineTypes, c.EmulatedMachines = map[string]string{}, map[string][]string{}
	a := spec.ArchitectureConfiguration
	if a == nil {
		a = &v1.ArchConfiguration{}
	}
	if a.DefaultArchitecture != "" {
		c.Architecture = a.DefaultArchitecture
	}
	for arch, of := range map[string]*v1.ArchSpecificConfiguration{vmidefaults.AMD64: a.Amd64, vmidefaults.ARM64: a.Arm64, vmidefaults.S390X: a.S390x} {
		if of != nil && of.MachineType != "" {
			c.MachineTypes[arch] = of.MachineType
		}
		switch {
		case len(spec.EmulatedMachines) > 0: // deprecated list for all architectures
			c.EmulatedMachines[arch] = spec.EmulatedMachines
		case of != nil && len(of.EmulatedMachines) > 0:
			c.EmulatedMachines[arch] = of.EmulatedMachines
		}
	}
}
