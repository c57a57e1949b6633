// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// Sizes of the code cache of software emulation. QEMU's own default grows with
// the host's memory; adding CPUs to a guest whose cache is small and full
// crashes QEMU 7.2.
const (
	tbCacheMiB        = 64
	tbCacheHotplugMiB = 512
)

// acpiEnabled tells whether the guest has ACPI, by its spec alone.
func acpiEnabled(vmi *v1.VirtualMachineInstance) bool {
	return acpi(vmi, vmi.Spec.Architecture != architectures[archS390X].name)
}

// acpi tells whether the guest has ACPI. A spec that says nothing means what
// KubeVirt's API server would have filled in: ACPI where the architecture usually
// has it, and none on s390x.
func acpi(vmi *v1.VirtualMachineInstance, usual bool) bool {
	f := vmi.Spec.Domain.Features
	if f == nil || f.ACPI.Enabled == nil {
		return usual
	}
	return *f.ACPI.Enabled
}

// enabled reads a feature that is on as soon as it is named.
func enabled(f *v1.FeatureState) bool { return f != nil && !isFalse(f.Enabled) }

// state returns on or off for a feature that is named, and nil otherwise.
func state(f *v1.FeatureState) *libvirtxml.DomainFeatureState {
	if f == nil {
		return nil
	}
	return &libvirtxml.DomainFeatureState{State: onOff(!isFalse(f.Enabled))}
}

// features sets ACPI, APIC and what else the spec switches, and what follows from
// the way the guest is run.
func features(c *Conversion) error {
	out := &libvirtxml.DomainFeatureList{}
	c.Domain.Features = out
	if acpi(c.VMI, c.arch.acpi) {
		out.ACPI = &libvirtxml.DomainFeature{}
	}
	if c.Facts.Emulation {
		size := uint(tbCacheMiB)
		if c.Domain.VCPUs != nil {
			size = tbCacheHotplugMiB
		}
		out.TCG = &libvirtxml.DomainFeatureTCG{TBCache: &libvirtxml.DomainFeatureTCGTBCache{Unit: "MiB", Size: size}}
	}
	if f := c.VMI.Spec.Domain.Features; f != nil {
		platform(c, f)
		if err := enlightenments(c, f); err != nil {
			return err
		}
	}
	followingFeatures(c)
	return nil
}

// enlightenments sets what Windows guests look for.
func enlightenments(c *Conversion, f *v1.Features) error {
	switch {
	case f.Hyperv != nil:
		return hyperv(c, f.Hyperv)
	case f.HypervPassthrough != nil && !isFalse(f.HypervPassthrough.Enabled):
		if c.Facts.Emulation {
			return c.Invalid(specDomain+"features.hypervPassthrough", "needs KVM, and this guest is emulated in software", "remove it")
		}
		c.Domain.Features.HyperV = &libvirtxml.DomainFeatureHyperV{Mode: "passthrough"}
	}
	return nil
}

// followingFeatures sets what other parts of the spec ask for: the performance
// counters of a trust domain are not the guest's, those of a realtime guest would
// interrupt it; and a guest that is told that its CPUs are its own does not yield
// them.
func followingFeatures(c *Conversion) {
	out, in := c.Domain.Features, c.VMI.Spec.Domain.CPU
	if c.trustDomain() || in != nil && in.Realtime != nil {
		out.PMU = &libvirtxml.DomainFeatureState{State: "off"}
	}
	if in != nil && in.DedicatedCPUPlacement && c.arch.hintDedicated {
		if out.KVM == nil {
			out.KVM = &libvirtxml.DomainFeatureKVM{}
		}
		out.KVM.HintDedicated = &libvirtxml.DomainFeatureState{State: "on"}
	}
}

