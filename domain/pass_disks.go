// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// What the guest takes a disk for (libvirt: disk, attribute device).
const (
	deviceDisk  = "disk"
	deviceLUN   = "lun"
	deviceCDROM = "cdrom"
)

// disks converts every disk with its volume, in the order of the spec.
func disks(c *Conversion) error {
	vols := map[string]*v1.Volume{}
	for i := range c.VMI.Spec.Volumes {
		vols[c.VMI.Spec.Volumes[i].Name] = &c.VMI.Spec.Volumes[i]
	}
	names, reports := newTargetNames(c.VMI, c.Facts.Layout), reportsOf(c.VMI)
	seen := map[string]bool{}
	for i := range c.VMI.Spec.Domain.Devices.Disks {
		in := &c.VMI.Spec.Domain.Devices.Disks[i]
		p := diskPass{Conversion: c, in: in, field: fmt.Sprintf("%sdisks[%d]", specDevices, i), vol: vols[in.Name], reports: reports}
		if err := c.checkName(p.field+".name", in.Name); err != nil {
			return err
		}
		if seen[in.Name] {
			return c.Invalid(p.field+".name", fmt.Sprintf("%q occurs twice", in.Name), "give every disk a name of its own")
		}
		seen[in.Name] = true
		if p.vol != nil && !reports.plugged(p.vol) {
			if in.CDRom == nil {
				continue
			}
			p.vol = nil // the drive is the guest's, the disc comes and goes
		}
		if err := p.convert(names); err != nil {
			return err
		}
		c.Domain.Devices.Disks = append(c.Domain.Devices.Disks, p.out)
	}
	return nil
}

// Plugged tells whether the data of a volume is there for the guest: at once for one
// it is started with, from phase MountedToPod on for one that was added later
// (status.volumeStatus, field hotplugVolume). A volume whose status is missing belongs
// to the start, unless it can be added later and the statuses of others are there.
func Plugged(vmi *v1.VirtualMachineInstance, vol *v1.Volume) bool {
	return reportsOf(vmi).plugged(vol)
}

// volumeReports is what the status says about volumes.
type volumeReports struct {
	of map[string]*v1.VolumeStatus
	// permanent says that there is a status of a volume that is there from the start.
	permanent bool
	// preallocated are those whose claim was asked to keep all its space.
	preallocated map[string]bool
}

func reportsOf(vmi *v1.VirtualMachineInstance) volumeReports {
	r := volumeReports{of: make(map[string]*v1.VolumeStatus, len(vmi.Status.VolumeStatus)), preallocated: map[string]bool{}}
	for i := range vmi.Status.VolumeStatus {
		s := &vmi.Status.VolumeStatus[i]
		r.permanent = r.permanent || s.HotplugVolume == nil
		if r.of[s.Name] == nil {
			r.of[s.Name] = s
		}
		if _, noted := r.preallocated[s.Name]; !noted && s.PersistentVolumeClaimInfo != nil {
			r.preallocated[s.Name] = s.PersistentVolumeClaimInfo.Preallocated
		}
	}
	return r
}

// plugged is [Plugged].
func (r volumeReports) plugged(vol *v1.Volume) bool {
	switch s := r.of[vol.Name]; {
	case s == nil:
		hotpluggable := vol.PersistentVolumeClaim != nil && vol.PersistentVolumeClaim.Hotpluggable ||
			vol.DataVolume != nil && vol.DataVolume.Hotpluggable
		return !r.permanent || !hotpluggable
	case s.HotplugVolume == nil:
		return true
	default:
		return s.Phase == v1.HotplugVolumeMounted || s.Phase == v1.VolumeReady
	}
}

// diskPass converts one disk.
type diskPass struct {
	*Conversion
	in    *v1.Disk
	field string
	vol   *v1.Volume // nil: a drive without a disc
	// reports is what the status says about all volumes.
	reports volumeReports
	src     *DiskSource // what the facts say about vol; nil as well then
	out     libvirtxml.DomainDisk
	bus     string
	ro      bool
}

func (p *diskPass) convert(names *targetNames) error {
	p.out = libvirtxml.DomainDisk{
		Alias:  alias(p.in.Name),
		Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: formatRaw},
		Target: &libvirtxml.DomainDiskTarget{},
	}
	for _, step := range []func() error{
		p.device, p.common, p.source, p.reservation, p.cache, p.accessMode, p.errorPolicy, p.blockSize,
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
	if p.discards() {
		p.out.Driver.Discard = "unmap"
	}
	switch p.bus {
	case busSCSI:
		p.out.Address = driveAddress(p.out.Target.Dev)
	case busVirtio:
		p.virtio()
	}
	return nil
}

