// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// balloonPeriod is how often, in seconds, the guest reports its memory use if the
// cluster says nothing; KubeVirt's value.
const balloonPeriod = 10

// miscellaneous adds random numbers, memory balloon, watchdog and panic devices.
func miscellaneous(c *Conversion) error {
	if c.VMI.Spec.Domain.Devices.Rng != nil {
		rng := libvirtxml.DomainRNG{
			Model:   c.virtioModel(),
			Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
		}
		if c.encrypted() {
			rng.Driver = &libvirtxml.DomainRNGDriver{IOMMU: "on"}
		}
		c.Domain.Devices.RNGs = []libvirtxml.DomainRNG{rng}
	}
	c.Domain.Devices.MemBalloon = balloon(c)
	if err := panics(c); err != nil {
		return err
	}
	return watchdog(c)
}

// balloon returns the memory balloon.
func balloon(c *Conversion) *libvirtxml.DomainMemBalloon {
	if isFalse(c.VMI.Spec.Domain.Devices.AutoattachMemBalloon) {
		return &libvirtxml.DomainMemBalloon{Model: "none"}
	}
	out := &libvirtxml.DomainMemBalloon{Model: c.virtioModel(), FreePageReporting: onOff(reportsFreePages(c))}
	period := uint32(balloonPeriod)
	if p := c.Facts.Cluster.BalloonPeriod; p != nil {
		period = *p
	}
	if period > 0 {
		out.Stats = &libvirtxml.DomainMemBalloonStats{Period: uint(period)}
	}
	if c.encrypted() {
		out.Driver = &libvirtxml.DomainMemBalloonDriver{IOMMU: "on"}
	}
	return out
}

// reportsFreePages tells whether the guest gives free memory back to the host.
// Taking it back costs time that guests built for latency do not have, and huge
// pages are reserved whether used or not.
func reportsFreePages(c *Conversion) bool {
	s := &c.VMI.Spec.Domain
	fast := s.CPU != nil && (s.CPU.DedicatedCPUPlacement || s.CPU.Realtime != nil) ||
		s.Memory != nil && s.Memory.Hugepages != nil
	return !fast && !c.Facts.Cluster.NoFreePageReporting &&
		!strings.EqualFold(c.VMI.Annotations[v1.FreePageReportingDisabledAnnotation], "true")
}

// panicModels are the panic devices of each architecture, the default first; none
// named leaves the choice to libvirt.
var panicModels = map[string][]string{
	specX86: {"", "isa", "hyperv", "pvpanic"},
	specARM: {"pvpanic"}, // libvirt's default is on a bus that virt machines lack
}

// panics adds the devices by which a guest tells that it has crashed.
func panics(c *Conversion) error {
	models := panicModels[c.arch.name]
	for i, p := range c.VMI.Spec.Domain.Devices.PanicDevices {
		field := fmt.Sprintf("%spanicDevices[%d]", specDevices, i)
		if len(models) == 0 {
			return c.Invalid(field, "guests of "+c.arch.name+" have no panic device", "remove it")
		}
		model := models[0]
		if p.Model != nil && *p.Model != "" {
			model = string(*p.Model)
		}
		if !slices.Contains(models, model) {
			return c.Invalid(field+".model", fmt.Sprintf("%q is no panic device of %s", model, c.arch.name),
				"use one of "+strings.TrimPrefix(strings.Join(models, ", "), ", "))
		}
		c.Domain.Devices.Panics = append(c.Domain.Devices.Panics, libvirtxml.DomainPanic{Model: model})
	}
	return nil
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
	case w.I6300ESB != nil && c.arch.name == specX86:
		out.Model, out.Action = "i6300esb", cmp.Or(string(w.I6300ESB.Action), "reset")
	case w.Diag288 != nil && c.arch.name == specS390X:
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
