// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"regexp"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// nodes of the lists that are compared device by device.
var (
	diskRules      = ruleTree.at("Devices.Disks")
	interfaceRules = ruleTree.at("Devices.Interfaces")
	hostdevRules   = ruleTree.at("Devices.Hostdevs")
)

// at returns the node of a path of the table.
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

// disks compares disks by alias, else by serial number.
func (c *comparison) disks() {
	used := make([]bool, len(c.runs.Disks))
	for i := range c.wanted.Disks {
		w := &c.wanted.Disks[i]
		field := fieldOf("disks", w.Alias)
		j := findDisk(c.runs.Disks, w)
		if j < 0 {
			c.missing(field, c.pluggable(w), AttachDevice, c.attachable(w))
			continue
		}
		used[j] = true
		c.disk(field, w, &c.runs.Disks[j])
	}
	for j := range c.runs.Disks {
		h := &c.runs.Disks[j]
		if nameOf(h.Alias) != "" && !used[j] {
			c.missing(fieldOf("disks", h.Alias), c.pluggable(h), DetachDevice, h)
		}
	}
}

func fieldOf(list string, a *libvirtxml.DomainAlias) string {
	return specDevices + list + "[" + nameOf(a) + "]"
}

func findDisk(in []libvirtxml.DomainDisk, w *libvirtxml.DomainDisk) int {
	bySerial := -1
	for i := range in {
		if w.Alias != nil && in[i].Alias != nil && in[i].Alias.Name == w.Alias.Name {
			return i
		}
		if w.Serial != "" && in[i].Serial == w.Serial && nameOf(in[i].Alias) == "" {
			bySerial = i
		}
	}
	return bySerial
}

// pluggable tells whether a disk can come and go while the guest runs. One on SCSI
// needs the controller.
func (c *comparison) pluggable(d *libvirtxml.DomainDisk) bool {
	if d.Device == "cdrom" || d.Target == nil {
		return false
	}
	if d.Target.Bus != busSCSI {
		return d.Target.Bus == busVirtio
	}
	for i := range c.runs.Controllers {
		if c.runs.Controllers[i].Type == busSCSI {
			return true
		}
	}
	return false
}

// attachable is the disk as it can be plugged: by a thread that is there.
func (c *comparison) attachable(d *libvirtxml.DomainDisk) *libvirtxml.DomainDisk {
	if d.Driver == nil {
		return d
	}
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
	out, driver := *d, *d.Driver
	driver.IOThread, driver.IOThreads = nil, nil
	out.Driver = &driver
	return &out
}

// missing notes a device that is on one side only.
func (c *comparison) missing(field string, live bool, verb Verb, dev Device) {
	want, have := "present", "absent"
	if verb == DetachDevice {
		want, have = have, want
	}
	if !live {
		c.add(NextBoot, field, want, have, "devices of this kind cannot come or go while the guest runs")
		return
	}
	c.operate(c.add(Live, field, want, have, "the device can be plugged"), verb, dev)
}

// disk compares the sides of one disk.
func (c *comparison) disk(field string, w, h *libvirtxml.DomainDisk) {
	last := find(c.had.Disks, w.Alias, func(d *libvirtxml.DomainDisk) *libvirtxml.DomainAlias { return d.Alias })
	c.source(field, w, h)
	k := c.walk(field)
	k.plugged = last == nil && c.last != nil
	k.skip = func(path string) bool {
		switch {
		case path == "Driver.Queues":
			return c.cpusChange()
		case path == "Model": // follows the bus
			return w.Target != nil && h.Target != nil && w.Target.Bus != h.Target.Bus
		case w.Device == "cdrom": // a drive keeps the settings it was started with
			part, _, _ := strings.Cut(path, ".")
			return part == "Driver" || part == "Source" || part == "BackingStore" || part == "ReadOnly"
		case path == "Device": // disk is what it is by default
			return deviceKind(w) == deviceKind(h)
		}
		return false
	}
	k.compare(diskRules, tripleOf(w, last, h))
	if nameOf(h.Alias) != "" { // a layout knows no other
		c.address(field, w.Address, h.Address)
	}
}

func deviceKind(d *libvirtxml.DomainDisk) string {
	if d.Device == "" {
		return "disk"
	}
	return d.Device
}

// find returns the device with that alias; nil if there is none.
func find[T any](list []T, a *libvirtxml.DomainAlias, aliasOf func(*T) *libvirtxml.DomainAlias) *T {
	for i := range list {
		if b := aliasOf(&list[i]); a != nil && b != nil && a.Name == b.Name {
			return &list[i]
		}
	}
	return nil
}

// cpusChange tells whether the wish for CPUs is another one: queues follow it, and
// there is nothing to say about them.
func (c *comparison) cpusChange() bool {
	return c.last == nil || c.last.VCPU == nil || c.want.VCPU == nil || plugged(c.last.VCPU) != plugged(c.want.VCPU)
}

// address compares where a device sits, which a spec may name for disks and cards.
func (c *comparison) address(field string, w, h *libvirtxml.DomainAddress) {
	want, ok := placeOf(w)
	have, known := placeOf(h)
	if ok && known && want != have {
		c.add(NextBoot, field+".pciAddress", want.String(), have.String(), seenByGuest)
	}
}

