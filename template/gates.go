// SPDX-License-Identifier: Apache-2.0

package template

import "slices"

// Feature gates that change a rendered Pod.
const (
	gateImageVolume       = "ImageVolume"
	gateSecondaryNaming   = "PodSecondaryInterfaceNamingUpgrade"
	gateVGPULiveMigration = "VGPULiveMigration"
	gateVMStatsCollector  = "VMStatsCollector"
	gateFirmwareSelection = "FirmwareAutoSelection"
	gateRoot              = "Root"
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
	gateContainerPaths    = "ContainerPathVolumes"
)

// gatesOn are the beta gates that are on unless disabled.
var gatesOn = []string{
	gateImageVolume, gateSecondaryNaming, gateExternalNetInject, gateGPUsWithDRA, gateHostDevicesDRA,
}

// GateEnabled tells whether a feature gate is on: named in FeatureGates, else not named in DisabledFeatureGates and on by
// default.
func (c Config) GateEnabled(name string) bool {
	if slices.Contains(c.FeatureGates, name) {
		return true
	}
	return !slices.Contains(c.DisabledFeatureGates, name) && slices.Contains(gatesOn, name)
}
