// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// balloonPeriod is the default interval, in seconds, at which the guest reports its memory use;
// KubeVirt's value.
const balloonPeriod = 10

// miscellaneous adds random number generator, memory balloon, watchdog and panic devices.
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
	if specIsFalse(c.VMI.Spec.Domain.Devices.AutoattachMemBalloon) {
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

// reportsFreePages reports whether the guest returns free memory to the host. Getting it back takes
// time that latency-sensitive guests do not have, and huge pages are reserved in any case.
func reportsFreePages(c *Conversion) bool {
	s := &c.VMI.Spec.Domain
	fast := s.CPU != nil && (s.CPU.DedicatedCPUPlacement || s.CPU.Realtime != nil) ||
		s.Memory != nil && s.Memory.Hugepages != nil
	return !fast && !c.Facts.Cluster.NoFreePageReporting &&
		!strings.EqualFold(c.VMI.Annotations[v1.FreePageReportingDisabledAnnotation], "true")
}

// panicModels are the panic devices of each architecture, the default first; an empty one leaves
// the choice to libvirt.
var panicModels = map[string][]string{
	specX86: {"", "isa", "hyperv", "pvpanic"},
	specARM: {"pvpanic"}, // libvirt's default needs a bus that virt machines lack
}

// panics adds the devices by which a guest reports a crash.
func panics(c *Conversion) error {
	models := panicModels[c.arch.name]
	for i, p := range c.VMI.Spec.Domain.Devices.PanicDevices {
		field := fmt.Sprintf("%spanicDevices[%d]", specDevices, i)
		if len(models) == 0 {
			return c.Invalid(field, "panic devices are not supported on "+c.arch.name, "remove it")
		}
		model := models[0]
		if p.Model != nil && *p.Model != "" {
			model = string(*p.Model)
		}
		if !slices.Contains(models, model) {
			return c.Invalid(field+".model", fmt.Sprintf("Unsupported value: %q on %s", model, c.arch.name),
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
	out := libvirtxml.DomainWatchdog{Alias: xmlspec.Alias(w.Name)}
	switch {
	case w.I6300ESB != nil && c.arch.name == specX86:
		out.Model, out.Action = "i6300esb", cmp.Or(string(w.I6300ESB.Action), "reset")
	case w.Diag288 != nil && c.arch.name == specS390X:
		out.Model, out.Action = "diag288", cmp.Or(string(w.Diag288.Action), "reset")
	default:
		return c.Invalid(field, "has no watchdog that is supported on "+c.arch.name, "use i6300esb on amd64, diag288 on s390x")
	}
	switch out.Action {
	case "reset", "poweroff", "shutdown":
	default:
		return c.Invalid(field+".action", fmt.Sprintf("Unsupported value: %q", out.Action), "use reset, poweroff or shutdown")
	}
	c.Domain.Devices.Watchdogs = []libvirtxml.DomainWatchdog{out}
	return nil
}
