// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// Sizes of the translation cache of software emulation. QEMU's default grows with the memory of the
// host; hotplugging CPUs while a small cache is full crashes QEMU 7.2.
const (
	tbCacheMiB        = 64
	tbCacheHotplugMiB = 512
)

// enabled reports whether a feature is on, which is the default if it is present.
func enabled(f *v1.FeatureState) bool { return f != nil && !specIsFalse(f.Enabled) }

// state returns on or off for a feature that is present, and nil otherwise.
func state(f *v1.FeatureState) *libvirtxml.DomainFeatureState {
	if f == nil {
		return nil
	}
	return &libvirtxml.DomainFeatureState{State: onOff(!specIsFalse(f.Enabled))}
}

// features sets ACPI, APIC and the other features of the spec, and those that follow from the type
// of the domain.
func features(c *Conversion) error {
	out := &libvirtxml.DomainFeatureList{}
	c.Domain.Features = out
	if xmlspec.ACPI(c.VMI, c.arch.acpi) {
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

// enlightenments sets the Hyper-V features for Windows guests.
func enlightenments(c *Conversion, f *v1.Features) error {
	switch {
	case f.Hyperv != nil:
		return hyperv(c, f.Hyperv)
	case f.HypervPassthrough != nil && !specIsFalse(f.HypervPassthrough.Enabled):
		if c.Facts.Emulation {
			return c.Invalid(specDomain+"features.hypervPassthrough", "Forbidden: requires KVM, but the VMI is emulated in software", "remove it")
		}
		c.Domain.Features.HyperV = &libvirtxml.DomainFeatureHyperV{Mode: "passthrough"}
	}
	return nil
}

// followingFeatures sets the features that follow from other parts of the spec: no performance
// counters for trust domains, which cannot have them, and realtime guests, which they would
// interrupt; and the hint for dedicated CPUs, with which a guest does not yield them.
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

// platform sets the features of the machine.
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

// hyperv sets the Hyper-V enlightenments, which require KVM.
func hyperv(c *Conversion, h *v1.FeatureHyperv) error {
	if c.Facts.Emulation {
		return c.Invalid(specDomain+"features.hyperv", "Forbidden: requires KVM, but the VMI is emulated in software", "remove it")
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

// Limits of libvirt, and KubeVirt's defaults, for enlightenments with a value.
const (
	minSpinlockRetries     = 4095
	defaultSpinlockRetries = 4096
	maxVendorID            = 12
)

// hypervValues sets the enlightenments that have a value, unless they are off.
func hypervValues(c *Conversion, h *v1.FeatureHyperv, out *libvirtxml.DomainFeatureHyperV) error {
	const field = specDomain + "features.hyperv."
	if s := h.Spinlocks; s != nil {
		out.Spinlocks = &libvirtxml.DomainFeatureHyperVSpinlocks{DomainFeatureState: *state(&s.FeatureState)}
		if enabled(&s.FeatureState) {
			out.Spinlocks.Retries = retries(s)
		}
		if n := out.Spinlocks.Retries; n > 0 && n < minSpinlockRetries {
			return c.Invalid(field+"spinlocks.spinlocks", fmt.Sprintf("Invalid value: %d", n), fmt.Sprintf("set it to at least %d", minSpinlockRetries))
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
		return c.Invalid(field+"vendorid.vendorid", fmt.Sprintf("Invalid value: %q", v.VendorID),
			fmt.Sprintf("use 1 to %d characters without commas", maxVendorID))
	}
	out.VendorId.Value = v.VendorID
	return nil
}

// retries returns the number of spinlock attempts before the guest notifies the host.
func retries(s *v1.FeatureSpinlocks) uint {
	if s.Retries == nil {
		return defaultSpinlockRetries
	}
	return uint(max(*s.Retries, 1))
}
