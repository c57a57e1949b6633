// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// readBack returns a domain as a running hypervisor would present it, without random choices.
func readBack(t testing.TB, d *libvirtxml.Domain) *libvirtxml.Domain {
	t.Helper()
	live, err := through(d)
	if err != nil {
		t.Fatal(err)
	}
	h := hypervisor{Domain: live, chance: func() bool { return true }}
	h.rewrite()
	return live
}

// readBackAtRandom applies a random subset of the changes, and reorders devices.
func readBackAtRandom(t testing.TB, r *rand.Rand, d *libvirtxml.Domain) *libvirtxml.Domain {
	t.Helper()
	live, err := through(d)
	if err != nil {
		t.Fatal(err)
	}
	h := hypervisor{Domain: live, chance: func() bool { return r.IntN(2) == 0 }}
	h.rewrite()
	l := live.Devices
	r.Shuffle(len(l.Disks), func(i, j int) { l.Disks[i], l.Disks[j] = l.Disks[j], l.Disks[i] })
	r.Shuffle(len(l.Interfaces), func(i, j int) { l.Interfaces[i], l.Interfaces[j] = l.Interfaces[j], l.Interfaces[i] })
	r.Shuffle(len(l.Hostdevs), func(i, j int) { l.Hostdevs[i], l.Hostdevs[j] = l.Hostdevs[j], l.Hostdevs[i] })
	r.Shuffle(len(l.Controllers), func(i, j int) { l.Controllers[i], l.Controllers[j] = l.Controllers[j], l.Controllers[i] })
	r.Shuffle(len(l.Inputs), func(i, j int) { l.Inputs[i], l.Inputs[j] = l.Inputs[j], l.Inputs[i] })
	return live
}

// hypervisor rewrites a running domain as libvirt does.
type hypervisor struct {
	*libvirtxml.Domain
	chance func() bool
}

func (h *hypervisor) rewrite() {
	for _, step := range []func(){
		h.identity, h.sizes, h.machine, h.processor, h.defaults, h.disks, h.cards, h.controllers, h.others, h.names,
	} {
		step()
	}
}

func (h *hypervisor) identity() {
	h.ID = new(7)
	if h.chance() {
		h.UUID = strings.ToUpper(h.UUID)
	}
	if h.chance() {
		h.SecLabel = append(h.SecLabel, libvirtxml.DomainSecLabel{Type: "dynamic", Model: "dac", Label: "+64055:+64055"})
	}
	if h.chance() {
		h.Resource = &libvirtxml.DomainResource{Partition: "/machine"}
	}
	h.Devices.Emulator = "/usr/bin/qemu-system-x86_64"
}

// sizes are in KiB; maximum memory includes current memory.
func (h *hypervisor) sizes() {
	if h.Memory != nil && h.chance() {
		h.Memory.Value, h.Memory.Unit = uint(xmlspec.BytesOf(h.Memory.Value, h.Memory.Unit)+1023)>>10, "KiB"
	}
	if h.Memory != nil {
		m := *h.Memory
		h.CurrentMemory = &libvirtxml.DomainCurrentMemory{Value: m.Value, Unit: m.Unit}
	}
	if h.CPU == nil || h.CPU.Numa == nil {
		return
	}
	for i := range h.CPU.Numa.Cell {
		c := &h.CPU.Numa.Cell[i]
		if c.Unit == "" || c.Unit == "KiB" || h.chance() {
			c.Memory, c.Unit = uint(xmlspec.BytesOf(c.Memory, c.Unit)>>10), "KiB"
		}
	}
}

func (h *hypervisor) machine() {
	switch m := &h.OS.Type.Machine; *m {
	case "q35":
		*m = "pc-q35-7.2"
	case "pc":
		*m = "pc-i440fx-7.2"
	case "virt", "s390-ccw-virtio":
		*m += "-7.2"
	}
	if h.chance() {
		h.OS.BootDevices = nil
		h.PM = &libvirtxml.DomainPM{SuspendToMem: &libvirtxml.DomainPMPolicy{Enabled: "no"}}
	}
}

// processor resolves host-model to a model with features.
func (h *hypervisor) processor() {
	if h.CPU == nil || h.CPU.Mode == "custom" && !h.chance() {
		return
	}
	h.CPU.Check = "full"
	if h.CPU.Mode == "host-model" {
		h.CPU.Mode, h.CPU.Match, h.CPU.Model = "custom", "exact", &libvirtxml.DomainCPUModel{Value: "EPYC", Fallback: "forbid"}
	}
	h.CPU.Vendor = "AMD"
	h.CPU.Features = append(h.CPU.Features, libvirtxml.DomainCPUFeature{Name: "hypervisor", Policy: "require"})
	if h.CPU.Topology != nil {
		h.CPU.Topology.Dies = 1
	}
}

func (h *hypervisor) defaults() {
	h.OnPoweroff, h.OnCrash = "destroy", "destroy"
	if h.OnReboot == "" {
		h.OnReboot = "restart"
	}
	if h.Clock == nil {
		h.Clock = &libvirtxml.DomainClock{Offset: "utc"}
	}
	if h.chance() {
		h.Features = nil
	}
	if h.IOThreads > 0 && h.chance() {
		h.IOThreadIDs = &libvirtxml.DomainIOThreadIDs{IOThreads: []libvirtxml.DomainIOThread{{ID: 1}}}
	}
}

