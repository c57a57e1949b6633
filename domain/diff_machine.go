// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"reflect"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"
)

const (
	otherMachine = "the guest would be another machine"
	fixedAtStart = "is fixed when the guest starts"
)

// machine compares what makes the guest this machine and no other.
func (c *comparison) machine() {
	c.text(NeedsRecreation, specDomain+"firmware.uuid", strings.ToLower(c.want.UUID), strings.ToLower(c.live.UUID), otherMachine)
	c.text(NeedsRecreation, "domain.type", c.want.Type, c.live.Type, "KVM and software emulation cannot take over from each other")
	want, have := osType(c.want), osType(c.live)
	c.text(NeedsRecreation, "spec.architecture", want.Arch, have.Arch, otherMachine)
	// q35 is the newest machine of its kind when the guest was started, such as
	// pc-q35-7.2: another wish counts, the same wish never.
	if c.last != nil && osType(c.last).Machine == want.Machine || c.last == nil && strings.Contains(have.Machine, want.Machine) {
		return
	}
	c.text(NeedsRecreation, specDomain+"machine.type", want.Machine, have.Machine, otherMachine)
}

func osType(d *libvirtxml.Domain) libvirtxml.DomainOSType {
	if d.OS == nil || d.OS.Type == nil {
		return libvirtxml.DomainOSType{}
	}
	return *d.OS.Type
}

// memory compares sizes. QEMU rounds up to whole mebibytes.
func (c *comparison) memory() {
	if c.want.Memory == nil || c.live.Memory == nil {
		return
	}
	want, have := bytesOf(c.want.Memory.Value, c.want.Memory.Unit), bytesOf(c.live.Memory.Value, c.live.Memory.Unit)
	if want <= have && have-want < 1<<20 {
		return
	}
	class, reason := NextBoot, "the guest was started without room for more memory"
	if m := c.live.MaximumMemory; m != nil && want <= bytesOf(m.Value, m.Unit) {
		class, reason = NeedsMigration, "memory is added when the guest migrates"
	}
	c.add(class, specDomain+"memory.guest", strconv.FormatUint(want, 10), strconv.FormatUint(have, 10), reason)
}

// bytesOf converts libvirt's scaled integers; without a unit they are KiB.
func bytesOf(v uint, unit string) uint64 {
	units := map[string]uint64{
		"b": 1, "bytes": 1, "KB": 1000, "k": 1 << 10, "KiB": 1 << 10, "": 1 << 10, "MB": 1000 * 1000, "M": 1 << 20, "MiB": 1 << 20,
		"GB": 1000 * 1000 * 1000, "G": 1 << 30, "GiB": 1 << 30, "TB": 1000 * 1000 * 1000 * 1000, "T": 1 << 40, "TiB": 1 << 40,
	}
	return uint64(v) * units[unit]
}

// cpus compares number, topology and model.
func (c *comparison) cpus() {
	const field = specDomain + "cpu."
	if c.want.VCPU != nil && c.live.VCPU != nil {
		c.number(NextBoot, field+"maxSockets", c.want.VCPU.Value, c.live.VCPU.Value, "the number of slots for CPUs "+fixedAtStart)
		if c.want.VCPU.Value == c.live.VCPU.Value {
			c.number(Live, field+"sockets", plugged(c.want.VCPU), plugged(c.live.VCPU), "CPUs can be plugged")
		}
	}
	if c.want.CPU == nil || c.live.CPU == nil {
		return
	}
	if w, h := c.want.CPU.Topology, c.live.CPU.Topology; w != nil && h != nil {
		c.number(NextBoot, field+"cores", uint(w.Cores), uint(h.Cores), "the topology "+fixedAtStart)
		c.number(NextBoot, field+"threads", uint(w.Threads), uint(h.Threads), "the topology "+fixedAtStart)
	}
	// A running domain shows the model a mode stands for, and each feature of
	// it, so only two wishes can be compared.
	if c.last == nil || c.last.CPU == nil {
		return
	}
	c.text(NextBoot, field+"model", modelOf(c.want.CPU), modelOf(c.last.CPU), "the CPU's model "+fixedAtStart)
	if !reflect.DeepEqual(c.want.CPU.Features, c.last.CPU.Features) {
		c.add(NextBoot, field+"features", "", "", "the CPU's features are fixed when the guest starts")
	}
}

func plugged(v *libvirtxml.DomainVCPU) uint {
	if v.Current != 0 {
		return v.Current
	}
	return v.Value
}

func modelOf(c *libvirtxml.DomainCPU) string {
	if c.Model != nil && c.Mode == "custom" {
		return c.Model.Value
	}
	return c.Mode
}

// boot compares what is booted.
func (c *comparison) boot() {
	const field = specDomain + "firmware.kernelBoot."
	if c.want.OS == nil || c.live.OS == nil {
		return
	}
	c.text(NextBoot, field+"container.kernelPath", c.want.OS.Kernel, c.live.OS.Kernel, "the kernel is read when the guest starts")
	c.text(NextBoot, field+"container.initrdPath", c.want.OS.Initrd, c.live.OS.Initrd, "the initrd is read when the guest starts")
	c.text(NextBoot, field+"kernelArgs", c.want.OS.Cmdline, c.live.OS.Cmdline, "the arguments are read when the guest starts")
}

// wishes compares, with what was applied, the parts that a hypervisor completes
// in ways of its own.
func (c *comparison) wishes() {
	if c.last == nil {
		return
	}
	w, l := c.want, c.last
	for _, part := range []struct {
		field      string
		want, last any
	}{
		{specDomain + "features", w.Features, l.Features},
		{specDomain + "clock", w.Clock, l.Clock},
		{specDomain + "firmware", w.SysInfo, l.SysInfo},
		{specDomain + "rebootPolicy", w.OnReboot, l.OnReboot},
		{specDevices + "autoattachSerialConsole", w.Devices.Serials, l.Devices.Serials},
		{specDevices + "autoattachGraphicsDevice", w.Devices.Graphics, l.Devices.Graphics},
		{specDevices + "video", w.Devices.Videos, l.Devices.Videos},
		{specDevices + "inputs", w.Devices.Inputs, l.Devices.Inputs},
		{specDevices + "rng", w.Devices.RNGs, l.Devices.RNGs},
		{specDevices + "autoattachMemBalloon", w.Devices.MemBalloon, l.Devices.MemBalloon},
		{specDevices + "watchdog", w.Devices.Watchdogs, l.Devices.Watchdogs},
		{specDevices + "panicDevices", w.Devices.Panics, l.Devices.Panics},
	} {
		if !reflect.DeepEqual(part.want, part.last) {
			c.add(NextBoot, part.field, "", "", fixedAtStart)
		}
	}
}
