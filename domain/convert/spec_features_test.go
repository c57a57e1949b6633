// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"testing"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

func giveFeatures(f v1.Features) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.Features = &f }
}

func giveHyperV(h v1.FeatureHyperv) func(*v1.VirtualMachineInstance, *Facts) {
	return giveFeatures(v1.Features{Hyperv: &h})
}

func emulate(_ *v1.VirtualMachineInstance, f *Facts) { f.Emulation = true }

func TestSpecFeatures(t *testing.T) {
	on, off, named := &v1.FeatureState{Enabled: new(true)}, &v1.FeatureState{Enabled: new(false)}, &v1.FeatureState{}
	every := v1.FeatureHyperv{
		Relaxed: on, VAPIC: named, VPIndex: on, Runtime: off, SyNIC: on, Reset: on, Frequencies: on, Reenlightenment: on, IPI: on, EVMCS: off,
		Spinlocks:  &v1.FeatureSpinlocks{Retries: new(uint32(8191))},
		SyNICTimer: &v1.SyNICTimer{Direct: named},
		VendorID:   &v1.FeatureVendorID{VendorID: "KVMKVMKVM"},
		TLBFlush:   &v1.TLBFlush{Direct: on, Extended: off},
	}
	runMachineRows(t, map[string]machineRow{
		"features: without a section there is ACPI": {element: "features", want: `<features><acpi/></features>`},
		"features: without a section there is none on s390x": {
			change: onArch(xmlspec.ArchS390X), element: "acpi",
		},
		"features: s390x has ACPI if it is asked for": {
			change: onArch(xmlspec.ArchS390X, giveFeatures(v1.Features{ACPI: *on})), element: "features", want: `<features><acpi/></features>`,
		},
		"features: s390x has no ACPI by a section alone": {change: onArch(xmlspec.ArchS390X, giveFeatures(v1.Features{})), element: "acpi"},
		"features: a section switches the port of VMware off": {
			change: giveFeatures(v1.Features{}), element: "features", want: `<features><acpi/><vmport state="off"/></features>`,
		},
		"features: arm64 has no port of VMware": {
			change: onArch(xmlspec.ArchARM, giveFeatures(v1.Features{})), element: "features", want: `<features><acpi/></features>`,
		},
		"features: those of the platform": {
			change:  giveFeatures(v1.Features{ACPI: *off, APIC: &v1.FeatureAPIC{EndOfInterrupt: true}, SMM: named, KVM: &v1.FeatureKVM{Hidden: true}, Pvspinlock: off}),
			element: "features",
			want:    `<features><apic eoi="on"/><kvm><hidden state="on"/></kvm><pvspinlock state="off"/><vmport state="off"/><smm state="on"/></features>`,
		},
		"features: those that are off": {
			change:  giveFeatures(v1.Features{APIC: &v1.FeatureAPIC{FeatureState: *off}, SMM: off, KVM: &v1.FeatureKVM{}, Pvspinlock: named}),
			element: "features",
			want:    `<features><acpi/><kvm><hidden state="off"/></kvm><pvspinlock state="on"/><vmport state="off"/></features>`,
		},
		"C65: one enlightenment": {
			change: giveHyperV(v1.FeatureHyperv{VAPIC: named}), element: "hyperv", want: `<hyperv><vapic state="on"/></hyperv>`,
		},
		"C65: a timer that is direct": {
			change: giveHyperV(v1.FeatureHyperv{SyNICTimer: &v1.SyNICTimer{Direct: named}}), element: "stimer",
			want: `<stimer state="on"><direct state="on"/></stimer>`,
		},
		"C65: what the host has": {
			change: giveFeatures(v1.Features{HypervPassthrough: &v1.HyperVPassthrough{Enabled: new(true)}}), element: "hyperv", want: `<hyperv mode="passthrough"/>`,
		},
		"C65: not what the host has": {
			change: giveFeatures(v1.Features{HypervPassthrough: &v1.HyperVPassthrough{Enabled: new(false)}}), element: "hyperv",
		},
		"C65: the list beats what the host has": {
			change:  giveFeatures(v1.Features{Hyperv: &v1.FeatureHyperv{VAPIC: on}, HypervPassthrough: &v1.HyperVPassthrough{}}),
			element: "hyperv", want: `<hyperv><vapic state="on"/></hyperv>`,
		},
		"features: every enlightenment": {
			change: giveHyperV(every), element: "hyperv",
			want: `<hyperv><relaxed state="on"/><vapic state="on"/><spinlocks state="on" retries="8191"/><vpindex state="on"/><runtime state="off"/>` +
				`<synic state="on"/><stimer state="on"><direct state="on"/></stimer><reset state="on"/><vendor_id state="on" value="KVMKVMKVM"/>` +
				`<frequencies state="on"/><reenlightenment state="on"/><tlbflush state="on"><direct state="on"/><extended state="off"/></tlbflush>` +
				`<ipi state="on"/><evmcs state="off"/></hyperv>`,
		},
		"features: spinlocks are tried 4096 times": {
			change: giveHyperV(v1.FeatureHyperv{Spinlocks: &v1.FeatureSpinlocks{}}), element: "spinlocks", want: `<spinlocks state="on" retries="4096"/>`,
		},
		"features: what is off has no value": {
			change: giveHyperV(v1.FeatureHyperv{
				Spinlocks: &v1.FeatureSpinlocks{FeatureState: *off, Retries: new(uint32(1))}, VendorID: &v1.FeatureVendorID{FeatureState: *off},
			}), element: "hyperv", want: `<hyperv><spinlocks state="off"/><vendor_id state="off"/></hyperv>`,
		},
		"features: an emulated guest has a bounded cache of code": {
			change: emulate, element: "tcg", want: `<tcg><tb-cache unit="MiB">64</tb-cache></tcg>`,
		},
		"features: one that can be given CPUs has a large one": {
			change: changes(emulate, giveCPU(v1.CPU{Sockets: 1, MaxSockets: 2})), element: "tcg", want: `<tcg><tb-cache unit="MiB">512</tb-cache></tcg>`,
		},
	})
	runMachineErrors(t, map[string]machineError{
		"features: enlightenments of an emulated guest": {changes(giveHyperV(every), emulate), "spec.domain.features.hyperv", domain.ErrInvalid},
		"features: what the host has, emulated": {
			changes(giveFeatures(v1.Features{HypervPassthrough: &v1.HyperVPassthrough{}}), emulate), "spec.domain.features.hypervPassthrough", domain.ErrInvalid,
		},
		"features: too few tries": {
			giveHyperV(v1.FeatureHyperv{Spinlocks: &v1.FeatureSpinlocks{Retries: new(uint32(4094))}}), "spec.domain.features.hyperv.spinlocks.spinlocks", domain.ErrInvalid,
		},
		"features: no tries": {
			giveHyperV(v1.FeatureHyperv{Spinlocks: &v1.FeatureSpinlocks{Retries: new(uint32(0))}}), "spec.domain.features.hyperv.spinlocks.spinlocks", domain.ErrInvalid,
		},
		"features: no vendor": {giveHyperV(v1.FeatureHyperv{VendorID: &v1.FeatureVendorID{}}), "spec.domain.features.hyperv.vendorid.vendorid", domain.ErrInvalid},
		"features: a vendor libvirt cannot hold": {
			giveHyperV(v1.FeatureHyperv{VendorID: &v1.FeatureVendorID{VendorID: "a,b"}}), "spec.domain.features.hyperv.vendorid.vendorid", domain.ErrInvalid,
		},
	})
}

