// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"regexp"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// Nodes of the lists that are compared device by device.
var (
	diskRules      = ruleTree.at("Devices.Disks")
	interfaceRules = ruleTree.at("Devices.Interfaces")
	hostdevRules   = ruleTree.at("Devices.Hostdevs")
)

// at returns the node for a path of the rule table.
func (n *node) at(path string) *node {
	if n == nil {
		return nil
	}
	out, err := n.find(path)
	if err != nil {
		return nil
	}
	return out
}

// disks compares disks, matched by alias, else by serial number.
//
// Disks, interfaces and host devices are matched before they are compared, in contrast to all other
// lists: they can be hotplugged, so their number and order differ legitimately, and a position or a
// target name says nothing about which one it is. The alias comes from the name in the spec, and
// survives everything that libvirt does to a domain.
func (c *comparison) disks() {
	used := make([]bool, len(c.runs.Disks))
	for i := range c.wanted.Disks {
		w := &c.wanted.Disks[i]
		field := fieldOf("disks", w.Alias)
		j := findDisk(c.runs.Disks, w)
		if j < 0 {
			c.missing(field, c.pluggable(w), domain.AttachDevice, c.attachable(w))
			continue
		}
		used[j] = true
		c.disk(field, w, &c.runs.Disks[j])
	}
	for j := range c.runs.Disks {
		h := &c.runs.Disks[j]
		// A disk without our alias was attached by hand, as a drive for a rescue image is.
		// It is not in the spec and never will be, so it is not detached.
		if xmlspec.NameOf(h.Alias) != "" && !used[j] {
			c.missing(fieldOf("disks", h.Alias), c.pluggable(h), domain.DetachDevice, h)
		}
	}
}

func fieldOf(list string, a *libvirtxml.DomainAlias) string {
	return fieldDevices + list + "[" + xmlspec.NameOf(a) + "]"
}

func findDisk(in []libvirtxml.DomainDisk, w *libvirtxml.DomainDisk) int {
	bySerial := -1
	for i := range in {
		if w.Alias != nil && in[i].Alias != nil && in[i].Alias.Name == w.Alias.Name {
			return i
		}
		// A disk that was attached by hand, or by another version with other aliases, is recognized by
		// its serial number, lest the same volume be attached twice. A disk with an alias of ours is
		// another disk of the spec, even if a user gave two disks one serial number.
		if w.Serial != "" && in[i].Serial == w.Serial && xmlspec.NameOf(in[i].Alias) == "" {
			bySerial = i
		}
	}
	return bySerial
}

// pluggable reports whether a disk can be hotplugged. A SCSI disk needs its controller.
func (c *comparison) pluggable(d *libvirtxml.DomainDisk) bool {
	if d.Device == "cdrom" || d.Target == nil {
		return false
	}
	if d.Target.Bus != xmlspec.BusSCSI {
		return d.Target.Bus == xmlspec.BusVirtio
	}
	for i := range c.runs.Controllers {
		if c.runs.Controllers[i].Type == xmlspec.BusSCSI {
			return true
		}
	}
	return false
}

// attachable returns the disk in a form that can be hotplugged, with an existing I/O thread.
func (c *comparison) attachable(d *libvirtxml.DomainDisk) *libvirtxml.DomainDisk {
	if d.Driver == nil {
		return d
	}
	// The spec may ask for more I/O threads than the domain was started with, and they cannot be
	// added while it runs. A disk without a thread of its own works, a refused one does not.
	there := c.live.IOThreads
	fits := d.Driver.IOThread == nil || *d.Driver.IOThread <= there
	if t := d.Driver.IOThreads; t != nil {
		for _, one := range t.IOThread {
			fits = fits && one.ID <= there
		}
	}
	if fits {
		return d
	}
	// Copies, as the desired domain is the caller's, and is compared with again.
	out, driver := *d, *d.Driver
	driver.IOThread, driver.IOThreads = nil, nil
	out.Driver = &driver
	return &out
}

// missing records a device that only one side has.
func (c *comparison) missing(field string, live bool, verb domain.Verb, dev domain.Device) {
	want, have := "present", "absent"
	if verb == domain.DetachDevice {
		want, have = have, want
	}
	if !live {
		c.add(NextBoot, field, want, have, "devices of this kind cannot be hotplugged")
		return
	}
	c.operate(c.add(Live, field, want, have, "the device can be hotplugged"), verb, dev)
}

