// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"fmt"

	virt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// setVCPUs brings the running domain and its definition to n CPUs, each only if it
// has another number.
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
			return invalid("the domain has room for %d CPUs, not for %d", room, n)
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

// resizeDisk lets a disk of a running domain grow.
func resizeDisk(dom *virt.Domain, alias string, bytes uint64) error {
	active, err := dom.IsActive()
	if err != nil {
		return err
	}
	if !active {
		return invalidState("the domain does not run")
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
			return invalid("disk %s lies on no raw block device, whose size could be taken over", alias)
		}
		bytes = info.Physical
	}
	switch {
	case bytes == info.Capacity:
		return nil
	case bytes < info.Capacity:
		return invalid("disk %s has %d bytes already and does not shrink to %d", alias, info.Capacity, bytes)
	}
	return dom.BlockResize(disk.Target.Dev, bytes, virt.DOMAIN_BLOCK_RESIZE_BYTES)
}

// onBlockDevice tells whether the guest sees a block device of the host as it is.
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

// parsed is the XML of a domain.
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
