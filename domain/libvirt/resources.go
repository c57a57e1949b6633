// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"fmt"

	virt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// setVCPUs sets the number of CPUs of the live domain and its definition, each only if it differs.
func setVCPUs(dom *virt.Domain, n uint) error {
	i, err := impact(dom)
	if err != nil {
		return err
	}
	var change virt.DomainVcpuFlags
	for _, p := range []struct {
		impact virt.DomainModificationImpact
		flag   virt.DomainVcpuFlags
	}{
		{virt.DOMAIN_AFFECT_LIVE, virt.DOMAIN_VCPU_LIVE},
		{virt.DOMAIN_AFFECT_CONFIG, virt.DOMAIN_VCPU_CONFIG},
	} {
		if i&p.impact == 0 {
			continue
		}
		room, err := dom.GetVcpusFlags(p.flag | virt.DOMAIN_VCPU_MAXIMUM)
		if err != nil {
			return err
		}
		if n > uint(room) {
			return invalid("the domain has a maximum of %d CPUs, not %d", room, n)
		}
		has, err := dom.GetVcpusFlags(p.flag)
		if err != nil {
			return err
		}
		if uint(has) != n {
			change |= p.flag
		}
	}
	if change == 0 {
		return nil
	}
	return dom.SetVcpusFlags(n, change)
}

// resizeDisk grows a disk of a live domain.
func resizeDisk(dom *virt.Domain, alias string, bytes uint64) error {
	active, err := dom.IsActive()
	if err != nil {
		return err
	}
	if !active {
		return invalidState("the domain is not running")
	}
	disk, err := findDisk(dom, alias)
	if err != nil {
		return err
	}
	info, err := dom.GetBlockInfo(disk.Target.Dev, 0)
	if err != nil {
		return err
	}
	if bytes == 0 {
		if !onBlockDevice(disk) {
			return invalid("disk %s is not a raw block device, whose size the domain could adopt", alias)
		}
		bytes = info.Physical
	}
	switch {
	case bytes == info.Capacity:
		return nil
	case bytes < info.Capacity:
		return invalid("disk %s has %d bytes and cannot shrink to %d", alias, info.Capacity, bytes)
	}
	return dom.BlockResize(disk.Target.Dev, bytes, virt.DOMAIN_BLOCK_RESIZE_BYTES)
}

// onBlockDevice reports whether the guest sees an unchanged block device of the host.
func onBlockDevice(disk *libvirtxml.DomainDisk) bool {
	raw := disk.Driver == nil || disk.Driver.Type == "" || disk.Driver.Type == "raw"
	return raw && disk.Source != nil && disk.Source.Block != nil
}

// invalid is the error of a request that cannot be fulfilled.
func invalid(format string, args ...any) error {
	return virt.Error{Code: virt.ERR_INVALID_ARG, Message: fmt.Sprintf(format, args...)}
}

// findDisk returns the disk with that alias.
func findDisk(dom *virt.Domain, alias string) (*libvirtxml.DomainDisk, error) {
	d, err := parsed(dom, 0)
	if err != nil {
		return nil, err
	}
	if d.Devices != nil {
		for i := range d.Devices.Disks {
			if disk := &d.Devices.Disks[i]; disk.Alias != nil && disk.Alias.Name == alias && disk.Target != nil {
				return disk, nil
			}
		}
	}
	return nil, virt.Error{Code: virt.ERR_DEVICE_MISSING, Message: "no disk " + alias}
}

// parsed returns the parsed XML of a domain.
func parsed(dom *virt.Domain, flags virt.DomainXMLFlags) (*libvirtxml.Domain, error) {
	xml, err := dom.GetXMLDesc(flags)
	if err != nil {
		return nil, err
	}
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(xml); err != nil {
		return nil, fmt.Errorf("parse domain: %w", err)
	}
	return d, countHeld(d, xml)
}
