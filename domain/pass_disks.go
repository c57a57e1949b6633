// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// disks converts every disk with its volume, in the order of the spec.
func disks(c *Conversion) error {
	vols := map[string]*v1.Volume{}
	for i := range c.VMI.Spec.Volumes {
		vols[c.VMI.Spec.Volumes[i].Name] = &c.VMI.Spec.Volumes[i]
	}
	names := newTargetNames(c.VMI)
	seen := map[string]bool{}
	for i := range c.VMI.Spec.Domain.Devices.Disks {
		in := &c.VMI.Spec.Domain.Devices.Disks[i]
		p := diskPass{Conversion: c, in: in, field: fmt.Sprintf("%sdisks[%d]", specDevices, i)}
		if err := c.checkName(p.field+".name", in.Name); err != nil {
			return err
		}
		if seen[in.Name] {
			return c.Invalid(p.field+".name", fmt.Sprintf("%q occurs twice", in.Name), "give every disk a name of its own")
		}
		seen[in.Name] = true
		if err := p.convert(vols[in.Name], names); err != nil {
			return err
		}
		c.Domain.Devices.Disks = append(c.Domain.Devices.Disks, p.out)
	}
	return nil
}

// diskPass converts one disk.
type diskPass struct {
	*Conversion
	in    *v1.Disk
	field string
	out   libvirtxml.DomainDisk
	bus   string
	ro    bool
}

func (p *diskPass) convert(vol *v1.Volume, names *targetNames) error {
	p.out = libvirtxml.DomainDisk{
		Alias:  alias(p.in.Name),
		Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
		Target: &libvirtxml.DomainDiskTarget{},
	}
	for _, step := range []func() error{
		p.device, p.common, func() error { return p.source(vol) }, p.policies,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	p.out.Target.Bus = p.bus
	p.out.Target.Dev = names.next(p.in.Name, p.bus)
	if p.ro {
		p.out.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
	}
	if p.bus == busVirtio {
		p.out.Model = p.virtioModel()
		if isTrue(p.VMI.Spec.Domain.Devices.BlockMultiQueue) {
			p.out.Driver.Queues = ptr(uint(topologyOf(&p.VMI.Spec.Domain).count()))
		}
	}
	return nil
}

// device sets what the guest takes it for: disk, cdrom or lun. Naming none of
// them means disk.
func (p *diskPass) device() error {
	var bus v1.DiskBus
	kinds := 0
	kind, pci := "disk", ""
	if d := p.in.Disk; d != nil {
		bus, p.ro, pci = d.Bus, d.ReadOnly, d.PciAddress
		kinds++
	}
	if d := p.in.LUN; d != nil {
		kind, bus, p.ro = "lun", d.Bus, d.ReadOnly
		kinds++
		if d.Reservation {
			return p.Unsupported(p.field+".lun.reservation", "remove it")
		}
	}
	if d := p.in.CDRom; d != nil {
		kind, bus, p.ro = "cdrom", d.Bus, !isFalse(d.ReadOnly)
		p.out.Target.Tray = string(d.Tray)
		kinds++
	}
	if kinds > 1 {
		return p.Invalid(p.field, "is more than one of disk, lun and cdrom", "leave one")
	}
	p.out.Device = kind
	p.bus = cmp.Or(string(bus), p.arch.diskBus)
	if !slices.Contains([]string{busVirtio, "sata", busSCSI, busUSB}, p.bus) {
		return p.Invalid(fmt.Sprintf("%s.%s.bus", p.field, kind), fmt.Sprintf("%q is no disk bus", p.bus), "use virtio, sata, scsi or usb")
	}
	if pci == "" {
		return nil
	}
	if p.bus != busVirtio {
		return p.Invalid(p.field+".disk.pciAddress", "only virtio disks have a PCI address", "set bus to virtio, or remove the address")
	}
	a, err := p.pciAddress(p.field+".disk.pciAddress", pci)
	p.out.Address = a
	return err
}

var serialForm = regexp.MustCompile(`^[A-Za-z0-9_.+-]{1,256}$`)

// common sets what all kinds of disks have.
func (p *diskPass) common() error {
	switch {
	case isTrue(p.in.DedicatedIOThread):
		return p.Unsupported(p.field+".dedicatedIOThread", "remove it")
	case isTrue(p.in.ChangedBlockTracking):
		return p.Unsupported(p.field+".changedBlockTracking", "remove it")
	case p.in.BlockSize != nil && p.in.BlockSize.MatchVolume != nil && !isFalse(p.in.BlockSize.MatchVolume.Enabled):
		return p.Unsupported(p.field+".blockSize.matchVolume", "set blockSize.custom")
	case p.in.Serial != "" && !serialForm.MatchString(p.in.Serial):
		return p.Invalid(p.field+".serial", fmt.Sprintf("%q is no serial number", p.in.Serial), "use 1 to 256 letters, digits, _ . + and -")
	}
	p.out.Serial = p.in.Serial
	if p.in.BlockSize != nil && p.in.BlockSize.Custom != nil {
		b := p.in.BlockSize.Custom
		p.out.BlockIO = &libvirtxml.DomainDiskBlockIO{
			LogicalBlockSize: b.Logical, PhysicalBlockSize: b.Physical, DiscardGranularity: b.DiscardGranularity,
		}
	}
	if o := p.in.BootOrder; o != nil {
		if *o == 0 {
			return p.Invalid(p.field+".bootOrder", "0 is no position", "count from 1")
		}
		p.out.Boot = &libvirtxml.DomainDeviceBoot{Order: *o}
	}
	return nil
}

// pciAddress parses 0000:81:01.0.
func (c *Conversion) pciAddress(field, s string) (*libvirtxml.DomainAddress, error) {
	var dom, bus, slot, fn uint
	if n, err := fmt.Sscanf(s, "%04x:%02x:%02x.%1x", &dom, &bus, &slot, &fn); err != nil || n != 4 ||
		fmt.Sprintf("%04x:%02x:%02x.%x", dom, bus, slot, fn) != strings.ToLower(s) || slot > 0x1f || fn > 7 {
		return nil, c.Invalid(field, fmt.Sprintf("%q is no PCI address", s), "use the form 0000:81:01.0")
	}
	return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{Domain: &dom, Bus: &bus, Slot: &slot, Function: &fn}}, nil
}

// targetNames hands out target names. They do not decide anything in the guest,
// but must not change while it runs: a name the status has recorded is kept.
type targetNames struct {
	kept map[string]string // volume → name
	used map[string]bool
}

func newTargetNames(vmi *v1.VirtualMachineInstance) *targetNames {
	t := &targetNames{kept: map[string]string{}, used: map[string]bool{}}
	for _, s := range vmi.Status.VolumeStatus {
		if s.Target != "" {
			t.kept[s.Name], t.used[s.Target] = s.Target, true
		}
	}
	return t
}

func (t *targetNames) next(volume, bus string) string {
	prefix := "sd"
	if bus == busVirtio {
		prefix = "vd"
	}
	if name := t.kept[volume]; strings.HasPrefix(name, prefix) {
		return name
	}
	for i := 0; ; i++ {
		if name := prefix + letters(i); !t.used[name] {
			t.used[name] = true
			return name
		}
	}
}

// letters counts a, b, …, z, aa, ab, ….
func letters(i int) string {
	s := ""
	for i++; i > 0; i = (i - 1) / 26 {
		s = string(rune('a'+(i-1)%26)) + s
	}
	return s
}
