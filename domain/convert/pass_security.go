// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"path/filepath"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// Policies of AMD's secure processor. A guest with SEV cannot be debugged; SEV-ES also encrypts its
// registers. The policy of SEV-SNP has the bit that must be one, and allows simultaneous
// multithreading.
const (
	sevNoDebug        = 0x1
	sevEncryptedState = 0x4
	snpPolicy         = 0x30000
)

// launchSecurityPass converts confidential computing.
type launchSecurityPass struct{ *Conversion }

// encrypted reports whether the host cannot read the guest's memory, so that virtio devices have to
// use the platform's DMA API (driver iommu=on): with AMD SEV in all variants, and secure execution
// of s390x. Intel TDX does not need it.
func (c *Conversion) encrypted() bool {
	ls := c.VMI.Spec.Domain.LaunchSecurity
	return ls != nil && (ls.SEV != nil || ls.SNP != nil || c.Facts.Arch == xmlspec.ArchS390X)
}

// trustDomain reports whether the guest is an Intel TDX trust domain.
func (c *Conversion) trustDomain() bool {
	ls := c.VMI.Spec.Domain.LaunchSecurity
	return ls != nil && ls.TDX != nil
}

// launchSecurity protects the guest from its host. On s390x, libvirt's element is omitted: it only
// enables what encrypted stands for, and does not work in every Pod. Whether a guest that requests
// attestation may start is the node agent's decision and not part of its domain.
//
// Unlike in KubeVirt, a guest that requests protection and would get none is rejected: with an
// empty section on amd64, and with any on arm64.
func launchSecurity(c *Conversion) error {
	ls := c.VMI.Spec.Domain.LaunchSecurity
	if ls == nil {
		return nil
	}
	if named, err := (launchSecurityPass{c}).checkLaunchSecurity(); err != nil || !named {
		return err
	}
	out := &libvirtxml.DomainLaunchSecurity{}
	c.Domain.LaunchSecurity = out
	switch {
	case ls.SEV != nil:
		policy := uint(sevNoDebug)
		if p := ls.SEV.Policy; p != nil && specIsTrue(p.EncryptedState) {
			policy |= sevEncryptedState
		}
		out.SEV = &libvirtxml.DomainLaunchSecuritySEV{Policy: &policy, DHCert: ls.SEV.DHCert, Session: ls.SEV.Session}
	case ls.SNP != nil:
		out.SEVSNP = &libvirtxml.DomainLaunchSecuritySEVSNP{Policy: new(uint64(snpPolicy))}
	default:
		return launchSecurityPass{c}.tdx(out)
	}
	return nil
}

// checkLaunchSecurity reports whether the spec requests a protection that has an element, and
// rejects what is not supported.
func (c launchSecurityPass) checkLaunchSecurity() (named bool, err error) {
	const field = specDomain + "launchSecurity"
	ls := c.VMI.Spec.Domain.LaunchSecurity
	ways := 0
	for _, is := range []bool{ls.SEV != nil, ls.SNP != nil, ls.TDX != nil} {
		if is {
			ways++
		}
	}
	switch {
	case c.Facts.Arch == xmlspec.ArchS390X && ways == 0:
		return false, nil
	case c.Facts.Arch != xmlspec.ArchX86:
		return false, c.Invalid(field, "is not supported on "+c.arch.name, "remove it, or use amd64")
	case ways != 1:
		return false, c.Invalid(field, fmt.Sprintf("Forbidden: has %d kinds of protection", ways), "set one of sev, snp and tdx")
	case c.Facts.Emulation:
		return false, c.Invalid(field, "Forbidden: requires KVM, but the VMI is emulated in software", "remove it, or use a node with KVM")
	case c.Domain.OS.Loader == nil:
		return false, c.Invalid(specEFI, "Required value: launch security requires UEFI", "set efi with secureBoot: false")
	}
	return true, nil
}

// tdx configures a trust domain. The annotation holds the socket of the quote generation service,
// which attestation requires.
func (c launchSecurityPass) tdx(out *libvirtxml.DomainLaunchSecurity) error {
	out.TDX = &libvirtxml.DomainLaunchSecurityTDX{}
	socket := c.VMI.Annotations[v1.QGSSocketPathAnnotation]
	if socket == "" {
		return nil
	}
	if !filepath.IsAbs(socket) || len(socket) > maxSocketPath {
		return c.Invalid("metadata.annotations["+v1.QGSSocketPathAnnotation+"]", fmt.Sprintf("Invalid value: %q", socket), "use an absolute path of a Unix socket")
	}
	out.TDX.QuoteGenerationService = &libvirtxml.DomainLaunchSecurityTDXQGS{Path: socket}
	return nil
}
