// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// IOMMUFDGroup is the name under which whoever starts a domain with
// [Facts].IOMMUFD associates the open file of /dev/iommu with it.
const IOMMUFDGroup = "iommu"

// bootMenuMillis is how long the firmware waits for a key in a guest that starts
// paused, so that whoever resumes it can reach its menu.
const bootMenuMillis = "10000"

// operatingSystem sets architecture and machine, what a reboot does, and how the
// guest's devices are isolated. What a crash or a power-off does is libvirt's
// default, to destroy the domain.
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

// rebootPolicy sets what a reboot of the guest does; without a policy libvirt
// restarts it in the same process.
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