// disk compares both sides of one disk.
func (c *comparison) disk(field string, w, h *libvirtxml.DomainDisk) {
	// A disk that is not in last was hotplugged since the stamp was written, or the stamp was lost;
	// only in the first case is it known what was asked for, and it is compared in full.
	last := findByAlias(c.had.Disks, w.Alias, func(d *libvirtxml.DomainDisk) *libvirtxml.DomainAlias { return d.Alias })
	c.source(field, w, h)
	k := c.walk(field)
	k.plugged = last == nil && c.last != nil
	k.skip = func(path string) bool {
		switch {
		case path == "Driver.Queues":
			return c.cpusChange()
		case path == "Model": // follows from the bus
			return w.Target != nil && h.Target != nil && w.Target.Bus != h.Target.Bus
		case w.Device == "cdrom": // a drive keeps its initial settings
			part, _, _ := strings.Cut(path, ".")
			// Changing the medium is all that libvirt allows for a drive; source handles that. Cache mode
			// and format follow the medium, and differences in them could never be resolved.
			return part == "Driver" || part == "Source" || part == "BackingStore" || part == "ReadOnly"
		case path == "Device": // disk is the default
			return deviceKind(w) == deviceKind(h)
		}
		return false
	}
	k.compare(diskRules, tripleOf(w, last, h))
	// convert.LayoutOf knows addresses of devices of the spec only. The desired address of a disk
	// that was matched by its serial number is a free one, and differs without a reason.
	if xmlspec.NameOf(h.Alias) != "" { // a layout has no other disks
		c.address(field, w.Address, h.Address)
	}
}

func deviceKind(d *libvirtxml.DomainDisk) string {
	if d.Device == "" {
		return "disk"
	}
	return d.Device
}

// findByAlias returns the device with the given alias, nil if there is none.
func findByAlias[T any](list []T, a *libvirtxml.DomainAlias, aliasOf func(*T) *libvirtxml.DomainAlias) *T {
	for i := range list {
		if b := aliasOf(&list[i]); a != nil && b != nil && a.Name == b.Name {
			return &list[i]
		}
	}
	return nil
}

// cpusChange reports whether the desired CPUs have changed: queues follow them and are not reported
// then.
func (c *comparison) cpusChange() bool {
	// Multiqueue devices get one queue per CPU when they are created. After CPUs were hotplugged the
	// desired domain has more queues on every device; these come with the next boot by themselves,
	// and one difference for each device would hide the ones that a user has made.
	return c.last == nil || c.last.VCPU == nil || c.want.VCPU == nil || xmlspec.PluggedCPUs(c.last.VCPU) != xmlspec.PluggedCPUs(c.want.VCPU)
}

// address compares device addresses, which a spec may set for disks and interfaces.
func (c *comparison) address(field string, w, h *libvirtxml.DomainAddress) {
	want, ok := convert.PlaceOf(w)
	have, known := convert.PlaceOf(h)
	// An address that only one side has was assigned by libvirt, and is not an address that was
	// asked for.
	if ok && known && want != have {
		c.add(NextBoot, field+".pciAddress", want.String(), have.String(), seenByGuest)
	}
}

// source compares disk sources: the medium of a drive can be changed, that of a disk only by a
// migration.
func (c *comparison) source(field string, w, h *libvirtxml.DomainDisk) {
	want, have := xmlspec.PathOf(w.Source), xmlspec.PathOf(h.Source)
	if want == have {
		return
	}
	if w.Device != "cdrom" {
		c.add(NeedsMigration, field+".volume", want, have, volumeInUse)
		return
	}
	// Only change the medium: libvirt rejects every other change.
	changed := *h
	changed.Source, changed.BackingStore = w.Source, nil
	if h.Driver != nil && w.Driver != nil {
		driver := *h.Driver
		driver.Type = w.Driver.Type
		changed.Driver = &driver
	}
	if w.Source != nil {
		changed.BackingStore = w.BackingStore
	}
	c.operate(c.add(Live, field+".volume", want, have, "the medium can be changed"), domain.UpdateDevice, &changed)
}