// source compares where the data is: a drive can be given another disc, a disk
// in use only goes elsewhere in a migration.
func (c *comparison) source(field string, w, h *libvirtxml.DomainDisk) {
	want, have := pathOf(w.Source), pathOf(h.Source)
	if want == have {
		return
	}
	if w.Device != "cdrom" {
		c.add(NeedsMigration, field+".volume", want, have, volumeInUse)
		return
	}
	// Only the disc may be another one: libvirt refuses every other change.
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
	c.operate(c.add(Live, field+".volume", want, have, "the disc can be changed"), UpdateDevice, &changed)
}

func pathOf(s *libvirtxml.DomainDiskSource) string {
	switch {
	case s == nil:
		return ""
	case s.File != nil:
		return s.File.File
	case s.Block != nil:
		return s.Block.Dev
	}
	return "elsewhere"
}

// interfaces compares network cards by alias.
func (c *comparison) interfaces() {
	aliasOf := func(i *libvirtxml.DomainInterface) *libvirtxml.DomainAlias { return i.Alias }
	for i := range c.wanted.Interfaces {
		w := &c.wanted.Interfaces[i]
		h := find(c.runs.Interfaces, w.Alias, aliasOf)
		if h == nil {
			c.missing(fieldOf("interfaces", w.Alias), true, AttachDevice, w)
			continue
		}
		c.networkCard(fieldOf("interfaces", w.Alias), w, h)
	}
	for i := range c.runs.Interfaces {
		h := &c.runs.Interfaces[i]
		if nameOf(h.Alias) != "" && find(c.wanted.Interfaces, h.Alias, aliasOf) == nil {
			c.missing(fieldOf("interfaces", h.Alias), !ordinalTap(h), DetachDevice, h)
		}
	}
}

var ordinal = regexp.MustCompile(`^tap[0-9]+$`)

// ordinalTap tells whether the card's tap device is named by its position, as
// KubeVirt names those of first cards and once named all: they are not unplugged,
// since the names of the others would not fit any more.
func ordinalTap(i *libvirtxml.DomainInterface) bool {
	return i.Target != nil && i.Target.Managed == "no" && ordinal.MatchString(i.Target.Dev)
}

// networkCard compares the sides of one card.
func (c *comparison) networkCard(field string, w, h *libvirtxml.DomainInterface) {
	last := find(c.had.Interfaces, w.Alias, func(i *libvirtxml.DomainInterface) *libvirtxml.DomainAlias { return i.Alias })
	k := c.walk(field)
	k.plugged = last == nil && c.last != nil
	k.skip = func(path string) bool { return path == "Driver.Queues" && c.cpusChange() }
	k.compare(interfaceRules, tripleOf(w, last, h))
	c.address(field, w.Address, h.Address)
	changed := *h
	if want, have := linkState(w), linkState(h); want != have {
		changed.Link = &libvirtxml.DomainInterfaceLink{State: want}
		c.operate(c.add(Live, field+".state", want, have, "the link can be switched"), UpdateDevice, &changed)
	}
	if want, have := bridgeOf(w), bridgeOf(h); want != have && want != "" && have != "" {
		changed.Source = w.Source
		c.operate(c.add(Live, field+".network", want, have, "the card can be moved to another bridge"), UpdateDevice, &changed)
	}
}

func bridgeOf(i *libvirtxml.DomainInterface) string {
	if i.Source == nil || i.Source.Bridge == nil {
		return ""
	}
	return i.Source.Bridge.Bridge
}

// hostDevices compares devices of the host by alias. Virtual functions come and go
// as network cards do, all others stay.
func (c *comparison) hostDevices() {
	aliasOf := func(h *libvirtxml.DomainHostdev) *libvirtxml.DomainAlias { return h.Alias }
	for i := range c.wanted.Hostdevs {
		w := &c.wanted.Hostdevs[i]
		h := find(c.runs.Hostdevs, w.Alias, aliasOf)
		if h == nil {
			c.missing(hostdevField(w), isVirtualFunction(w), AttachDevice, w)
			continue
		}
		k := c.walk(hostdevField(w))
		last := find(c.had.Hostdevs, w.Alias, aliasOf)
		k.plugged = last == nil && c.last != nil
		k.compare(hostdevRules, tripleOf(w, last, h))
		c.address(hostdevField(w), w.Address, h.Address)
	}
	for i := range c.runs.Hostdevs {
		h := &c.runs.Hostdevs[i]
		if nameOf(h.Alias) != "" && find(c.wanted.Hostdevs, h.Alias, aliasOf) == nil {
			c.missing(hostdevField(h), isVirtualFunction(h), DetachDevice, h)
		}
	}
}

// hostdevField is where the spec has a device, by the prefixes of its alias.
func hostdevField(h *libvirtxml.DomainHostdev) string {
	name := nameOf(h.Alias)
	for _, kind := range []struct{ prefix, list string }{
		{prefixSRIOV, "interfaces"}, {prefixGPU, "gpus"}, {prefixUSB, "hostDevices"}, {prefixHost, "hostDevices"},
	} {
		if rest, ok := strings.CutPrefix(name, kind.prefix); ok {
			return specDevices + kind.list + "[" + rest + "]"
		}
	}
	return fieldOf("hostDevices", h.Alias)
}

// String is the address as people write it.
func (p Place) String() string {
	if p.CCW {
		return fmt.Sprintf("fe.0.%04x", p.Device)
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", p.Domain, p.Bus, p.Slot, p.Function)
}
