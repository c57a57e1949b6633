// SPDX-License-Identifier: Apache-2.0

package template

// Feature gates that change a rendered Pod.
const (
	gateImageVolume       = "ImageVolume"
	gateSecondaryNaming   = "PodSecondaryInterfaceNamingUpgrade"
	gateVGPULiveMigration = "VGPULiveMigration"
	gateVMStatsCollector  = "VMStatsCollector"
	gateFirmwareSelection = "FirmwareAutoSelection"
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
