// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"regexp"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

var diskRules = []Rule{
	{"disk-names", checkDiskNames, true},
	{"disk-names", checkDiskAliases, false},
	{"disk-volumes", checkDiskVolumes, true},
	{"disk-volumes", checkDisklessVolumes, false},
	{"disk-kinds", checkDiskKinds, true},
	{"disk-kinds", checkTrays, false},
	{"disk-buses", checkDiskBuses, true},
	{"disk-buses", checkFittingBuses, false},
	{"disk-addresses", checkDiskAddresses, false},
	{"disk-serials", checkDiskSerials, false},
	{"disk-drivers", checkDiskDrivers, false},
	{"block-sizes", checkBlockSizes, false},
	{"boot-orders", checkBootOrders, false},
}

func checkDiskNames(k *checker) {
	taken := names{}
	for i := range k.devices.Disks {
		taken.take(k, atDisks.index(i).child("name"), k.devices.Disks[i].Name)
	}
}

// diskName matches valid disk names, which become device aliases.
var diskName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)

func checkDiskAliases(k *checker) {
	for i := range k.devices.Disks {
		if name := k.devices.Disks[i].Name; !diskName.MatchString(name) {
			k.invalid(atDisks.index(i).child("name"), name, "must be a valid device name", "use 1 to 63 letters, digits, - and _")
		}
	}
}

// checkDiskVolumes accepts a CD-ROM drive without a volume: its medium can be hotplugged.
func checkDiskVolumes(k *checker) {
	if len(k.devices.Disks) == 0 {
		return
	}
	volumes := specVolumesByName(k.spec)
	for i := range k.devices.Disks {
		if disk := &k.devices.Disks[i]; volumes[disk.Name] == nil && disk.CDRom == nil {
			k.invalid(atDisks.index(i).child("name"), disk.Name, "volume is not defined", "add it to spec.volumes, or remove the disk")
		}
	}
}

func specVolumesByName(spec *v1.VirtualMachineInstanceSpec) map[string]*v1.Volume {
	volumes := map[string]*v1.Volume{}
	for i := range spec.Volumes {
		volumes[spec.Volumes[i].Name] = &spec.Volumes[i]
	}
	return volumes
}

// checkDisklessVolumes rejects disks of volumes that the domain cannot read as a disk.
func checkDisklessVolumes(k *checker) {
	volumes := specVolumesByName(k.spec)
	for i := range k.devices.Disks {
		disk, at := &k.devices.Disks[i], atDisks.index(i).child("name")
		switch v := volumes[disk.Name]; {
		case v == nil:
		case v.MemoryDump != nil:
			k.invalid(at, disk.Name, "a memory dump cannot be a disk", "remove the disk")
		case v.ContainerPath != nil:
			k.invalid(at, disk.Name, "a folder cannot be a disk", "add it to "+atDevices.child("filesystems").String())
		}
	}
}

func checkDiskKinds(k *checker) {
	for i := range k.devices.Disks {
		d, at := &k.devices.Disks[i], atDisks.index(i)
		kinds := chosen(alternative{"disk", d.Disk != nil}, alternative{"lun", d.LUN != nil}, alternative{"cdrom", d.CDRom != nil})
		if len(kinds) > 0 { // a disk without a kind is a plain disk
			k.only(at, kinds, "disk, lun or cdrom")
		}
	}
}

func checkTrays(k *checker) {
	for i := range k.devices.Disks {
		if d := &k.devices.Disks[i]; d.CDRom != nil {
			oneOf(k, atDisks.index(i).child("cdrom.tray"), d.CDRom.Tray, v1.TrayStateOpen, v1.TrayStateClosed)
		}
	}
}

// checkDiskBuses accepts the buses of a disk for existing LUNs, which need no other Pod.
func checkDiskBuses(k *checker) {
	for i := range k.devices.Disks {
		d, at := &k.devices.Disks[i], atDisks.index(i)
		if d.Disk != nil {
			oneOf(k, at.child("disk.bus"), d.Disk.Bus, v1.DiskBusVirtio, v1.DiskBusSATA, v1.DiskBusSCSI, v1.DiskBusUSB)
		}
		if d.LUN != nil && !(k.existing && (d.LUN.Bus == v1.DiskBusSATA || d.LUN.Bus == v1.DiskBusUSB)) {
			oneOf(k, at.child("lun.bus"), d.LUN.Bus, v1.DiskBusSCSI, v1.DiskBusVirtio)
		}
		if d.CDRom != nil {
			oneOf(k, at.child("cdrom.bus"), d.CDRom.Bus, v1.DiskBusSATA, v1.DiskBusSCSI, v1.DiskBusUSB)
		}
	}
}

// checkFittingBuses rejects buses that the volume or the architecture does not support.
func checkFittingBuses(k *checker) {
	metrics := vmidefaults.MetricsVolumes(k.spec)
	for i := range k.devices.Disks {
		d, at := &k.devices.Disks[i], atDisks.index(i)
		if d.Disk != nil && metrics[d.Name] && d.Disk.Bus != "" && d.Disk.Bus != v1.DiskBusVirtio {
			k.invalid(at.child("disk.bus"), d.Disk.Bus, "is not supported for downward metrics", "use virtio, or remove it")
		}
		if bus := vmidefaults.BusOf(d, k.arch, metrics[d.Name]); bus == v1.DiskBusUSB && vmidefaults.TraitsOf(k.arch).NoUSB {
			k.invalid(at, bus, "USB is not supported on "+k.arch, "use virtio")
		}
	}
}

