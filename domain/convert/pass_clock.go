// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// clock sets offset and timers. An offset in seconds has the form that libvirt stores, variable;
// KubeVirt writes it as utc with a number.
func clock(c *Conversion) error {
	in := c.VMI.Spec.Domain.Clock
	out := &libvirtxml.DomainClock{Offset: "utc"}
	if in != nil {
		if err := c.clockOffset(in, out); err != nil {
			return err
		}
		if in.Timer != nil {
			out.Timer = timers(in.Timer)
		}
		if err := checkTimers(c, out.Timer); err != nil {
			return err
		}
	}
	if f := clockTSCFrequency(c.VMI); f > 0 {
		out.Timer = append(out.Timer, libvirtxml.DomainTimer{Name: "tsc", Frequency: f})
	}
	if in != nil || len(out.Timer) > 0 {
		c.Domain.Clock = out
	}
	return nil
}

// clockOffset sets the guest's time of day.
func (c *Conversion) clockOffset(in *v1.Clock, out *libvirtxml.DomainClock) error {
	switch {
	case in.Timezone != nil && in.UTC != nil:
		return c.Invalid(specDomain+"clock", "Forbidden: utc and timezone are mutually exclusive", "set one of them")
	case in.Timezone != nil && *in.Timezone == "":
		return c.Invalid(specDomain+"clock.timezone", "Required value", "set a time zone such as Europe/Rome")
	case in.Timezone != nil:
		out.Offset, out.TimeZone = "timezone", string(*in.Timezone)
	case in.UTC != nil && in.UTC.OffsetSeconds != nil:
		out.Offset, out.Basis, out.Adjustment = "variable", "utc", strconv.Itoa(*in.UTC.OffsetSeconds)
	default:
		out.Adjustment = "reset"
	}
	return nil
}

// clockTSCFrequency returns the frequency in Hz that the guest's time stamp counter must have on every
// node it may migrate to, 0 if any will do. It is required by guests with an invariant counter or
// with reenlightenment.
func clockTSCFrequency(vmi *v1.VirtualMachineInstance) uint64 {
	h := vmi.Status.TopologyHints
	if h == nil || h.TSCFrequency == nil || *h.TSCFrequency <= 0 {
		return 0
	}
	s := &vmi.Spec.Domain
	reenlightened := s.Features != nil && s.Features.Hyperv != nil && enabled(s.Features.Hyperv.Reenlightenment)
	invariant := s.CPU != nil && slices.ContainsFunc(s.CPU.Features, func(f v1.CPUFeature) bool {
		return f.Name == "invtsc" && slices.Contains([]string{"", "require", "force"}, f.Policy)
	})
	if !reenlightened && !invariant {
		return 0
	}
	return uint64(*h.TSCFrequency)
}

// timers returns the timers in KubeVirt's order.
func timers(t *v1.Timer) []libvirtxml.DomainTimer {
	var out []libvirtxml.DomainTimer
	add := func(name string, present *bool, track, policy string) {
		out = append(out, libvirtxml.DomainTimer{Name: name, Present: yesNo(!specIsFalse(present)), Track: track, TickPolicy: policy})
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

// checkTimers rejects tick policies and tracks that libvirt does not support.
func checkTimers(c *Conversion, ts []libvirtxml.DomainTimer) error {
	for _, t := range ts {
		if t.Track != "" && t.Track != string(v1.TrackGuest) && t.Track != string(v1.TrackWall) {
			return c.Invalid(specDomain+"clock.timer."+t.Name+".track", fmt.Sprintf("Unsupported value: %q", t.Track), "use guest or wall")
		}
		switch cmp.Or(t.TickPolicy, "delay") {
		case "delay", "catchup", "merge", "discard":
		default:
			return c.Invalid(specDomain+"clock.timer."+t.Name+".tickPolicy", fmt.Sprintf("Unsupported value: %q", t.TickPolicy),
				"use delay, catchup, merge or discard")
		}
	}
	return nil
}
