// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"path/filepath"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// Policies of AMD's secure processor. A guest with SEV can never be debugged;
// SEV-ES encrypts its registers as well. That of SEV-SNP has the bit which is always
// one, and allows simultaneous multithreading.
const (
	sevNoDebug        = 0x1
	sevEncryptedState = 0x4
	snpPolicy         = 0x30000
)

// encrypted tells whether the host cannot read the guest's memory, so that virtio
// devices have to use the platform's own way to it (driver iommu=on): AMD SEV in
// all its kinds, and secure execution of s390x. Intel TDX needs no such switch.
func (c *Conversion) encrypted() bool {
	ls := c.VMI.Spec.Domain.LaunchSecurity
	return ls != nil && (ls.SEV != nil || ls.SNP != nil || c.Facts.Arch == archS390X)
}

// trustDomain tells whether the guest is one of Intel TDX.
func (c *Conversion) trustDomain() bool {
	ls := c.VMI.Spec.Domain.LaunchSecurity
	return ls != nil && ls.TDX != nil
}

// launchSecurity has the processor protect the guest from its host. On s390x,
// libvirt's element is left out: all it does is to switch on what encrypted stands
// for, and it does not work in every Pod. Whether a guest that wants attestation
// may start yet is the node agent's decision, not a matter of its domain.
//
// Other than in KubeVirt, a guest that asks for protection and would get none is
// refused, on amd64 with an empty section as on arm64.
func launchSecurity(c *Conversion) error {
	ls := c.VMI.Spec.Domain.LaunchSecurity
	if ls == nil {
		return nil
	}
	if named, err := c.checkLaunchSecurity(); err != nil || !named {
		return err
	}
	out := &libvirtxml.DomainLaunchSecurity{}
	c.Domain.LaunchSecurity = out
	switch {
	case ls.SEV != nil:
		policy := uint(sevNoDebug)
		if p := ls.SEV.Policy; p != nil && isTrue(p.EncryptedState) {
			policy |= sevEncryptedState
		}
		out.SEV = &libvirtxml.DomainLaunchSecuritySEV{Policy: &policy, DHCert: ls.SEV.DHCert, Session: ls.SEV.Session}
	case ls.SNP != nil:
		out.SEVSNP = &libvirtxml.DomainLaunchSecuritySEVSNP{Policy: ptr(uint64(snpPolicy))}
	default:
		return c.tdx(out)
	}
	return nil
}

// checkLaunchSecurity tells whether the spec names a way of protection that has an
// element, and refuses what cannot be had.
func (c *Conversion) checkLaunchSecurity() (named bool, err error) {
	const field = specDomain + "launchSecurity"
	ls := c.VMI.Spec.Domain.LaunchSecurity
	ways := 0
	for _, is := range []bool{ls.SEV != nil, ls.SNP != nil, ls.TDX != nil} {
		if is {
			ways++
		}
	}
	switch {
	case c.Facts.Arch == archS390X && ways == 0:
		return false, nil
	case c.Facts.Arch != archX86:
		return false, c.Invalid(field, "is not to be had on "+c.arch.name, "remove it, or use amd64")
	case ways != 1:
		return false, c.Invalid(field, fmt.Sprintf("names %d ways of protection", ways), "name one of sev, snp and tdx")
	case c.Facts.Emulation:
		return false, c.Invalid(field, "needs KVM, and this guest is emulated in software", "remove it, or use a node with KVM")
	case c.Domain.OS.Loader == nil:
		return false, c.Invalid(specEFI, "a protected guest boots by UEFI only", "set efi with secureBoot: false")
	}
	return true, nil
}

// tdx sets up a trust domain. The annotation names the socket of the service that
// signs its quotes, without which it cannot be attested.
func (c *Conversion) tdx(out *libvirtxml.DomainLaunchSecurity) error {
	out.TDX = &libvirtxml.DomainLaunchSecurityTDX{}
	socket := c.VMI.Annotations[v1.QGSSocketPathAnnotation]
	if socket == "" {
		return nil
	}
	if !filepath.IsAbs(socket) || len(socket) > maxSocketPath {
		return c.Invalid("metadata.annotations["+v1.QGSSocketPathAnnotation+"]", fmt.Sprintf("%q is no path of a socket", socket), "use an absolute path of a Unix socket")
	}
	out.TDX.QuoteGenerationService = &libvirtxml.DomainLaunchSecurityTDXQGS{Path: socket}
	return nil
}
