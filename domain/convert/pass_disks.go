// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// Kinds of disks (libvirt: disk, attribute device).
const (
	deviceDisk  = "disk"
	deviceLUN   = "lun"
	deviceCDROM = "cdrom"
)

// disks converts every disk with its volume, in spec order.
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
			return c.Invalid(p.field+".name", fmt.Sprintf("Duplicate value: %q", in.Name), "use a unique name for each disk")
		}
		seen[in.Name] = true
		if p.vol != nil && !reports.plugged(p.vol) {
			if in.CDRom == nil {
				continue
			}
			p.vol = nil // the drive stays when its medium is not attached
		}
		if err := p.convert(names); err != nil {
			return err
		}
		c.Domain.Devices.Disks = append(c.Domain.Devices.Disks, p.out)
	}
	return nil
}

// Plugged reports whether the data of a volume is available to the guest: from the start for a
// volume of the initial spec, and from phase MountedToPod (status.volumeStatus, field
// hotplugVolume) for a hotplugged one. A volume without a status counts as initial, unless it is
// hotpluggable and other volumes have a status.
func Plugged(vmi *v1.VirtualMachineInstance, vol *v1.Volume) bool {
	return reportsOf(vmi).plugged(vol)
}

// volumeReports summarizes the volume status of a VMI.
type volumeReports struct {
	of map[string]*v1.VolumeStatus
	// permanent says that a volume which is not hotplugged has a status.
	permanent bool
	// preallocated holds the volumes whose claim must stay preallocated.
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

// plugged implements [Plugged].
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
	vol   *v1.Volume // nil for an empty drive
	// reports is the status of all volumes.
	reports volumeReports
	src     *DiskSource // source of vol in the facts; nil if vol is
	out     libvirtxml.DomainDisk
	bus     string
	ro      bool
}

func (p *diskPass) convert(names *targetNames) error {
	p.out = libvirtxml.DomainDisk{
		Alias:  xmlspec.Alias(p.in.Name),
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
	case xmlspec.BusSCSI:
		p.out.Address = driveAddress(p.out.Target.Dev)
	case xmlspec.BusVirtio:
		p.virtio()
	}
	return nil
}

// virtio sets the options of virtio disks.
func (p *diskPass) virtio() {
	p.out.Model = p.virtioModel()
	if specIsTrue(p.VMI.Spec.Domain.Devices.BlockMultiQueue) {
		p.out.Driver.Queues = new(uint(xmlspec.TopologyOf(&p.VMI.Spec.Domain).Count()))
	}
	if p.encrypted() {
		p.out.Driver.IOMMU = onOff(true)
	}
}

// device sets the kind of the disk: disk, cdrom or lun. Defaults to disk.
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
		p.out.Device, bus, p.ro = deviceCDROM, d.Bus, !specIsFalse(d.ReadOnly)
		kinds++
		if err := p.tray(d.Tray); err != nil {
			return err
		}
	}
	if kinds > 1 {
		return p.Invalid(p.field, "Forbidden: disk, lun and cdrom are mutually exclusive", "set one of them")
	}
	if err := p.chooseBus(string(bus)); err != nil || pci == "" {
		return err
	}
	if p.bus != xmlspec.BusVirtio {
		return p.Invalid(p.field+".disk.pciAddress", "Forbidden: only virtio disks have a PCI address", "set bus to virtio, or remove the address")
	}
	a, err := p.pciAddress(p.field+".disk.pciAddress", pci)
	p.out.Address = a
	return err
}

// tray sets the state of the tray. Defaults to closed.
func (p *diskPass) tray(state v1.TrayState) error {
	p.out.Target.Tray = cmp.Or(string(state), string(v1.TrayStateClosed))
	if state == "" || state == v1.TrayStateClosed || state == v1.TrayStateOpen {
		return nil
	}
	return p.Invalid(p.field+".cdrom.tray", fmt.Sprintf("Unsupported value: %q", state), "use open or closed")
}

// chooseBus uses the bus of the spec, else that of the architecture. A LUN requires SCSI, and
// metrics of the host a virtio disk.
func (p *diskPass) chooseBus(bus string) error {
	field := fmt.Sprintf("%s.%s.bus", p.field, p.out.Device)
	metrics := p.vol != nil && p.vol.DownwardMetrics != nil
	if metrics && bus == "" {
		bus = xmlspec.BusVirtio
	}
	lun := p.out.Device == deviceLUN
	if lun && bus == "" {
		bus = xmlspec.BusSCSI
	}
	p.bus = cmp.Or(bus, p.arch.diskBus)
	switch {
	case !slices.Contains([]string{xmlspec.BusVirtio, xmlspec.BusSATA, xmlspec.BusSCSI, xmlspec.BusUSB}, p.bus):
		return p.Invalid(field, fmt.Sprintf("Unsupported value: %q", p.bus), "use virtio, sata, scsi or usb")
	case metrics && p.bus != xmlspec.BusVirtio:
		return p.Invalid(field, "Invalid value: downwardMetrics requires bus virtio", "set bus to virtio, or remove it")
	case lun && p.bus != xmlspec.BusSCSI && p.bus != xmlspec.BusVirtio:
		return p.Invalid(field, fmt.Sprintf("Invalid value: bus %s does not support the SCSI commands of a LUN", p.bus), "set bus to scsi")
	}
	return nil
}

// serialForm matches serial numbers that libvirt accepts.
var serialForm = regexp.MustCompile(`^[A-Za-z0-9_.+-]{1,256}$`)

// common sets the options of all kinds of disks.
func (p *diskPass) common() error {
	switch {
	case p.in.Serial != "" && p.out.Device == deviceLUN:
		return p.Invalid(p.field+".serial", "Forbidden: a LUN has the serial number of its device", "remove it")
	case p.in.Serial != "" && !serialForm.MatchString(p.in.Serial):
		return p.Invalid(p.field+".serial", fmt.Sprintf("Invalid value: %q", p.in.Serial), "use 1 to 256 letters, digits, _ . + and -")
	}
	p.out.Serial = p.in.Serial
	if specIsTrue(p.in.Shareable) {
		p.out.Shareable = &libvirtxml.DomainDiskShareable{}
	}
	if o := p.in.BootOrder; o != nil {
		if *o == 0 {
			return p.Invalid(p.field+".bootOrder", "Invalid value: 0", "count from 1")
		}
		p.out.Boot = &libvirtxml.DomainDeviceBoot{Order: *o}
	}
	return nil
}
