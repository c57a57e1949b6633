// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// slotKind is the kind of PCI slot that a device needs.
type slotKind int

const (
	// noSlot: the device has no PCI address, or its only possible one is known to libvirt.
	noSlot slotKind = iota
	// express: a PCI Express device, each behind a root port of its own.
	express
	// conventional: a conventional PCI device, behind a bridge.
	conventional
)

// pciSlot is a device of a domain with the place that it has or needs.
type pciSlot struct {
	// key identifies the device in [Layout].Places; field is its path in the spec.
	key, field string
	// address points to the address of the device.
	address **libvirtxml.DomainAddress
	// kind applies to machines with PCI; on s390x, virtio devices have a channel instead.
	kind   slotKind
	virtio bool
	// slot is the slot of bus 0 that q35 reserves for the device, 0 if none.
	slot uint
	// card marks an interface; hotpluggable a device that can be hotplugged and unplugged; early
	// one that is placed before the places reserved for interfaces.
	card, hotpluggable, early bool
	// host is the host device behind it, nil for others.
	host *libvirtxml.DomainHostdev
}

// Slots of bus 0 that the q35 chipset reserves.
const (
	slotVideo   = 0x01
	slotAudio   = 0x1b
	slotChipset = 0x1f
)

// pciSlots is a list under construction.
type pciSlots struct{ all []pciSlot }

// pciSlotsOf lists all devices in the order in which a new guest's are placed. It is libvirt's
// order, and thereby that of KubeVirt, so that a guest that is handed over between the two finds
// its devices at the same addresses.
func pciSlotsOf(d *libvirtxml.DomainDeviceList) []pciSlot {
	l := &pciSlots{all: make([]pciSlot, 0, 16+len(d.Controllers)+len(d.Disks))}
	for _, list := range []func(*libvirtxml.DomainDeviceList){
		l.filesystems, l.cards, l.sounds, l.controllers, l.disks, l.hostDevices, l.balloon, l.watchdogs, l.videos, l.inputs, l.others,
	} {
		list(d)
	}
	return l.all
}

func (l *pciSlots) disks(d *libvirtxml.DomainDeviceList) {
	for i := range d.Disks {
		disk := &d.Disks[i]
		s := l.add(disk.Alias, "disk", i, &disk.Address)
		s.hotpluggable = true
		if disk.Target != nil && disk.Target.Bus == xmlspec.BusVirtio {
			s.bus(disk.Model)
		}
	}
}

// filesystems precede the interfaces, and thereby the places reserved for those.
func (l *pciSlots) filesystems(d *libvirtxml.DomainDeviceList) {
	for i := range d.Filesystems {
		f := &d.Filesystems[i]
		s := l.add(f.Alias, "filesystem", i, &f.Address)
		s.bus(f.Model)
		s.early = true
	}
}

// hostDevices lists host devices, including virtual functions, which are interfaces.
func (l *pciSlots) hostDevices(d *libvirtxml.DomainDeviceList) {
	for i := range d.Hostdevs {
		h := &d.Hostdevs[i]
		s := l.hostDevice(h, i)
		if xmlspec.IsVirtualFunction(h) {
			s.card, s.hotpluggable = true, true
			s.field = specDevices + "interfaces[" + strings.TrimPrefix(h.Alias.Name, xmlspec.PrefixVirtualFunction) + "]"
		}
	}
}

// add appends a device without a bus.
func (l *pciSlots) add(a *libvirtxml.DomainAlias, kind string, i int, address **libvirtxml.DomainAddress) *pciSlot {
	s := pciSlot{address: address}
	if xmlspec.NameOf(a) != "" {
		s.key = a.Name
	} else {
		s.key = kind + strconv.Itoa(i)
	}
	s.field = specDevices + kind
	if name := xmlspec.NameOf(a); name != "" {
		s.field += "s[" + name + "]"
	}
	l.all = append(l.all, s)
	return &l.all[len(l.all)-1]
}

// only is add for a device of which there is at most one.
func (l *pciSlots) only(a *libvirtxml.DomainAlias, kind string, address **libvirtxml.DomainAddress) *pciSlot {
	s := l.add(a, kind, 0, address)
	if xmlspec.NameOf(a) == "" {
		s.key = kind
	}
	return s
}

// bus puts a virtio device of the given model on its bus: transitional models are conventional PCI,
// so that legacy drivers reach their I/O ports.
func (s *pciSlot) bus(model string) {
	s.virtio, s.kind = true, express
	if strings.HasSuffix(model, "-transitional") && !strings.HasSuffix(model, "-non-transitional") {
		s.kind = conventional
	}
}

// cards lists interfaces other than virtual functions.
func (l *pciSlots) cards(d *libvirtxml.DomainDeviceList) {
	for i := range d.Interfaces {
		in := &d.Interfaces[i]
		s := l.add(in.Alias, "interface", i, &in.Address)
		s.card, s.hotpluggable, s.early = true, true, true
		model := ""
		if in.Model != nil {
			model = in.Model.Type
		}
		switch {
		case strings.HasPrefix(model, xmlspec.BusVirtio):
			s.bus(model)
		case model == "e1000e", model == "igb", model == "vmxnet3":
			s.kind = express
		case model != "usb-net":
			s.kind = conventional
		}
	}
}

