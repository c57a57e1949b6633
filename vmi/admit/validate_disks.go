// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation/field"
	v1 "kubevirt.io/api/core/v1"
)

var diskRules = []rule{
	{"disk-names", checkDiskNames},
	{"disk-volumes", checkDiskVolumes},
	{"disk-kinds", checkDiskKinds},
	{"disk-buses", checkDiskBuses},
	{"disk-addresses", checkDiskAddresses},
	{"disk-serials", checkDiskSerials},
	{"disk-drivers", checkDiskDrivers},
	{"block-sizes", checkBlockSizes},
	{"boot-orders", checkBootOrders},
}

// diskName matches valid disk names, which become device aliases.
var diskName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)

func checkDiskNames(k *checker) {
	taken := names{}
	for i := range k.devices.Disks {
		at, name := atDisks.Index(i).Child("name"), k.devices.Disks[i].Name
		if !diskName.MatchString(name) {
			k.invalid(at, name, "must be a valid device name", "use 1 to 63 letters, digits, - and _")
		}
		taken.take(k, at, name)
	}
}

// checkDiskVolumes accepts a CD-ROM drive without a volume: its medium can be hotplugged.
func checkDiskVolumes(k *checker) {
	volumes := map[string]*v1.Volume{}
	for i := range k.spec.Volumes {
		volumes[k.spec.Volumes[i].Name] = &k.spec.Volumes[i]
	}
	for i := range k.devices.Disks {
		disk, at := &k.devices.Disks[i], atDisks.Index(i).Child("name")
		switch v := volumes[disk.Name]; {
		case v == nil && disk.CDRom == nil:
			k.invalid(at, disk.Name, "volume is not defined", "add it to spec.volumes, or remove the disk")
		case v == nil:
		case v.MemoryDump != nil:
			k.invalid(at, disk.Name, "a memory dump cannot be a disk", "remove the disk")
		case v.ContainerPath != nil:
			k.invalid(at, disk.Name, "a folder cannot be a disk", "add it to "+atDevices.Child("filesystems").String())
		}
	}
}

func checkDiskKinds(k *checker) {
	for i := range k.devices.Disks {
		d, at := &k.devices.Disks[i], atDisks.Index(i)
		kinds := chosen(alternative{"disk", d.Disk != nil}, alternative{"lun", d.LUN != nil}, alternative{"cdrom", d.CDRom != nil})
		if len(kinds) > 0 { // a disk without a kind is a plain disk
			k.only(at, kinds, "disk, lun or cdrom")
		}
		if d.CDRom != nil {
			oneOf(k, at.Child("cdrom", "tray"), d.CDRom.Tray, v1.TrayStateOpen, v1.TrayStateClosed)
		}
	}
}

func checkDiskBuses(k *checker) {
	metrics := metricsVolumes(k.spec)
	for i := range k.devices.Disks {
		d, at := &k.devices.Disks[i], atDisks.Index(i)
		if d.Disk != nil {
			oneOf(k, at.Child("disk", "bus"), d.Disk.Bus, v1.DiskBusVirtio, v1.DiskBusSATA, v1.DiskBusSCSI, v1.DiskBusUSB)
			if b := d.Disk.Bus; metrics[d.Name] && b != "" && b != v1.DiskBusVirtio {
				k.invalid(at.Child("disk", "bus"), b, "is not supported for downward metrics", "use virtio, or remove it")
			}
		}
		if d.LUN != nil {
			oneOf(k, at.Child("lun", "bus"), d.LUN.Bus, v1.DiskBusSCSI, v1.DiskBusVirtio)
		}
		if d.CDRom != nil {
			oneOf(k, at.Child("cdrom", "bus"), d.CDRom.Bus, v1.DiskBusSATA, v1.DiskBusSCSI, v1.DiskBusUSB)
		}
		if bus := busOf(d, k.arch, metrics[d.Name]); bus == v1.DiskBusUSB && traitsOf(k.arch).noUSB {
			k.invalid(at, bus, "USB is not supported on "+k.arch, "use virtio")
		}
	}
}

