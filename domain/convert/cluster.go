// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"maps"
	"slices"

	v1 "kubevirt.io/api/core/v1"
)

// KubeVirt feature gates that change domains. All of them are off by default.
const (
	gateFirmwareAutoSelection = "FirmwareAutoSelection"
	gateVGPULiveMigration     = "VGPULiveMigration"
	gatePCINUMAAware          = "PCINUMAAwareTopology"
)

// extendedVerbosity is the verbosity of virt-launcher above which KubeVirt enables the firmware
// log.
const extendedVerbosity = 5

// ClusterFrom reads the settings that apply to all VMIs from a KubeVirt object: the options, and
// the SMBIOS values, nil for KubeVirt's defaults. A nil object is treated as one without any
// configuration. The result shares no memory with the object.
//
// The video model of VMIs with UEFI is bochs, unless the object has the annotation
// kubevirt.io/vga-display-efi-x86. Firmware logs are on if logVerbosity.virtLauncher is above 5.
func ClusterFrom(kv *v1.KubeVirt) (Cluster, *SMBIOS) {
	if kv == nil {
		kv = &v1.KubeVirt{}
	}
	_, vga := kv.Annotations[v1.VGADisplayForEFIGuestsX86Annotation]
	c := Cluster{BochsForEFI: !vga}
	config := &kv.Spec.Configuration
	if p := config.MemBalloonStatsPeriod; p != nil {
		c.BalloonPeriod = new(*p)
	}
	if o := config.VirtualMachineOptions; o != nil {
		c.NoFreePageReporting, c.NoSerialConsoleLog = o.DisableFreePageReporting != nil, o.DisableSerialConsoleLog != nil
	}
	if dev := config.DeveloperConfiguration; dev != nil {
		on := func(gate string) bool { return slices.Contains(dev.FeatureGates, gate) }
		c.FirmwareAutoSelection, c.MigratableVGPU = on(gateFirmwareAutoSelection), on(gateVGPULiveMigration)
		c.NUMAAlignedPCI = on(gatePCINUMAAware)
		c.FeatureGates, c.DisabledFeatureGates = slices.Clone(dev.FeatureGates), slices.Clone(dev.DisabledFeatureGates)
		c.FirmwareLog = dev.LogVerbosity != nil && dev.LogVerbosity.VirtLauncher > extendedVerbosity
	}
	if n := config.NetworkConfiguration; n != nil {
		c.bindings(n.Binding)
	}
	if s := config.SMBIOSConfig; s != nil {
		return c, &SMBIOS{Manufacturer: s.Manufacturer, Family: s.Family, Product: s.Product, SKU: s.Sku, Version: s.Version}
	}
	return c, nil
}

// bindings records, sorted by name, which network binding plugins have a tap device, which allow
// live migration, and which have to be refreshed after one.
func (c *Cluster) bindings(all map[string]v1.InterfaceBindingPlugin) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if a := all[name].DomainAttachmentType; a == v1.Tap || a == v1.ManagedTap {
			c.TapBindings = append(c.TapBindings, name)
		}
		m := all[name].Migration
		if m == nil {
			continue
		}
		c.MigratableBindings = append(c.MigratableBindings, name)
		if m.Method == v1.LinkRefresh {
			c.RefreshedBindings = append(c.RefreshedBindings, name)
		}
	}
}
