// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmirules"
)

// Config is what defaults and checks depend on besides the guest. The zero Config is a cluster with KubeVirt's defaults,
// and a request of a user.
type Config struct {
	// Architecture of guests that name none; empty is amd64.
	Architecture string
	// MachineType of guests that name none, whatever their architecture; empty leaves it to MachineTypes.
	MachineType string
	// MachineTypes by architecture; KubeVirt's where an architecture is missing.
	MachineTypes map[string]string
	// EmulatedMachines are patterns of the machine types that may be asked for, by architecture; KubeVirt's where an
	// architecture is missing.
	EmulatedMachines map[string][]string
	// CPUModel of guests that name none; empty is host-model.
	CPUModel string
	// CPURequest of guests that name none; nil and KubeVirt's own 100m leave it to the renderer of the Pod.
	CPURequest *resource.Quantity
	// NetworkInterface binds guests without networks to the Pod's: bridge or masquerade; empty is bridge.
	NetworkInterface v1.NetworkInterfaceType
	// ForbidPodBridge refuses bridges to the network of the Pod.
	ForbidPodBridge bool
	// NetworkBindings are the registered plugins.
	NetworkBindings map[string]v1.InterfaceBindingPlugin
	// PermittedHostDevices are the devices of nodes that guests may have; nil permits all.
	PermittedHostDevices *v1.PermittedHostDevices
	// EmulatorThreadParity rounds CPUs up to an even number where an emulator thread is isolated.
	EmulatorThreadParity bool
	// QGSSocket is where TDX guests ask for quotes; empty is KubeVirt's /var/run/tdx-qgs/qgs.socket.
	QGSSocket string
	// LiveUpdate bounds the room that guests get for CPUs and memory that are plugged while they run; nil is KubeVirt's: four
	// times what they start with.
	LiveUpdate *v1.LiveUpdateConfiguration
	// NoLiveUpdate gives guests no such room, since changes of them wait for a restart (vmRolloutStrategy: Stage).
	NoLiveUpdate bool
	// FeatureGates that are switched on, and DisabledFeatureGates that are switched off if they are not on.
	FeatureGates, DisabledFeatureGates []string
	// ReservedAnnotations are keys that only the control plane may write, besides those of KubeVirt.
	ReservedAnnotations []string
	// Request is what belongs to one request, not to the cluster.
	Request Request
}

// Request is who writes a guest, and when.
type Request struct {
	// Now is the time of the guest's first phase.
	Now metav1.Time
	// FirmwareUUID identifies the machine of a guest that brings no UUID of its own; empty leaves it without.
	FirmwareUUID types.UID
	// Privileged requests are those of the control plane: they may write spec, status and what is reserved.
	Privileged bool
}

const gateAlignCPUs = "AlignCPUs"

// GateEnabled tells whether a feature gate is on: named in FeatureGates, else not named in DisabledFeatureGates and on by
// default.
func (c Config) GateEnabled(name string) bool {
	return c.gates().Enabled(name)
}

func (c Config) gates() vmirules.Gates {
	return vmirules.Gates{On: c.FeatureGates, Off: c.DisabledFeatureGates}
}

const usualQGSSocket = "/var/run/tdx-qgs/qgs.socket" // of KubeVirt's definition

// ConfigFrom reads the cluster's part of a Config from the KubeVirt object; nil is a cluster with KubeVirt's defaults. The
// result shares maps, slices and pointers with the object.
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
	c.EmulatorThreadParity = parity && c.GateEnabled(gateAlignCPUs)
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
	for arch, of := range map[string]*v1.ArchSpecificConfiguration{amd64: a.Amd64, arm64: a.Arm64, s390x: a.S390x} {
		if of != nil && of.MachineType != "" {
			c.MachineTypes[arch] = of.MachineType
		}
		switch {
		case len(spec.EmulatedMachines) > 0: // of before there was a list for each architecture
			c.EmulatedMachines[arch] = spec.EmulatedMachines
		case of != nil && len(of.EmulatedMachines) > 0:
			c.EmulatedMachines[arch] = of.EmulatedMachines
		}
	}
}