func (l *pciSlots) hostDevice(h *libvirtxml.DomainHostdev, i int) *pciSlot {
	s := l.add(h.Alias, "hostdev", i, &h.Address)
	s.host = h
	switch {
	case h.SubsysPCI != nil, h.SubsysMDev != nil && h.SubsysMDev.Model == "vfio-pci":
		s.kind = express
	case h.SubsysMDev != nil && h.SubsysMDev.Model == "vfio-ccw":
		s.virtio = true
	}
	return s
}

// controllers lists controllers that are devices themselves. SATA controller 0 is part of the
// chipset.
func (l *pciSlots) controllers(d *libvirtxml.DomainDeviceList) {
	for i := range d.Controllers {
		c := &d.Controllers[i]
		s := l.add(nil, "", i, &c.Address)
		index := deref(c.Index)
		s.key = "controller/" + c.Type + "/" + strconv.FormatUint(uint64(index), 10)
		s.field = "domain.devices." + s.key
		switch {
		case c.Type == "pci", c.Model == "none":
		case c.Type == "virtio-serial", strings.HasPrefix(c.Model, xmlspec.BusVirtio):
			s.bus(c.Model)
		case c.Type == xmlspec.BusUSB && strings.HasSuffix(c.Model, "-xhci"):
			s.kind = express
		case c.Type == xmlspec.BusSCSI, c.Type == "sata" && index > 0, c.Type == xmlspec.BusUSB:
			s.kind = conventional
		}
	}
}

// videos lists video devices.
func (l *pciSlots) videos(d *libvirtxml.DomainDeviceList) {
	for i := range d.Videos {
		v := &d.Videos[i]
		s := l.add(v.Alias, "video", i, &v.Address)
		switch v.Model.Type {
		case "none", "ramfb":
			continue
		case xmlspec.BusVirtio:
			s.bus("")
		case "bochs":
			s.kind = express
		default:
			s.kind = conventional
		}
		if i == 0 {
			s.slot = slotVideo
		}
	}
}

// sounds lists sound devices.
func (l *pciSlots) sounds(d *libvirtxml.DomainDeviceList) {
	for i := range d.Sounds {
		so := &d.Sounds[i]
		s := l.add(so.Alias, "sound", i, &so.Address)
		switch so.Model {
		case xmlspec.BusVirtio:
			s.bus("")
		case "ich9":
			s.kind = conventional
			if i == 0 {
				s.slot = slotAudio
			}
		case "ich6", "ich7", "ac97", "es1370":
			s.kind = conventional
		}
	}
}

// watchdogs lists watchdogs.
func (l *pciSlots) watchdogs(d *libvirtxml.DomainDeviceList) {
	for i := range d.Watchdogs {
		s := l.add(d.Watchdogs[i].Alias, "watchdog", i, &d.Watchdogs[i].Address)
		if d.Watchdogs[i].Model == "i6300esb" {
			s.kind = conventional
		}
	}
}

// inputs lists shared memory, input devices and serial ports.
func (l *pciSlots) inputs(d *libvirtxml.DomainDeviceList) {
	for i := range d.Shmems {
		l.add(d.Shmems[i].Alias, "shmem", i, &d.Shmems[i].Address).kind = conventional
	}
	for i := range d.Inputs {
		in := &d.Inputs[i]
		if s := l.add(in.Alias, "input", i, &in.Address); in.Bus == xmlspec.BusVirtio {
			s.bus(in.Model)
		}
	}
	for i := range d.Serials {
		l.add(d.Serials[i].Alias, "serial", i, &d.Serials[i].Address)
	}
}

// balloon lists the memory balloon and random number generators.
func (l *pciSlots) balloon(d *libvirtxml.DomainDeviceList) {
	if b := d.MemBalloon; b != nil {
		s := l.only(b.Alias, "balloon", &b.Address)
		if b.Model != "none" {
			s.bus(b.Model)
		}
	}
	for i := range d.RNGs {
		l.add(d.RNGs[i].Alias, "rng", i, &d.RNGs[i].Address).bus(d.RNGs[i].Model)
	}
}

// others lists the remaining devices.
func (l *pciSlots) others(d *libvirtxml.DomainDeviceList) {
	if v := d.VSock; v != nil {
		l.only(v.Alias, "vsock", &v.Address).bus(v.Model)
	}
	for i := range d.Memorydevs {
		m := &d.Memorydevs[i]
		if s := l.add(m.Alias, "memory", i, &m.Address); strings.HasPrefix(m.Model, xmlspec.BusVirtio) {
			s.bus("")
			s.hotpluggable = true
		}
	}
	for i := range d.Crypto {
		l.add(d.Crypto[i].Alias, "crypto", i, &d.Crypto[i].Address).bus(d.Crypto[i].Model)
	}
	for i := range d.Panics {
		s := l.add(d.Panics[i].Alias, "panic", i, &d.Panics[i].Address)
		if d.Panics[i].Model == "pvpanic" {
			s.kind = express
		}
	}
	for i := range d.IOMMUs {
		if s := l.add(nil, "iommu", i, &d.IOMMUs[i].Address); d.IOMMUs[i].Model == xmlspec.BusVirtio {
			s.kind = express
		}
	}
}
