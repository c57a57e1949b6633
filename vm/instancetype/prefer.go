// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"kubevirt.io/api/instancetype/v1beta1"
)

// preferring applies a preference: it sets what is unset.
type preferring struct {
	*target
	p *v1beta1.VirtualMachinePreferenceSpec
}

// apply sets what the template and the instance type left unset.
func (a *preferring) apply() {
	s := a.target.Spec
	a.cpu()
	a.devices()
	a.features()
	a.firmware()
	a.machine()
	a.clock()
	if a.p.PreferredSubdomain != nil {
		fillText(&s.Subdomain, *a.p.PreferredSubdomain)
	}
	fill(&s.TerminationGracePeriodSeconds, a.p.PreferredTerminationGracePeriodSeconds)
	if a.p.PreferredArchitecture != nil {
		fillText(&s.Architecture, *a.p.PreferredArchitecture)
	}
	fill(&s.Domain.LaunchSecurity, a.p.PreferredLaunchSecurity)
	for key, value := range a.p.Annotations {
		if _, set := a.Annotations[key]; !set {
			a.annotate(key, value)
		}
	}
}

func (a *preferring) cpu() {
	if a.p.CPU == nil || len(a.p.CPU.PreferredCPUFeatures) == 0 {
		return
	}
	cpu := part(&a.target.Spec.Domain.CPU)
	features := slices.Clone(cpu.Features)
	for _, f := range a.p.CPU.PreferredCPUFeatures {
		if !slices.ContainsFunc(features, func(has v1.CPUFeature) bool { return has.Name == f.Name }) {
			features = append(features, f)
		}
	}
	cpu.Features = features
}

func (a *preferring) features() {
	p := a.p.Features
	if p == nil {
		return
	}
	f := part(&a.target.Spec.Domain.Features)
	if p.PreferredAcpi != nil {
		f.ACPI = *p.PreferredAcpi
	}
	fill(&f.APIC, p.PreferredApic)
	fill(&f.KVM, p.PreferredKvm)
	fill(&f.Pvspinlock, p.PreferredPvspinlock)
	fill(&f.SMM, p.PreferredSmm)
	if p.PreferredHyperv != nil {
		fillHyperv(part(&f.Hyperv), p.PreferredHyperv)
	}
}

func fillHyperv(h, p *v1.FeatureHyperv) {
	fill(&h.Relaxed, p.Relaxed)
	fill(&h.VAPIC, p.VAPIC)
	fill(&h.Spinlocks, p.Spinlocks)
	fill(&h.VPIndex, p.VPIndex)
	fill(&h.Runtime, p.Runtime)
	fill(&h.SyNIC, p.SyNIC)
	fill(&h.SyNICTimer, p.SyNICTimer)
	fill(&h.Reset, p.Reset)
	fill(&h.VendorID, p.VendorID)
	fill(&h.Frequencies, p.Frequencies)
	fill(&h.Reenlightenment, p.Reenlightenment)
	fill(&h.TLBFlush, p.TLBFlush)
	fill(&h.IPI, p.IPI)
	fill(&h.EVMCS, p.EVMCS)
}

// firmware sets the boot loader. A preferred EFI replaces the two deprecated preferences.
func (a *preferring) firmware() {
	p := a.p.Firmware
	if p == nil {
		return
	}
	b := v1.Bootloader{}
	if f := a.target.Spec.Domain.Firmware; f != nil && f.Bootloader != nil {
		b = *f.Bootloader
	}
	if yes(p.PreferredUseBios) && b.EFI == nil {
		part(&b.BIOS)
	}
	if b.BIOS != nil {
		fill(&b.BIOS.UseSerial, p.PreferredUseBiosSerial)
	}
	switch {
	case b.BIOS != nil:
	case p.PreferredEfi != nil:
		fill(&b.EFI, p.PreferredEfi)
	default:
		if yes(p.DeprecatedPreferredUseEfi) {
			part(&b.EFI)
		}
		if b.EFI != nil {
			fill(&b.EFI.SecureBoot, p.DeprecatedPreferredUseSecureBoot)
		}
	}
	if b != (v1.Bootloader{}) {
		part(&a.target.Spec.Domain.Firmware).Bootloader = &b
	}
}

func yes(b *bool) bool { return b != nil && *b }

func (a *preferring) machine() {
	if a.p.Machine != nil && a.p.Machine.PreferredMachineType != "" {
		fillText(&part(&a.target.Spec.Domain.Machine).Type, a.p.Machine.PreferredMachineType)
	}
}

func (a *preferring) clock() {
	p := a.p.Clock
	if p == nil {
		return
	}
	c := part(&a.target.Spec.Domain.Clock)
	if p.PreferredClockOffset != nil && c.ClockOffset == (v1.ClockOffset{}) {
		c.ClockOffset = *p.PreferredClockOffset
	}
	if t := p.PreferredTimer; t != nil {
		own := part(&c.Timer)
		fill(&own.HPET, t.HPET)
		fill(&own.KVM, t.KVM)
		fill(&own.PIT, t.PIT)
		fill(&own.RTC, t.RTC)
		fill(&own.Hyperv, t.Hyperv)
	}
}
