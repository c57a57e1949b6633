// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// machine compares what makes the guest this machine and no other.
func (c *comparison) machine() {
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

// bytesOf converts libvirt's scaled integers; without a unit they are KiB.
func bytesOf(v uint, unit string) uint64 {
	scale := uint64(1 << 10)
	switch unit {
	case "b", "bytes":
		scale = 1
	case "KB":
		scale = 1000
	case "MB":
		scale = 1000 * 1000
	case "GB":
		scale = 1000 * 1000 * 1000
	case "TB":
		scale = 1000 * 1000 * 1000 * 1000
	case "M", "MiB":
		scale = 1 << 20
	case "G", "GiB":
		scale = 1 << 30
	case "T", "TiB":
		scale = 1 << 40
	}
	return uint64(v) * scale
}

// cpus compares their number. CPUs can be added while the guest runs, as many as it
// was started with room for; none is ever taken away.
func (c *comparison) cpus() {
	const field = specDomain + "cpu."
	w, h := c.want.VCPU, c.live.VCPU
	if w == nil || h == nil {
		return
	}
	if w.Value != h.Value {
		c.number(NextBoot, field+"maxSockets", w.Value, h.Value, "the number of slots for CPUs "+fixedAtStart)
	}
	switch want, have := plugged(w), plugged(h); {
	case want > have && want <= h.Value && h.Current != 0:
		c.plugCPUs(field+"sockets", want, have)
	case want < have:
		c.number(NextBoot, field+"sockets", want, have, "CPUs cannot be taken away from a running guest")
	case want > have && w.Value == h.Value:
		c.number(NextBoot, field+"sockets", want, have, "the guest was started without room for more CPUs")
	}
}

// plugCPUs notes CPUs that there is room for.
func (c *comparison) plugCPUs(field string, want, have uint) {
	if !c.pinned(want) {
		c.number(NeedsMigration, field, want, have, "a running guest is given no further CPUs of the host for itself")
		return
	}
	d := c.add(Live, field, strconv.FormatUint(uint64(want), 10), strconv.FormatUint(uint64(have), 10), "CPUs can be plugged")
	d.Operation = &Operation{Verb: SetVCPUs, Domain: c.name, VCPUs: want}
}

// pinned tells whether the running guest has host CPUs for that many of its own, or
// shares them with others: one that is plugged without would run on those that were
// promised to somebody else.
func (c *comparison) pinned(n uint) bool {
	tune := c.live.CPUTune
	if tune == nil || len(tune.VCPUPin) == 0 {
		return true
	}
	has := map[uint]bool{}
	for _, p := range tune.VCPUPin {
		has[p.VCPU] = true
	}
	for id := range n {
		if !has[id] {
			return false
		}
	}
	return true
}

func plugged(v *libvirtxml.DomainVCPU) uint {
	if v.Current != 0 {
		return v.Current
	}
	return v.Value
}
