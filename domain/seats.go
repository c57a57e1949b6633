// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// plug is what a device has to be plugged into.
type plug int

const (
	// noPlug: the device has no PCI address, or libvirt knows the only one.
	noPlug plug = iota
	// express: a PCI Express device, each behind a port of its own.
	express
	// conventional: a device of conventional PCI, behind a bridge.
	conventional
)

// seat is a device of a domain with the place it has or needs.
type seat struct {
	// key identifies the device in [Layout].Places; field is where it comes from.
	key, field string
	// address is the device's.
	address **libvirtxml.DomainAddress
	// plug tells where it may go on a machine with PCI; virtio devices have a
	// channel on s390x.
	plug   plug
	virtio bool
	// slot is the one on bus 0 that q35 keeps for such a device; 0 if none.
	slot uint
	// card says that it is a network card; plugged that it may come and go while
	// the guest runs; early that it is placed before what is left free for cards.
	card, plugged, early bool
	// host is the device of the host that stands behind it; nil for others.
	host *libvirtxml.DomainHostdev
}

// Slots of bus 0 that the q35 chipset keeps.
const (
	slotVideo   = 0x01
	slotAudio   = 0x1b
	slotChipset = 0x1f
)

// virtualFunction is how aliases of SR-IOV network cards begin.
const virtualFunction = AliasPrefix + prefixSRIOV

// seats is a list under way.
type seats struct{ all []seat }

// seatsOf lists all devices in the order in which a new guest's are placed: that in
// which libvirt would, which is how those of KubeVirt got their addresses. A guest that
// changes from one to the other finds its devices where they were.
func seatsOf(d *libvirtxml.DomainDeviceList) []seat {
	l := &seats{all: make([]seat, 0, 16+len(d.Controllers)+len(d.Disks))}
	for _, list := range []func(*libvirtxml.DomainDeviceList){
		l.filesystems, l.cards, l.sounds, l.controllers, l.disks, l.hostDevices, l.balloon, l.watchdogs, l.videos, l.inputs, l.others,
	} {
		list(d)
	}
	return l.all
}

func (l *seats) disks(d *libvirtxml.DomainDeviceList) {
	for i := range d.Disks {
		disk := &d.Disks[i]
		s := l.add(disk.Alias, "disk", i, &disk.Address)
		s.plugged = true
		if disk.Target != nil && disk.Target.Bus == busVirtio {
			s.bus(disk.Model)
		}
	}
}

// filesystems come before the network cards, and so before the places that are left
// free for more of those.
func (l *seats) filesystems(d *libvirtxml.DomainDeviceList) {
	for i := range d.Filesystems {
		f := &d.Filesystems[i]
		s := l.add(f.Alias, "filesystem", i, &f.Address)
		s.bus(f.Model)
		s.early = true
	}
}

// hostDevices lists those of the host, virtual functions that are network cards among
// them.
func (l *seats) hostDevices(d *libvirtxml.DomainDeviceList) {
	for i := range d.Hostdevs {
		h := &d.Hostdevs[i]
		s := l.hostDevice(h, i)
		if isVirtualFunction(h) {
			s.card, s.plugged = true, true
			s.field = specDevices + "interfaces[" + strings.TrimPrefix(h.Alias.Name, virtualFunction) + "]"
		}
	}
}

// add appends a device that is on no bus yet.
func (l *seats) add(a *libvirtxml.DomainAlias, kind string, i int, address **libvirtxml.DomainAddress) *seat {
	s := seat{address: address}
	if nameOf(a) != "" {
		s.key = a.Name
	} else {
		s.key = kind + strconv.Itoa(i)
	}
	s.field = specDevices + kind
	if name := nameOf(a); name != "" {
		s.field += "s[" + name + "]"
	}
	l.all = append(l.all, s)
	return &l.all[len(l.all)-1]
}

// only is add for a device of which there is one at most.
func (l *seats) only(a *libvirtxml.DomainAlias, kind string, address **libvirtxml.DomainAddress) *seat {
	s := l.add(a, kind, 0, address)
	if nameOf(a) == "" {
		s.key = kind
	}
	return s
}

// bus puts a virtio device of that model on its bus: transitional devices are
// conventional PCI, so that old drivers reach their I/O ports.
func (s *seat) bus(model string) {
	s.virtio, s.plug = true, express
	if strings.HasSuffix(model, "-transitional") && !strings.HasSuffix(model, "-non-transitional") {
		s.plug = conventional
	}
}

// cards lists network cards but for those of the host.
func (l *seats) cards(d *libvirtxml.DomainDeviceList) {
	for i := range d.Interfaces {
		in := &d.Interfaces[i]
		s := l.add(in.Alias, "interface", i, &in.Address)
		s.card, s.plugged, s.early = true, true, true
		model := ""
		if in.Model != nil {
			model = in.Model.Type
		}
		switch {
		case strings.HasPrefix(model, busVirtio):
			s.bus(model)
		case model == "e1000e", model == "igb", model == "vmxnet3":
			s.plug = express
		case model != "usb-net":
			s.plug = conventional
		}
	}
}

