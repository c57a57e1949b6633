// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// operatingSystem sets architecture, machine, what is booted and what a reboot
// does.
func operatingSystem(c *Conversion) error {
	s := &c.VMI.Spec
	if s.Architecture != "" && s.Architecture != c.arch.name {
		return c.Invalid("spec.architecture", fmt.Sprintf("%s does not run on a node of %s", s.Architecture, c.arch.name),
			"let it be scheduled to a node of its architecture")
	}
	machine := c.arch.machine
	if s.Domain.Machine != nil && s.Domain.Machine.Type != "" {
		machine = s.Domain.Machine.Type
	}
	c.Domain.OS = &libvirtxml.DomainOS{
		Type: &libvirtxml.DomainOSType{Arch: c.Facts.Arch, Machine: machine, Type: "hvm"},
	}
	if c.arch.smbios {
		c.Domain.OS.SMBios = &libvirtxml.DomainSMBios{Mode: "sysinfo"}
	}
	if s.StartStrategy != nil && *s.StartStrategy == v1.StartStrategyPaused {
		c.Domain.OS.BootMenu = &libvirtxml.DomainBootMenu{Enable: "yes", Timeout: "10000"}
	}
	if err := firmware(c); err != nil {
		return err
	}
	return rebootPolicy(c)
}

// firmware sets how the guest boots.
func firmware(c *Conversion) error {
	fw := c.VMI.Spec.Domain.Firmware
	if fw == nil {
		return nil
	}
	if fw.Bootloader != nil && fw.Bootloader.BIOS != nil && isTrue(fw.Bootloader.BIOS.UseSerial) {
		c.Domain.OS.BIOS = &libvirtxml.DomainBIOS{UseSerial: "yes"}
	}
	switch kb := fw.KernelBoot; {
	case kb == nil:
		return nil
	case kb.Container != nil:
		return kernelBoot(c, kb)
	case kb.KernelArgs != "":
		return c.Invalid(specDomain+"firmware.kernelBoot.kernelArgs", "arguments without a kernel",
			"name the kernel in "+specDomain+"firmware.kernelBoot.container")
	}
	return nil
}

// kernelBoot boots the kernel of the facts with the arguments of the spec.
func kernelBoot(c *Conversion, kb *v1.KernelBoot) error {
	const field = specDomain + "firmware.kernelBoot."
	switch {
	case kb.Container.KernelPath == "" && kb.Container.InitrdPath == "":
		return c.Invalid(field+"container", "names neither a kernel nor an initrd", "set kernelPath")
	case kb.Container.KernelPath != "" && c.Facts.Kernel == "":
		return c.Invalid(field+"container.kernelPath", "the node has no file for the kernel", "check that the image can be pulled and has that path")
	case kb.Container.InitrdPath != "" && c.Facts.Initrd == "":
		return c.Invalid(field+"container.initrdPath", "the node has no file for the initrd", "check that the image can be pulled and has that path")
	}
	if kb.Container.KernelPath != "" {
		c.Domain.OS.Kernel = c.Facts.Kernel
	}
	if kb.Container.InitrdPath != "" {
		c.Domain.OS.Initrd = c.Facts.Initrd
	}
	c.Domain.OS.Cmdline = kb.KernelArgs
	return nil
}

func rebootPolicy(c *Conversion) error {
	p := c.VMI.Spec.Domain.RebootPolicy
	if p == nil {
		return nil
	}
	switch *p {
	case v1.RebootPolicyReboot:
		c.Domain.OnReboot = "restart"
	case v1.RebootPolicyTerminate:
		c.Domain.OnReboot = "destroy"
	default:
		return c.Invalid(specDomain+"rebootPolicy", fmt.Sprintf("%q is no policy", *p), "use Reboot or Terminate")
	}
	return nil
}

// sysinfo sets what the guest reads about its make. The UUID is always the
// domain's.
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
