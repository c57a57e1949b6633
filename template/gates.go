// SPDX-License-Identifier: Apache-2.0

package template

import "github.com/virtloom/virtloom/vmi/validate"

// Feature gates that change a rendered Pod.
const (
	gateImageVolume       = "ImageVolume"
	gateSecondaryNaming   = "PodSecondaryInterfaceNamingUpgrade"
	gateVGPULiveMigration = "VGPULiveMigration"
	gateVMStatsCollector  = "VMStatsCollector"
	gateFirmwareSelection = "FirmwareAutoSelection"
	gateRoot              = validate.Root
	gateHypervisor        = "ConfigurableHypervisor"
	gateExternalNetInject = "ExternalNetResourceInjection"
	gateGPUsWithDRA       = "GPUsWithDRA"
	gateHostDevicesDRA    = "HostDevicesWithDRA"
	gateNetworkDRA        = "NetworkDevicesWithDRA"
	gateHypervStrict      = "HypervStrictCheck"
	gateCrossArch         = "CrossArchitectureVirtualization"
	gateIOMMUFD           = "IOMMUFD"
	gatePlugins           = "Plugins"
	gateMCSWorkaround     = "DockerSELinuxMCSWorkaround"
)

// GateEnabled reports whether a feature gate is enabled: listed in FeatureGates, otherwise not listed in
// DisabledFeatureGates and enabled by default.
func (c Config) GateEnabled(name string) bool {
	return c.gates().Enabled(name)
}

func (c Config) gates() validate.Gates {
	return validate.Gates{On: c.FeatureGates, Off: c.DisabledFeatureGates}
}