func (h *hypervisor) disks() {
	for i := range h.Devices.Disks {
		d := &h.Devices.Disks[i]
		if d.Source != nil && h.chance() {
			d.Source.Index = uint(i + 1)
		}
		if d.BackingStore == nil && d.Source != nil {
			d.BackingStore = &libvirtxml.DomainDiskBackingStore{}
		}
		for b := d.BackingStore; b != nil && h.chance(); b = b.BackingStore {
			b.Index = 9
		}
		if d.Device == "cdrom" {
			d.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
			if h.chance() { // the guest has opened the channel
				d.Target.Tray = "open"
			}
		}
		if d.Address == nil && h.chance() {
			d.Address = &libvirtxml.DomainAddress{Drive: &libvirtxml.DomainAddressDrive{Unit: new(uint(i))}}
		}
		if d.Driver != nil && d.Driver.ErrorPolicy == "" {
			d.Driver.ErrorPolicy = "report"
		}
	}
}

func (h *hypervisor) cards() {
	for i := range h.Devices.Interfaces {
		n := &h.Devices.Interfaces[i]
		if n.MAC != nil && h.chance() {
			n.MAC.Address, n.MAC.Check = strings.ToUpper(n.MAC.Address), "no"
		}
		if n.Target == nil && h.chance() {
			n.Target = &libvirtxml.DomainInterfaceTarget{Dev: fmt.Sprintf("vnet%d", i)}
		}
		if n.Link == nil && h.chance() {
			n.Link = &libvirtxml.DomainInterfaceLink{State: "up"}
		}
		if n.Driver == nil && h.chance() {
			n.Driver = &libvirtxml.DomainInterfaceDriver{Name: "vhost"}
		}
	}
	if h.chance() { // hotplugged by another client, with its own alias
		h.Devices.Interfaces = append(h.Devices.Interfaces, libvirtxml.DomainInterface{Alias: &libvirtxml.DomainAlias{Name: "net9"}})
	}
}

func (h *hypervisor) controllers() {
	for i := range h.Devices.Controllers {
		c := &h.Devices.Controllers[i]
		if c.Type == "pci" && c.Model == rootPort {
			if c.PCI.Target == nil {
				c.PCI.Target = &libvirtxml.DomainControllerPCITarget{}
			}
			c.PCI.Model = &libvirtxml.DomainControllerPCIModel{Name: rootPort}
			c.PCI.Target.Chassis, c.PCI.Target.Port = new(*c.Index), new(uint(0x10+i))
		}
		if c.Type == xmlspec.BusUSB && c.Model == "qemu-xhci" {
			c.USB = &libvirtxml.DomainControllerUSB{Port: new(uint(15))}
		}
	}
	if h.chance() {
		h.Devices.Controllers = append(h.Devices.Controllers, libvirtxml.DomainController{
			Type: "sata", Index: new(uint(0)), Address: placedOn(convert.Place{Slot: 0x1f, Function: 2}),
		})
	}
}

func (h *hypervisor) others() {
	l := h.Devices
	for i := range l.Serials {
		l.Serials[i].Alias = &libvirtxml.DomainAlias{Name: fmt.Sprintf("serial%d", i)}
		l.Consoles = append(l.Consoles, libvirtxml.DomainConsole{TTY: "/dev/pts/1"})
	}
	for i := range l.Channels {
		l.Channels[i].Target.VirtIO.State = "connected"
		l.Channels[i].Address = &libvirtxml.DomainAddress{VirtioSerial: &libvirtxml.DomainAddressVirtioSerial{Port: new(uint(1))}}
	}
	for i := range l.Videos {
		l.Videos[i].Model.Primary = "yes"
	}
	if h.chance() && h.OS.Type.Arch == xmlspec.ArchX86 {
		l.Inputs = append(l.Inputs, libvirtxml.DomainInput{Type: "mouse", Bus: "ps2"}, libvirtxml.DomainInput{Type: "keyboard", Bus: "ps2"})
	}
	if h.chance() {
		l.Audios = append(l.Audios, libvirtxml.DomainAudio{ID: 1, None: &libvirtxml.DomainAudioNone{}})
	}
	if l.MemBalloon == nil {
		l.MemBalloon = &libvirtxml.DomainMemBalloon{Model: "virtio"}
	}
}

// names sets the missing aliases and addresses of devices.
func (h *hypervisor) names() {
	for i := range h.Devices.Controllers {
		c := &h.Devices.Controllers[i]
		c.Alias = &libvirtxml.DomainAlias{Name: fmt.Sprintf("%s.%d", c.Type, *c.Index)}
	}
	for i := range h.Devices.RNGs {
		h.Devices.RNGs[i].Alias = &libvirtxml.DomainAlias{Name: fmt.Sprintf("rng%d", i)}
	}
	h.Devices.MemBalloon.Alias = &libvirtxml.DomainAlias{Name: "balloon0"}
}

// rootPort is the model of the controllers with devices behind them.
const rootPort = "pcie-root-port"

func placedOn(p convert.Place) *libvirtxml.DomainAddress {
	return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{Domain: &p.Domain, Bus: &p.Bus, Slot: &p.Slot, Function: &p.Function}}
}
