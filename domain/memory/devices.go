// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"fmt"
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
)

// lockedDevice attaches, detaches or updates a disk, a network card, a host device or
// memory.
func (h *hardware) lockedDevice(g *guest, op domain.Operation) error {
	alias, err := domain.DeviceAlias(op.Device)
	if err != nil {
		return err
	}
	if g.def.Devices == nil {
		g.def.Devices = &libvirtxml.DomainDeviceList{}
	}
	l := g.def.Devices
	var changed bool
	switch d := op.Device.(type) {
	case *libvirtxml.DomainDisk:
		changed, err = change(&l.Disks, d, op.Verb, at(l.Disks, alias, func(d *libvirtxml.DomainDisk) *libvirtxml.DomainAlias { return d.Alias }))
	case *libvirtxml.DomainInterface:
		changed, err = change(&l.Interfaces, d, op.Verb, at(l.Interfaces, alias, func(d *libvirtxml.DomainInterface) *libvirtxml.DomainAlias { return d.Alias }))
	case *libvirtxml.DomainHostdev:
		changed, err = change(&l.Hostdevs, d, op.Verb, at(l.Hostdevs, alias, func(d *libvirtxml.DomainHostdev) *libvirtxml.DomainAlias { return d.Alias }))
	case *libvirtxml.DomainMemorydev:
		changed, err = change(&l.Memorydevs, d, op.Verb, at(l.Memorydevs, alias, func(d *libvirtxml.DomainMemorydev) *libvirtxml.DomainAlias { return d.Alias }))
	default:
		return fmt.Errorf("device %T: %w", op.Device, domain.ErrUnsupported)
	}
	if changed {
		h.lockedEmit(g.state.Name, string(op.Verb))
	}
	return err
}

// at finds the device with that alias; -1 if there is none.
func at[D any](list []D, alias string, aliasOf func(*D) *libvirtxml.DomainAlias) int {
	return slices.IndexFunc(list, func(d D) bool {
		a := aliasOf(&d)
		return a != nil && a.Name == alias
	})
}

// change edits one list of devices, where the device is at i, and reports whether it did. It keeps
// a copy of the device.
func change[D any, P interface {
	*D
	domain.Device
}](list *[]D, dev P, verb domain.Verb, i int) (bool, error) {
	xml, err := dev.Marshal()
	if err != nil {
		return false, fmt.Errorf("%w: %w", domain.ErrInvalid, err)
	}
	var mine D
	if err := P(&mine).Unmarshal(xml); err != nil {
		return false, fmt.Errorf("%w: %w", domain.ErrInvalid, err)
	}
	switch {
	case verb == domain.AttachDevice && i < 0:
		*list = append(*list, mine)
	case verb == domain.DetachDevice && i >= 0:
		*list = slices.Delete(*list, i, i+1)
	case verb == domain.UpdateDevice && i >= 0:
		(*list)[i] = mine
	case verb == domain.UpdateDevice:
		return false, domain.ErrNotFound
	default:
		return false, nil
	}
	return true, nil
}
