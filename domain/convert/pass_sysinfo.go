// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"libvirt.org/go/libvirtxml"
)

// sysinfo sets the system information in SMBIOS. Its UUID always is that of the domain.
func sysinfo(c *Conversion) error {
	cluster := c.Facts.SMBIOS
	if cluster == nil {
		cluster = &SMBIOS{Manufacturer: "KubeVirt", Family: "KubeVirt", Product: "None"}
	}
	sys := &libvirtxml.DomainSysInfoSystem{}
	add := func(name, value string) {
		sys.Entry = append(sys.Entry, libvirtxml.DomainSysInfoEntry{Name: name, Value: value})
	}
	add("uuid", c.Domain.UUID)
	if fw := c.VMI.Spec.Domain.Firmware; fw != nil && fw.Serial != "" {
		add("serial", fw.Serial)
	}
	add("manufacturer", cluster.Manufacturer)
	add("family", cluster.Family)
	add("product", cluster.Product)
	add("sku", cluster.SKU)
	add("version", cluster.Version)
	smbios := &libvirtxml.DomainSysInfoSMBIOS{System: sys}
	if ch := c.VMI.Spec.Domain.Chassis; ch != nil {
		smbios.Chassis = &libvirtxml.DomainSysInfoChassis{Entry: []libvirtxml.DomainSysInfoEntry{
			{Name: "manufacturer", Value: ch.Manufacturer},
			{Name: "version", Value: ch.Version},
			{Name: "serial", Value: ch.Serial},
			{Name: "asset", Value: ch.Asset},
			{Name: "sku", Value: ch.Sku},
		}}
	}
	c.Domain.SysInfo = []libvirtxml.DomainSysInfo{{SMBIOS: smbios}}
	return nil
}
