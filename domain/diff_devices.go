// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"

	"libvirt.org/go/libvirtxml"
)

const seenByGuest = "the guest has seen the device as it is"

// disks compares disks by alias, else by serial number.
func (c *comparison) disks() {
	if c.live.Devices == nil {
		return
	}
	used := map[int]bool{}
	for i := range c.want.Devices.Disks {
		w := &c.want.Devices.Disks[i]
		j := findDisk(c.live.Devices.Disks, w)
		if j < 0 {
			c.missing(fmt.Sprintf("%sdisks[%s]", specDevices, nameOf(w.Alias)), pluggable(w), AttachDevice, w)
			continue
		}
		used[j] = true
		c.disk(w, &c.live.Devices.Disks[j])
	}
	for j := range c.live.Devices.Disks {
		h := &c.live.Devices.Disks[j]
		if name := nameOf(h.Alias); name != "" && !used[j] {
			c.missing(fmt.Sprintf("%sdisks[%s]", specDevices, name), pluggable(h), DetachDevice, h)
		}
	}
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

// pluggable tells whether a disk can come and go while the guest runs.
func pluggable(d *libvirtxml.DomainDisk) bool {
	return d.Device != "cdrom" && d.Target != nil && (d.Target.Bus == busVirtio || d.Target.Bus == busSCSI)
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

// disk compares two sides of one disk.
func (c *comparison) disk(w, h *libvirtxml.DomainDisk) {
	field := fmt.Sprintf("%sdisks[%s]", specDevices, nameOf(w.Alias))
	c.text(NextBoot, field, device(w), device(h), seenByGuest)
	if w.Target != nil && h.Target != nil {
		c.text(NextBoot, field+".bus", w.Target.Bus, h.Target.Bus, seenByGuest)
	}
	c.text(NextBoot, field+".serial", w.Serial, h.Serial, seenByGuest)
	c.text(NextBoot, field+".readonly", yesNo(w.ReadOnly != nil), yesNo(h.ReadOnly != nil), seenByGuest)
	c.text(NextBoot, field+".bootOrder", bootOf(w.Boot), bootOf(h.Boot), "is read when the guest starts")
	c.source(field, w, h)
	if device(w) != "cdrom" { // a drive keeps the settings it was started with
		c.driver(field, w.Driver, h.Driver)
	}
}

func device(d *libvirtxml.DomainDisk) string {
	if d.Device == "" {
		return "disk"
	}
	return d.Device
}

func bootOf(b *libvirtxml.DomainDeviceBoot) string {
	if b == nil {
		return ""
	}
	return fmt.Sprint(b.Order)
}

// source compares where the data is: a drive can be given another disc, a disk
// in use only goes elsewhere in a migration.
func (c *comparison) source(field string, w, h *libvirtxml.DomainDisk) {
	want, have := pathOf(w.Source), pathOf(h.Source)
	if want == have {
		return
	}
	if device(w) != "cdrom" {
		c.add(NeedsMigration, field+".volume", want, have, "a disk in use changes its volume only by migration")
		return
	}
	// Only the disc may be another one: libvirt refuses every other change.
	changed := *h
	changed.Source = w.Source
	if h.Driver != nil && w.Driver != nil {
		driver := *h.Driver
		driver.Type = w.Driver.Type
		changed.Driver = &driver
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

// driver compares how QEMU accesses the data. What the wish leaves open is no
// difference.
func (c *comparison) driver(field string, w, h *libvirtxml.DomainDiskDriver) {
	if w == nil || h == nil {
		return
	}
	const reason = "is a setting of the QEMU process"
	for _, s := range []struct{ name, want, have string }{
		{".format", w.Type, h.Type}, {".cache", w.Cache, h.Cache}, {".io", w.IO, h.IO},
		{".errorPolicy", w.ErrorPolicy, h.ErrorPolicy}, {".discard", w.Discard, h.Discard},
	} {
		if s.want != "" {
			c.text(NeedsMigration, field+s.name, s.want, s.have, reason)
		}
	}
}

// interfaces compares network cards by alias.
func (c *comparison) interfaces() {
	if c.live.Devices == nil {
		return
	}
	have := map[string]*libvirtxml.DomainInterface{}
	for i := range c.live.Devices.Interfaces {
		if name := nameOf(c.live.Devices.Interfaces[i].Alias); name != "" {
			have[name] = &c.live.Devices.Interfaces[i]
		}
	}
	field := func(name string) string { return fmt.Sprintf("%sinterfaces[%s]", specDevices, name) }
	for i := range c.want.Devices.Interfaces {
		w := &c.want.Devices.Interfaces[i]
		name := nameOf(w.Alias)
		h, ok := have[name]
		if !ok {
			c.missing(field(name), true, AttachDevice, w)
			continue
		}
		delete(have, name)
		c.networkCard(field(name), w, h)
	}
	for i := range c.live.Devices.Interfaces { // in order, unlike the map
		h := &c.live.Devices.Interfaces[i]
		if name := nameOf(h.Alias); have[name] == h {
			c.missing(field(name), true, DetachDevice, h)
		}
	}
}

// networkCard compares two sides of one card.
func (c *comparison) networkCard(field string, w, h *libvirtxml.DomainInterface) {
	if w.MAC != nil && h.MAC != nil {
		c.text(NextBoot, field+".macAddress", w.MAC.Address, h.MAC.Address, seenByGuest)
	}
	if w.Model != nil && h.Model != nil {
		c.text(NextBoot, field+".model", w.Model.Type, h.Model.Type, seenByGuest)
	}
	c.text(NextBoot, field+".bootOrder", bootOf(w.Boot), bootOf(h.Boot), "is read when the guest starts")
	changed := *h
	if want, have := linkState(w), linkState(h); want != have {
		changed.Link = &libvirtxml.DomainInterfaceLink{State: want}
		c.operate(c.add(Live, field+".state", want, have, "the link can be switched"), UpdateDevice, &changed)
	}
	if want, have := bridgeOf(w), bridgeOf(h); want != have {
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
