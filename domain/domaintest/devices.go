// SPDX-License-Identifier: Apache-2.0

package domaintest

import (
	"fmt"
	"slices"

	"github.com/virtloom/virtloom/domain"
	"libvirt.org/go/libvirtxml"
)

// lockedDevice attaches, detaches or updates a disk or a network card.
func (h *Hypervisor) lockedDevice(g *guest, op domain.Operation) error {
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
		changed, err = change(&l.Disks, *d, op.Verb, func(x libvirtxml.DomainDisk) bool { return x.Alias != nil && x.Alias.Name == alias })
	case *libvirtxml.DomainInterface:
		changed, err = change(&l.Interfaces, *d, op.Verb, func(x libvirtxml.DomainInterface) bool { return x.Alias != nil && x.Alias.Name == alias })
	default:
		return fmt.Errorf("device %T: %w", op.Device, domain.ErrUnsupported)
	}
	if changed {
		h.lockedTell(g.state.Name, string(op.Verb))
	}
	return err
}

// change edits one list of devices and tells whether it did.
func change[D any](list *[]D, dev D, verb domain.Verb, same func(D) bool) (bool, error) {
	i := slices.IndexFunc(*list, same)
	switch verb {
	case domain.AttachDevice:
		if i >= 0 {
			return false, nil
		}
		*list = append(*list, dev)
	case domain.DetachDevice:
		if i < 0 {
			return false, nil
		}
		*list = slices.Delete(*list, i, i+1)
	default:
		if i < 0 {
			return false, domain.ErrNotFound
		}
		(*list)[i] = dev
	}
	return true, nil
}