// platform sets the features of the machine itself.
func platform(c *Conversion, f *v1.Features) {
	out := c.Domain.Features
	if f.APIC != nil && enabled(&f.APIC.FeatureState) {
		out.APIC = &libvirtxml.DomainFeatureAPIC{}
		if f.APIC.EndOfInterrupt {
			out.APIC.EOI = "on"
		}
	}
	if enabled(f.SMM) {
		out.SMM = &libvirtxml.DomainFeatureSMM{State: "on"}
	}
	if f.KVM != nil {
		out.KVM = &libvirtxml.DomainFeatureKVM{Hidden: &libvirtxml.DomainFeatureState{State: onOff(f.KVM.Hidden)}}
	}
	out.PVSpinlock = state(f.Pvspinlock)
	if c.arch.vmport {
		out.VMPort = &libvirtxml.DomainFeatureState{State: "off"}
	}
}

// hyperv sets the enlightenments, which only KVM offers.
func hyperv(c *Conversion, h *v1.FeatureHyperv) error {
	if c.Facts.Emulation {
		return c.Invalid(specDomain+"features.hyperv", "needs KVM, and this guest is emulated in software", "remove it")
	}
	out := &libvirtxml.DomainFeatureHyperV{
		Relaxed: state(h.Relaxed), VAPIC: state(h.VAPIC), VPIndex: state(h.VPIndex), Runtime: state(h.Runtime),
		Synic: state(h.SyNIC), Reset: state(h.Reset), Frequencies: state(h.Frequencies),
		ReEnlightenment: state(h.Reenlightenment), IPI: state(h.IPI), EVMCS: state(h.EVMCS),
	}
	c.Domain.Features.HyperV = out
	if err := hypervValues(c, h, out); err != nil {
		return err
	}
	if s := h.SyNICTimer; s != nil {
		out.STimer = &libvirtxml.DomainFeatureHyperVSTimer{DomainFeatureState: *state(&s.FeatureState), Direct: state(s.Direct)}
	}
	if t := h.TLBFlush; t != nil {
		out.TLBFlush = &libvirtxml.DomainFeatureHyperVTLBFlush{
			DomainFeatureState: *state(&t.FeatureState), Direct: state(t.Direct), Extended: state(t.Extended),
		}
	}
	return nil
}

// Limits of libvirt, and KubeVirt's default, for enlightenments with a value.
const (
	minSpinlockRetries     = 4095
	defaultSpinlockRetries = 4096
	maxVendorID            = 12
)

// hypervValues sets the enlightenments that have a value. One that is off has none.
func hypervValues(c *Conversion, h *v1.FeatureHyperv, out *libvirtxml.DomainFeatureHyperV) error {
	const field = specDomain + "features.hyperv."
	if s := h.Spinlocks; s != nil {
		out.Spinlocks = &libvirtxml.DomainFeatureHyperVSpinlocks{DomainFeatureState: *state(&s.FeatureState)}
		if enabled(&s.FeatureState) {
			out.Spinlocks.Retries = retries(s)
		}
		if n := out.Spinlocks.Retries; n > 0 && n < minSpinlockRetries {
			return c.Invalid(field+"spinlocks.spinlocks", fmt.Sprintf("%d retries are too few", n), fmt.Sprintf("set %d at least", minSpinlockRetries))
		}
	}
	v := h.VendorID
	if v == nil {
		return nil
	}
	out.VendorId = &libvirtxml.DomainFeatureHyperVVendorId{DomainFeatureState: *state(&v.FeatureState)}
	if !enabled(&v.FeatureState) {
		return nil
	}
	if v.VendorID == "" || len(v.VendorID) > maxVendorID || strings.Contains(v.VendorID, ",") {
		return c.Invalid(field+"vendorid.vendorid", fmt.Sprintf("%q is no vendor", v.VendorID),
			fmt.Sprintf("use 1 to %d characters without comma", maxVendorID))
	}
	out.VendorId.Value = v.VendorID
	return nil
}

// retries returns how often a spinlock of the guest is tried before the host is told.
func retries(s *v1.FeatureSpinlocks) uint {
	if s.Retries == nil {
		return defaultSpinlockRetries
	}
	return uint(max(*s.Retries, 1))
}