var pciForm = regexp.MustCompile(`^[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-1][0-9A-Fa-f]\.[0-7]$`)

const pciRemedy = "use the form 0000:81:01.0"

func checkDiskAddresses(k *checker) {
	metrics := metricsVolumes(k.spec)
	for i := range k.devices.Disks {
		d, at := &k.devices.Disks[i], atDisks.Index(i).Child("disk", "pciAddress")
		if d.Disk == nil || d.Disk.PciAddress == "" {
			continue
		}
		if !pciForm.MatchString(d.Disk.PciAddress) {
			k.invalid(at, d.Disk.PciAddress, "must be a PCI address", pciRemedy)
		}
		if busOf(d, k.arch, metrics[d.Name]) != v1.DiskBusVirtio {
			k.invalid(at, d.Disk.PciAddress, "is supported for virtio disks only", "set bus to virtio, or remove it")
		}
	}
}

func checkDiskSerials(k *checker) {
	for i := range k.devices.Disks {
		d, at := &k.devices.Disks[i], atDisks.Index(i).Child("serial")
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
		d, at := &k.devices.Disks[i], atDisks.Index(i)
		oneOf(k, at.Child("cache"), d.Cache, v1.CacheNone, v1.CacheWriteThrough, v1.CacheWriteBack)
		oneOf(k, at.Child("io"), d.IO, v1.IONative, v1.IOThreads, "io_uring", "default")
		if d.ErrorPolicy != nil {
			oneOf(k, at.Child("errorPolicy"), *d.ErrorPolicy, v1.DiskErrorPolicyStop, v1.DiskErrorPolicyIgnore, v1.DiskErrorPolicyReport, v1.DiskErrorPolicyEnospace)
		}
		if isTrue(d.Shareable) && d.Cache != "" && d.Cache != v1.CacheNone {
			k.invalid(at.Child("cache"), d.Cache, "is not supported for a shareable disk", "use none, or remove it")
		}
		if d.IO == v1.IONative && d.Cache != "" && d.Cache != v1.CacheNone {
			k.invalid(at.Child("io"), d.IO, "requires cache none", "remove it, or use threads")
		}
	}
}

const minSector = 512

func checkBlockSizes(k *checker) {
	limit := uint(2 << 20)
	if k.arch == s390x {
		limit = 4096
	}
	for i := range k.devices.Disks {
		b, at := k.devices.Disks[i].BlockSize, atDisks.Index(i).Child("blockSize")
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
		k.blockSize(at.Child("custom"), b.Custom, limit)
	}
}

func (k *checker) blockSize(at *field.Path, b *v1.CustomBlockSize, limit uint) {
	for _, part := range []struct {
		field string
		size  uint
	}{{"logical", b.Logical}, {"physical", b.Physical}} {
		if n := part.size; n < minSector || n&(n-1) != 0 || n > limit {
			k.invalid(at.Child(part.field), n, "block size is not supported on "+k.arch, fmt.Sprintf("use a power of two from %d to %d", minSector, limit))
		}
	}
	if b.Physical < b.Logical {
		k.invalid(at.Child("physical"), b.Physical, fmt.Sprintf("must not be below the logical size of %d", b.Logical), "increase it")
	}
	if g := b.DiscardGranularity; g != nil && b.Logical > 0 && *g%b.Logical != 0 {
		k.invalid(at.Child("discardGranularity"), *g, fmt.Sprintf("must be a multiple of the logical size of %d", b.Logical), "change it to a multiple")
	}
}

// checkBootOrders checks disks and interfaces together, since the firmware has one boot order.
func checkBootOrders(k *checker) {
	taken := map[uint]*field.Path{}
	position := func(at *field.Path, order *uint) {
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
		position(atDisks.Index(i).Child("bootOrder"), k.devices.Disks[i].BootOrder)
	}
	for i := range k.devices.Interfaces {
		position(atInterfaces.Index(i).Child("bootOrder"), k.devices.Interfaces[i].BootOrder)
	}
}