func isVirtualFunction(h *libvirtxml.DomainHostdev) bool {
	return h.Alias != nil && strings.HasPrefix(h.Alias.Name, virtualFunction)
}

func (l *seats) hostDevice(h *libvirtxml.DomainHostdev, i int) *seat {
	s := l.add(h.Alias, "hostdev", i, &h.Address)
	s.host = h
	switch {
	case h.SubsysPCI != nil, h.SubsysMDev != nil && h.SubsysMDev.Model == "vfio-pci":
		s.plug = express
	case h.SubsysMDev != nil && h.SubsysMDev.Model == "vfio-ccw":
		s.virtio = true
	}
	return s
}

// controllers lists those that are devices themselves. SATA controller 0 is part
// of the chipset.
func (l *seats) controllers(d *libvirtxml.DomainDeviceList) {
	for i := range d.Controllers {
		c := &d.Controllers[i]
		s := l.add(nil, "", i, &c.Address)
		index := deref(c.Index)
		s.key = "controller/" + c.Type + "/" + strconv.FormatUint(uint64(index), 10)
		s.field = "domain.devices." + s.key
		switch {
		case c.Type == "pci", c.Model == "none":
		case c.Type == "virtio-serial", strings.HasPrefix(c.Model, busVirtio):
			s.bus(c.Model)
		case c.Type == busUSB && strings.HasSuffix(c.Model, "-xhci"):
			s.plug = express
		case c.Type == busSCSI, c.Type == "sata" && index > 0, c.Type == busUSB:
			s.plug = conventional
		}
	}
}

// videos lists what is seen.
func (l *seats) videos(d *libvirtxml.DomainDeviceList) {
	for i := range d.Videos {
		v := &d.Videos[i]
		s := l.add(v.Alias, "video", i, &v.Address)
		switch v.Model.Type {
		case "none", "ramfb":
			continue
		case busVirtio:
			s.bus("")
		case "bochs":
			s.plug = express
		default:
			s.plug = conventional
		}
		if i == 0 {
			s.slot = slotVideo
		}
	}
}

// sounds lists what is heard.
func (l *seats) sounds(d *libvirtxml.DomainDeviceList) {
	for i := range d.Sounds {
		so := &d.Sounds[i]
		s := l.add(so.Alias, "sound", i, &so.Address)
		switch so.Model {
		case busVirtio:
			s.bus("")
		case "ich9":
			s.plug = conventional
			if i == 0 {
				s.slot = slotAudio
			}
		case "ich6", "ich7", "ac97", "es1370":
			s.plug = conventional
		}
	}
}

// watchdogs lists those that are devices of their own.
func (l *seats) watchdogs(d *libvirtxml.DomainDeviceList) {
	for i := range d.Watchdogs {
		s := l.add(d.Watchdogs[i].Alias, "watchdog", i, &d.Watchdogs[i].Address)
		if d.Watchdogs[i].Model == "i6300esb" {
			s.plug = conventional
		}
	}
}

// inputs lists shared memory, input devices and serial ports.
func (l *seats) inputs(d *libvirtxml.DomainDeviceList) {
	for i := range d.Shmems {
		l.add(d.Shmems[i].Alias, "shmem", i, &d.Shmems[i].Address).plug = conventional
	}
	for i := range d.Inputs {
		in := &d.Inputs[i]
		if s := l.add(in.Alias, "input", i, &in.Address); in.Bus == busVirtio {
			s.bus(in.Model)
		}
	}
	for i := range d.Serials {
		l.add(d.Serials[i].Alias, "serial", i, &d.Serials[i].Address)
	}
}

// balloon lists the balloon and the sources of random numbers.
func (l *seats) balloon(d *libvirtxml.DomainDeviceList) {
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

// others lists what is left.
func (l *seats) others(d *libvirtxml.DomainDeviceList) {
	if v := d.VSock; v != nil {
		l.only(v.Alias, "vsock", &v.Address).bus(v.Model)
	}
	for i := range d.Memorydevs {
		m := &d.Memorydevs[i]
		if s := l.add(m.Alias, "memory", i, &m.Address); strings.HasPrefix(m.Model, busVirtio) {
			s.bus("")
			s.plugged = true
		}
	}
	for i := range d.Crypto {
		l.add(d.Crypto[i].Alias, "crypto", i, &d.Crypto[i].Address).bus(d.Crypto[i].Model)
	}
	for i := range d.Panics {
		s := l.add(d.Panics[i].Alias, "panic", i, &d.Panics[i].Address)
		if d.Panics[i].Model == "pvpanic" {
			s.plug = express
		}
	}
	for i := range d.IOMMUs {
		if s := l.add(nil, "iommu", i, &d.IOMMUs[i].Address); d.IOMMUs[i].Model == busVirtio {
			s.plug = express
		}
	}
}