var pciForm = regexp.MustCompile(`^[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-1][0-9A-Fa-f]\.[0-7]$`)

const pciRemedy = "use the form 0000:81:01.0"

func checkDiskAddresses(k *checker) {
	metrics := vmidefaults.MetricsVolumes(k.spec)
	for i := range k.devices.Disks {
		d, at := &k.devices.Disks[i], atDisks.index(i).child("disk.pciAddress")
		if d.Disk == nil || d.Disk.PciAddress == "" {
			continue
		}
		if !pciForm.MatchString(d.Disk.PciAddress) {
			k.invalid(at, d.Disk.PciAddress, "must be a PCI address", pciRemedy)
		}
		if vmidefaults.BusOf(d, k.arch, metrics[d.Name]) != v1.DiskBusVirtio {
			k.invalid(at, d.Disk.PciAddress, "is supported for virtio disks only", "set bus to virtio, or remove it")
		}
	}
}

func checkDiskSerials(k *checker) {
	for i := range k.devices.Disks {
		d, at := &k.devices.Disks[i], atDisks.index(i).child("serial")
		switch {
		case d.Serial == "":
		case d.LUN != nil:
			k.invalid(at, d.Serial, "is not supported for a LUN, whose device has its own", "remove it")
		case !serialForm.MatchString(d.Serial):
			k.invalid(at, d.Serial, "must be a valid serial number", serialRemedy)
		}
	}
}

func checkDiskDrivers(k *checker) {
	for i := range k.devices.Disks {
		d, at := &k.devices.Disks[i], atDisks.index(i)
		oneOf(k, at.child("cache"), d.Cache, v1.CacheNone, v1.CacheWriteThrough, v1.CacheWriteBack)
		oneOf(k, at.child("io"), d.IO, v1.IONative, v1.IOThreads, "io_uring", "default")
		if d.ErrorPolicy != nil {
			oneOf(k, at.child("errorPolicy"), *d.ErrorPolicy, v1.DiskErrorPolicyStop, v1.DiskErrorPolicyIgnore, v1.DiskErrorPolicyReport, v1.DiskErrorPolicyEnospace)
		}
		if isTrue(d.Shareable) && d.Cache != "" && d.Cache != v1.CacheNone {
			k.invalid(at.child("cache"), d.Cache, "is not supported for a shareable disk", "use none, or remove it")
		}
		if d.IO == v1.IONative && d.Cache != "" && d.Cache != v1.CacheNone {
			k.invalid(at.child("io"), d.IO, "requires cache none", "remove it, or use threads")
		}
	}
}

const minSector = 512

func checkBlockSizes(k *checker) {
	limit := uint(2 << 20)
	if k.arch == vmidefaults.S390X {
		limit = 4096
	}
	for i := range k.devices.Disks {
		b, at := k.devices.Disks[i].BlockSize, atDisks.index(i).child("blockSize")
		if b == nil {
			continue
		}
		match := b.MatchVolume != nil && !isFalse(b.MatchVolume.Enabled)
		if b.Custom == nil {
			continue
		}
		if match {
			k.invalid(at, "custom, matchVolume", "must specify one alternative, not 2", "keep one")
		}
		k.blockSize(at.child("custom"), b.Custom, limit)
	}
}

func (k *checker) blockSize(at *fieldPath, b *v1.CustomBlockSize, limit uint) {
	for _, part := range []struct {
		field string
		size  uint
	}{{"logical", b.Logical}, {"physical", b.Physical}} {
		if n := part.size; n < minSector || n&(n-1) != 0 || n > limit {
			k.invalid(at.child(part.field), n, "block size is not supported on "+k.arch, fmt.Sprintf("use a power of two from %d to %d", minSector, limit))
		}
	}
	if b.Physical < b.Logical {
		k.invalid(at.child("physical"), b.Physical, fmt.Sprintf("must not be below the logical size of %d", b.Logical), "increase it")
	}
	if g := b.DiscardGranularity; g != nil && b.Logical > 0 && *g%b.Logical != 0 {
		k.invalid(at.child("discardGranularity"), *g, fmt.Sprintf("must be a multiple of the logical size of %d", b.Logical), "change it to a multiple")
	}
}

// checkBootOrders checks disks and interfaces together, since the firmware has one boot order.
func checkBootOrders(k *checker) {
	taken := map[uint]*fieldPath{}
	position := func(at *fieldPath, order *uint) {
		if order == nil {
			return
		}
		if *order == 0 {
			k.invalid(at, *order, "must be positive", "start with 1")
		} else if first := taken[*order]; first != nil {
			k.invalid(at, *order, "duplicates "+first.String(), "use a unique boot order")
		}
		taken[*order] = at
	}
	for i := range k.devices.Disks {
		position(atDisks.index(i).child("bootOrder"), k.devices.Disks[i].BootOrder)
	}
	for i := range k.devices.Interfaces {
		position(atInterfaces.index(i).child("bootOrder"), k.devices.Interfaces[i].BootOrder)
	}
}