func giveClock(c v1.Clock) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, _ *Facts) { v.Spec.Domain.Clock = &c }
}

func utc(offset *int) v1.ClockOffset {
	return v1.ClockOffset{UTC: &v1.ClockOffsetUTC{OffsetSeconds: offset}}
}

func zone(name string) v1.ClockOffset {
	return v1.ClockOffset{Timezone: new(v1.ClockOffsetTimezone(name))}
}

func hintTSC(hertz int64) func(*v1.VirtualMachineInstance, *Facts) {
	return func(v *v1.VirtualMachineInstance, _ *Facts) {
		v.Status.TopologyHints = &v1.TopologyHints{TSCFrequency: &hertz}
	}
}

func TestSpecClock(t *testing.T) {
	yes, no := new(true), new(false)
	timers := &v1.Timer{
		HPET: &v1.HPETTimer{Enabled: no, TickPolicy: v1.HPETTickPolicyDelay}, KVM: &v1.KVMTimer{Enabled: yes},
		PIT: &v1.PITTimer{TickPolicy: v1.PITTickPolicyDiscard}, Hyperv: &v1.HypervTimer{},
		RTC: &v1.RTCTimer{TickPolicy: v1.RTCTickPolicyCatchup, Track: v1.TrackGuest},
	}
	invtsc := func(policy string) func(*v1.VirtualMachineInstance, *Facts) {
		return giveCPU(v1.CPU{Features: []v1.CPUFeature{{Name: "invtsc", Policy: policy}}})
	}
	const tsc = `<timer name="tsc" frequency="2500000000"/>`
	runMachineRows(t, map[string]machineRow{
		"clock: none by default":        {element: "clock"},
		"clock: UTC":                    {change: giveClock(v1.Clock{ClockOffset: utc(nil)}), element: "clock", want: `<clock offset="utc" adjustment="reset"/>`},
		"clock: UTC if it says nothing": {change: giveClock(v1.Clock{}), element: "clock", want: `<clock offset="utc" adjustment="reset"/>`},
		"C67: an offset in seconds, as libvirt keeps it": {
			change: giveClock(v1.Clock{ClockOffset: utc(new(3600))}), element: "clock", want: `<clock offset="variable" basis="utc" adjustment="3600"/>`,
		},
		"C67: a time zone": {
			change: giveClock(v1.Clock{ClockOffset: zone("Europe/Rome")}), element: "clock", want: `<clock offset="timezone" timezone="Europe/Rome"/>`,
		},
		"clock: timers in KubeVirt's order": {
			change: giveClock(v1.Clock{ClockOffset: utc(nil), Timer: timers}), element: "clock",
			want: `<clock offset="utc" adjustment="reset"><timer name="rtc" track="guest" tickpolicy="catchup" present="yes"/>` +
				`<timer name="pit" tickpolicy="discard" present="yes"/><timer name="kvmclock" present="yes"/>` +
				`<timer name="hpet" tickpolicy="delay" present="no"/><timer name="hypervclock" present="yes"/></clock>`,
		},
		"clock: a counter that keeps its pace": {
			change: changes(invtsc(""), hintTSC(2500000000)), element: "clock", want: `<clock offset="utc">` + tsc + `</clock>`,
		},
		"clock: a counter after the timers": {
			change: changes(invtsc("force"), hintTSC(2500000000), giveClock(v1.Clock{Timer: &v1.Timer{KVM: &v1.KVMTimer{}}})), element: "clock",
			want: `<clock offset="utc" adjustment="reset"><timer name="kvmclock" present="yes"/>` + tsc + `</clock>`,
		},
		"clock: a guest with reenlightenment has one": {
			change: changes(giveHyperV(v1.FeatureHyperv{Reenlightenment: &v1.FeatureState{}}), hintTSC(2500000000)), element: "clock",
			want: `<clock offset="utc">` + tsc + `</clock>`,
		},
		"clock: a counter nobody counts on has any pace": {change: hintTSC(2500000000), element: "clock"},
		"clock: a counter that is not there has none":    {change: changes(invtsc("disable"), hintTSC(2500000000)), element: "clock"},
		"clock: no pace without a hint":                  {change: invtsc(""), element: "clock"},
		"clock: no pace of zero":                         {change: changes(invtsc(""), hintTSC(0)), element: "clock"},
	})
	both := v1.Clock{ClockOffset: v1.ClockOffset{UTC: &v1.ClockOffsetUTC{}, Timezone: new(v1.ClockOffsetTimezone("UTC"))}}
	runMachineErrors(t, map[string]machineError{
		"clock: two offsets":   {giveClock(both), "spec.domain.clock", domain.ErrInvalid},
		"clock: an empty zone": {giveClock(v1.Clock{ClockOffset: zone("")}), "spec.domain.clock.timezone", domain.ErrInvalid},
		"clock: a policy nobody knows": {
			giveClock(v1.Clock{Timer: &v1.Timer{PIT: &v1.PITTimer{TickPolicy: "x"}}}), "spec.domain.clock.timer.pit.tickPolicy", domain.ErrInvalid,
		},
		"clock: a track nobody knows": {
			giveClock(v1.Clock{Timer: &v1.Timer{RTC: &v1.RTCTimer{Track: "x"}}}), "spec.domain.clock.timer.rtc.track", domain.ErrInvalid,
		},
	})
}