// interfaces compares interfaces, matched by alias.
func (c *comparison) interfaces() {
	aliasOf := func(i *libvirtxml.DomainInterface) *libvirtxml.DomainAlias { return i.Alias }
	for i := range c.wanted.Interfaces {
		w := &c.wanted.Interfaces[i]
		h := findByAlias(c.runs.Interfaces, w.Alias, aliasOf)
		if h == nil {
			c.missing(fieldOf("interfaces", w.Alias), true, domain.AttachDevice, w)
			continue
		}
		c.networkCard(fieldOf("interfaces", w.Alias), w, h)
	}
	for i := range c.runs.Interfaces {
		h := &c.runs.Interfaces[i]
		if xmlspec.NameOf(h.Alias) != "" && findByAlias(c.wanted.Interfaces, h.Alias, aliasOf) == nil {
			c.missing(fieldOf("interfaces", h.Alias), !ordinalTap(h), domain.DetachDevice, h)
		}
	}
}

var ordinal = regexp.MustCompile(`^tap[0-9]+$`)

// ordinalTap reports whether the tap device is named by the position of the interface, as in
// KubeVirt for the primary interface and, in old versions, for all. Such interfaces are not
// unplugged, since the names of the others would no longer match.
func ordinalTap(i *libvirtxml.DomainInterface) bool {
	return i.Target != nil && i.Target.Managed == "no" && ordinal.MatchString(i.Target.Dev)
}

// networkCard compares both sides of one interface.
func (c *comparison) networkCard(field string, w, h *libvirtxml.DomainInterface) {
	last := findByAlias(c.had.Interfaces, w.Alias, func(i *libvirtxml.DomainInterface) *libvirtxml.DomainAlias { return i.Alias })
	k := c.walk(field)
	k.plugged = last == nil && c.last != nil
	k.skip = func(path string) bool { return path == "Driver.Queues" && c.cpusChange() }
	k.compare(interfaceRules, tripleOf(w, last, h))
	c.address(field, w.Address, h.Address)
	changed := *h
	if want, have := xmlspec.LinkState(w), xmlspec.LinkState(h); want != have {
		changed.Link = &libvirtxml.DomainInterfaceLink{State: want}
		c.operate(c.add(Live, field+".state", want, have, "the link state can be changed"), domain.UpdateDevice, &changed)
	}
	// Both operations may be needed, and the second must not undo the first: changed accumulates.
	if want, have := bridgeOf(w), bridgeOf(h); want != have && want != "" && have != "" {
		changed.Source = w.Source
		c.operate(c.add(Live, field+".network", want, have, "the interface can be attached to another bridge"), domain.UpdateDevice, &changed)
	}
}

func bridgeOf(i *libvirtxml.DomainInterface) string {
	if i.Source == nil || i.Source.Bridge == nil {
		return ""
	}
	return i.Source.Bridge.Bridge
}

// hostDevices compares host devices, matched by alias. Virtual functions can be hotplugged like
// other interfaces, all other host devices cannot.
func (c *comparison) hostDevices() {
	aliasOf := func(h *libvirtxml.DomainHostdev) *libvirtxml.DomainAlias { return h.Alias }
	for i := range c.wanted.Hostdevs {
		w := &c.wanted.Hostdevs[i]
		h := findByAlias(c.runs.Hostdevs, w.Alias, aliasOf)
		if h == nil {
			c.missing(hostdevField(w), xmlspec.IsVirtualFunction(w), domain.AttachDevice, w)
			continue
		}
		k := c.walk(hostdevField(w))
		last := findByAlias(c.had.Hostdevs, w.Alias, aliasOf)
		k.plugged = last == nil && c.last != nil
		k.compare(hostdevRules, tripleOf(w, last, h))
		c.address(hostdevField(w), w.Address, h.Address)
	}
	for i := range c.runs.Hostdevs {
		h := &c.runs.Hostdevs[i]
		if xmlspec.NameOf(h.Alias) != "" && findByAlias(c.wanted.Hostdevs, h.Alias, aliasOf) == nil {
			c.missing(hostdevField(h), xmlspec.IsVirtualFunction(h), domain.DetachDevice, h)
		}
	}
}

// hostdevField returns the path of a device in the spec, by the prefix of its alias.
func hostdevField(h *libvirtxml.DomainHostdev) string {
	name := xmlspec.NameOf(h.Alias)
	for _, kind := range []struct{ prefix, list string }{
		{xmlspec.PrefixSRIOV, "interfaces"}, {xmlspec.PrefixGPU, "gpus"}, {xmlspec.PrefixUSB, "hostDevices"}, {xmlspec.PrefixHost, "hostDevices"},
	} {
		if rest, ok := strings.CutPrefix(name, kind.prefix); ok {
			return fieldDevices + kind.list + "[" + rest + "]"
		}
	}
	return fieldOf("hostDevices", h.Alias)
}
