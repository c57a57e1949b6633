// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// machine compares the properties that identify the machine.
func (c *comparison) machine() {
	want, have := osType(c.want), osType(c.live)
	c.text(NeedsRecreation, "spec.architecture", want.Arch, have.Arch, otherMachine)
	// Alias q35 stands for the newest machine type when the guest was started, such as pc-q35-7.2:
	// a changed alias counts, an unchanged one never does.
	if c.last != nil && osType(c.last).Machine == want.Machine || c.last == nil && strings.Contains(have.Machine, want.Machine) {
		return
	}
	c.text(NeedsRecreation, fieldDomain+"machine.type", want.Machine, have.Machine, otherMachine)
}

func osType(d *libvirtxml.Domain) libvirtxml.DomainOSType {
	if d.OS == nil || d.OS.Type == nil {
		return libvirtxml.DomainOSType{}
	}
	return *d.OS.Type
}

// cpus compares the number of CPUs. CPUs can be hotplugged up to the maximum at start; they are
// never removed.
func (c *comparison) cpus() {
	const field = fieldDomain + "cpu."
	w, h := c.want.VCPU, c.live.VCPU
	if w == nil || h == nil {
		return
	}
	if w.Value != h.Value {
		c.number(NextBoot, field+"maxSockets", w.Value, h.Value, "the maximum number of CPUs "+fixedAtStart)
	}
	switch want, have := xmlspec.PluggedCPUs(w), xmlspec.PluggedCPUs(h); {
	case want > have && want <= h.Value && h.Current != 0:
		c.plugCPUs(field+"sockets", want, have)
	case want < have:
		c.number(NextBoot, field+"sockets", want, have, "CPUs cannot be removed from a running domain")
	// Where the maxima differ, the first difference above says already what a boot will bring.
	case want > have && w.Value == h.Value:
		c.number(NextBoot, field+"sockets", want, have, "the maximum number of CPUs of the running domain is exceeded")
	}
}

// plugCPUs records hotplugged CPUs within the maximum.
func (c *comparison) plugCPUs(field string, want, have uint) {
	// A migration renders a new Pod with the new number of CPUs, for which the kubelet allocates
	// dedicated ones. That is the only way to get more of them.
	if !c.pinned(want) {
		c.number(NeedsMigration, field, want, have, "dedicated CPUs cannot be allocated to a running domain")
		return
	}
	d := c.add(Live, field, strconv.FormatUint(uint64(want), 10), strconv.FormatUint(uint64(have), 10), "CPUs can be hotplugged")
	d.Operation = &domain.Operation{Verb: domain.SetVCPUs, Domain: c.name, VCPUs: want}
}

// pinned reports whether the running guest has dedicated host CPUs for that many CPUs, or uses
// shared ones: a hotplugged CPU without one would run on CPUs that are dedicated to other guests.
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
