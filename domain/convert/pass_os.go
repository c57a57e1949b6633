// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// IOMMUFDGroup is the name under which a domain with [Facts].IOMMUFD expects the open file of
// /dev/iommu. The caller associates it before it starts the domain.
const IOMMUFDGroup = "iommu"

// bootMenuMillis is how long, in milliseconds, the firmware waits for a key if the guest starts
// paused, so that its menu can be reached after the resume.
const bootMenuMillis = "10000"

// operatingSystem sets architecture, machine type, reboot policy and the IOMMU. Crash and power-off
// keep libvirt's default, which destroys the domain.
func operatingSystem(c *Conversion) error {
	s := &c.VMI.Spec
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
		c.Domain.OS.BootMenu = &libvirtxml.DomainBootMenu{Enable: "yes", Timeout: bootMenuMillis}
	}
	if c.Facts.IOMMUFD {
		c.Domain.IOMMUFD = &libvirtxml.DomainIOMMUFD{Enabled: "yes", FDGroup: IOMMUFDGroup}
	}
	return rebootPolicy(c)
}

// rebootPolicy sets the effect of a reboot of the guest. Without a policy, libvirt restarts it in
// the same process.
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
		return c.Invalid(specDomain+"rebootPolicy", fmt.Sprintf("Unsupported value: %q", *p), "use Reboot or Terminate")
	}
	return nil
}
