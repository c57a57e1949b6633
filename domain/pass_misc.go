// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"fmt"

	"libvirt.org/go/libvirtxml"
)

// balloonPeriod is how often, in seconds, the guest reports its memory use.
const balloonPeriod = 10

// miscellaneous adds random numbers, memory balloon, watchdog and panic devices.
func miscellaneous(c *Conversion) error {
	in, out := &c.VMI.Spec.Domain.Devices, c.Domain.Devices
	if in.Rng != nil {
		out.RNGs = []libvirtxml.DomainRNG{{
			Model:   c.virtioModel(),
			Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
		}}
	}
	if isFalse(in.AutoattachMemBalloon) {
		out.MemBalloon = &libvirtxml.DomainMemBalloon{Model: "none"}
	} else {
		out.MemBalloon = &libvirtxml.DomainMemBalloon{
			Model: c.virtioModel(), FreePageReporting: "on",
			Stats: &libvirtxml.DomainMemBalloonStats{Period: balloonPeriod},
		}
	}
	for i, p := range in.PanicDevices {
		model := ""
		if p.Model != nil {
			model = string(*p.Model)
		}
		switch model {
		case "", "isa", "hyperv", "pvpanic":
		default:
			return c.Invalid(fmt.Sprintf("%spanicDevices[%d].model", specDevices, i), fmt.Sprintf("%q is no panic device", model), "use isa, hyperv or pvpanic")
		}
		out.Panics = append(out.Panics, libvirtxml.DomainPanic{Model: model})
	}
	return watchdog(c)
}

func watchdog(c *Conversion) error {
	w := c.VMI.Spec.Domain.Devices.Watchdog
	if w == nil {
		return nil
	}
	const field = specDevices + "watchdog"
	if err := c.checkName(field+".name", w.Name); err != nil {
		return err
	}
	out := libvirtxml.DomainWatchdog{Alias: alias(w.Name)}
	switch {
	case w.I6300ESB != nil && c.Facts.Arch == archX86:
		out.Model, out.Action = "i6300esb", cmp.Or(string(w.I6300ESB.Action), "reset")
	case w.Diag288 != nil && c.Facts.Arch == archS390X:
		out.Model, out.Action = "diag288", cmp.Or(string(w.Diag288.Action), "reset")
	default:
		return c.Invalid(field, "names no watchdog of architecture "+c.arch.name, "use i6300esb on amd64, diag288 on s390x")
	}
	switch out.Action {
	case "reset", "poweroff", "shutdown":
	default:
		return c.Invalid(field+".action", fmt.Sprintf("%q is no action", out.Action), "use reset, poweroff or shutdown")
	}
	c.Domain.Devices.Watchdogs = []libvirtxml.DomainWatchdog{out}
	return nil
}