// virtio sets what only virtio disks have.
func (p *diskPass) virtio() {
	p.out.Model = p.virtioModel()
	if isTrue(p.VMI.Spec.Domain.Devices.BlockMultiQueue) {
		p.out.Driver.Queues = ptr(uint(topologyOf(&p.VMI.Spec.Domain).count()))
	}
	if p.encrypted() {
		p.out.Driver.IOMMU = onOff(true)
	}
}

// device sets what the guest takes it for: disk, cdrom or lun. Naming none of
// them means disk.
func (p *diskPass) device() error {
	var bus v1.DiskBus
	kinds := 0
	pci := ""
	p.out.Device = deviceDisk
	if d := p.in.Disk; d != nil {
		bus, p.ro, pci = d.Bus, d.ReadOnly, d.PciAddress
		kinds++
	}
	if d := p.in.LUN; d != nil {
		p.out.Device, bus, p.ro = deviceLUN, d.Bus, d.ReadOnly
		kinds++
	}
	if d := p.in.CDRom; d != nil {
		p.out.Device, bus, p.ro = deviceCDROM, d.Bus, !isFalse(d.ReadOnly)
		kinds++
		if err := p.tray(d.Tray); err != nil {
			return err
		}
	}
	if kinds > 1 {
		return p.Invalid(p.field, "is more than one of disk, lun and cdrom", "leave one")
	}
	if err := p.chooseBus(string(bus)); err != nil || pci == "" {
		return err
	}
	if p.bus != busVirtio {
		return p.Invalid(p.field+".disk.pciAddress", "only virtio disks have a PCI address", "set bus to virtio, or remove the address")
	}
	a, err := p.pciAddress(p.field+".disk.pciAddress", pci)
	p.out.Address = a
	return err
}

// tray is closed unless the spec says otherwise.
func (p *diskPass) tray(state v1.TrayState) error {
	p.out.Target.Tray = cmp.Or(string(state), string(v1.TrayStateClosed))
	if state == "" || state == v1.TrayStateClosed || state == v1.TrayStateOpen {
		return nil
	}
	return p.Invalid(p.field+".cdrom.tray", fmt.Sprintf("%q is no state of a tray", state), "use open or closed")
}

// chooseBus takes the bus of the spec, else the architecture's. A LUN takes SCSI
// commands, and metrics of the host are read from a virtio disk.
func (p *diskPass) chooseBus(bus string) error {
	field := fmt.Sprintf("%s.%s.bus", p.field, p.out.Device)
	metrics := p.vol != nil && p.vol.DownwardMetrics != nil
	if metrics && bus == "" {
		bus = busVirtio
	}
	lun := p.out.Device == deviceLUN
	if lun && bus == "" {
		bus = busSCSI
	}
	p.bus = cmp.Or(bus, p.arch.diskBus)
	switch {
	case !slices.Contains([]string{busVirtio, busSATA, busSCSI, busUSB}, p.bus):
		return p.Invalid(field, fmt.Sprintf("%q is no disk bus", p.bus), "use virtio, sata, scsi or usb")
	case metrics && p.bus != busVirtio:
		return p.Invalid(field, "downwardMetrics is a virtio disk", "set bus to virtio, or leave it out")
	case lun && p.bus != busSCSI && p.bus != busVirtio:
		return p.Invalid(field, fmt.Sprintf("a LUN takes SCSI commands, which bus %s does not carry", p.bus), "set bus to scsi")
	}
	return nil
}

// serialForm are serial numbers that libvirt accepts.
var serialForm = regexp.MustCompile(`^[A-Za-z0-9_.+-]{1,256}$`)

// common sets what all kinds of disks have.
func (p *diskPass) common() error {
	switch {
	case p.in.Serial != "" && p.out.Device == deviceLUN:
		return p.Invalid(p.field+".serial", "a LUN shows the serial number of its device", "remove it")
	case p.in.Serial != "" && !serialForm.MatchString(p.in.Serial):
		return p.Invalid(p.field+".serial", fmt.Sprintf("%q is no serial number", p.in.Serial), "use 1 to 256 letters, digits, _ . + and -")
	}
	p.out.Serial = p.in.Serial
	if isTrue(p.in.Shareable) {
		p.out.Shareable = &libvirtxml.DomainDiskShareable{}
	}
	if o := p.in.BootOrder; o != nil {
		if *o == 0 {
			return p.Invalid(p.field+".bootOrder", "0 is no position", "count from 1")
		}
		p.out.Boot = &libvirtxml.DomainDeviceBoot{Order: *o}
	}
	return nil
}
