// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"fmt"
	"strconv"

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

// acpiEnabled tells whether the guest has ACPI. A spec without any features
// means ACPI, which is what KubeVirt's API server would have filled in.
func acpiEnabled(vmi *v1.VirtualMachineInstance) bool {
	f := vmi.Spec.Domain.Features
	return f == nil || !isFalse(f.ACPI.Enabled)
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

// features sets ACPI, APIC and what else the spec switches.
func features(c *Conversion) error {
	out := &libvirtxml.DomainFeatureList{}
	c.Domain.Features = out
	if acpiEnabled(c.VMI) {
		out.ACPI = &libvirtxml.DomainFeature{}
	}
	if c.Facts.Emulation {
		size := uint(tbCacheMiB)
		if c.Domain.VCPUs != nil {
			size = tbCacheHotplugMiB
		}
		out.TCG = &libvirtxml.DomainFeatureTCG{TBCache: &libvirtxml.DomainFeatureTCGTBCache{Unit: "MiB", Size: size}}
	}
	f := c.VMI.Spec.Domain.Features
	if f == nil {
		return nil
	}
	platform(c, f)
	switch {
	case f.Hyperv != nil:
		return hyperv(c, f.Hyperv)
	case f.HypervPassthrough != nil && !isFalse(f.HypervPassthrough.Enabled):
		if c.Facts.Emulation {
			return c.Invalid(specDomain+"features.hypervPassthrough", "needs KVM, and this guest is emulated in software", "remove it")
		}
		out.HyperV = &libvirtxml.DomainFeatureHyperV{Mode: "passthrough"}
	}
	return nil
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
	if s := h.Spinlocks; s != nil {
		out.Spinlocks = &libvirtxml.DomainFeatureHyperVSpinlocks{DomainFeatureState: *state(&s.FeatureState)}
		if s.Retries != nil {
			out.Spinlocks.Retries = uint(*s.Retries)
		}
	}
	if s := h.SyNICTimer; s != nil {
		out.STimer = &libvirtxml.DomainFeatureHyperVSTimer{DomainFeatureState: *state(&s.FeatureState), Direct: state(s.Direct)}
	}
	if v := h.VendorID; v != nil {
		out.VendorId = &libvirtxml.DomainFeatureHyperVVendorId{DomainFeatureState: *state(&v.FeatureState), Value: v.VendorID}
	}
	if t := h.TLBFlush; t != nil {
		out.TLBFlush = &libvirtxml.DomainFeatureHyperVTLBFlush{
			DomainFeatureState: *state(&t.FeatureState), Direct: state(t.Direct), Extended: state(t.Extended),
		}
	}
	return nil
}

// clock sets offset and timers.
func clock(c *Conversion) error {
	in := c.VMI.Spec.Domain.Clock
	if in == nil {
		return nil
	}
	out := &libvirtxml.DomainClock{}
	c.Domain.Clock = out
	switch {
	case in.Timezone != nil:
		if *in.Timezone == "" {
			return c.Invalid(specDomain+"clock.timezone", "is empty", "name a time zone such as Europe/Rome")
		}
		out.Offset, out.TimeZone = "timezone", string(*in.Timezone)
	case in.UTC != nil && in.UTC.OffsetSeconds != nil:
		out.Offset, out.Adjustment = "variable", strconv.Itoa(*in.UTC.OffsetSeconds)
		out.Basis = "utc"
	default:
		out.Offset, out.Adjustment = "utc", "reset"
	}
	if in.Timer != nil {
		out.Timer = timers(in.Timer)
	}
	return checkTimers(c, out.Timer)
}

// timers lists the timers in the order KubeVirt has them.
func timers(t *v1.Timer) []libvirtxml.DomainTimer {
	var out []libvirtxml.DomainTimer
	add := func(name string, present *bool, track, policy string) {
		out = append(out, libvirtxml.DomainTimer{Name: name, Present: yesNo(!isFalse(present)), Track: track, TickPolicy: policy})
	}
	if t.RTC != nil {
		add("rtc", t.RTC.Enabled, string(t.RTC.Track), string(t.RTC.TickPolicy))
	}
	if t.PIT != nil {
		add("pit", t.PIT.Enabled, "", string(t.PIT.TickPolicy))
	}
	if t.KVM != nil {
		add("kvmclock", t.KVM.Enabled, "", "")
	}
	if t.HPET != nil {
		add("hpet", t.HPET.Enabled, "", string(t.HPET.TickPolicy))
	}
	if t.Hyperv != nil {
		add("hypervclock", t.Hyperv.Enabled, "", "")
	}
	return out
}

// checkTimers refuses tick policies libvirt does not know.
func checkTimers(c *Conversion, ts []libvirtxml.DomainTimer) error {
	for _, t := range ts {
		switch cmp.Or(t.TickPolicy, "delay") {
		case "delay", "catchup", "merge", "discard":
		default:
			return c.Invalid(specDomain+"clock.timer."+t.Name+".tickPolicy", fmt.Sprintf("%q is no policy", t.TickPolicy),
				"use delay, catchup, merge or discard")
		}
	}
	return nil
}
