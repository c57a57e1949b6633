// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"fmt"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// deviceChange attaches, detaches or updates one device.
type deviceChange struct {
	verb  domain.Verb
	key   deviceKey
	xml   string
	asked *unplugs
}

func newDeviceChange(op domain.Operation, asked *unplugs) (deviceChange, error) {
	alias, err := domain.DeviceAlias(op.Device)
	if err != nil {
		return deviceChange{}, fmt.Errorf("%s: %w", op, err)
	}
	xml, err := op.Device.Marshal()
	if err != nil {
		return deviceChange{}, fmt.Errorf("%s: %w", op, err)
	}
	return deviceChange{verb: op.Verb, key: deviceKey{op.Domain, alias}, xml: xml, asked: asked}, nil
}

// apply changes the running domain first and its definition afterwards, each only
// if it has to be: a change that was interrupted between the two is completed.
func (d deviceChange) apply(dom *virt.Domain) error {
	i, err := impact(dom)
	if err != nil {
		return err
	}
	for _, part := range []struct {
		impact virt.DomainModificationImpact
		flags  virt.DomainDeviceModifyFlags
		xml    virt.DomainXMLFlags
	}{
		{virt.DOMAIN_AFFECT_LIVE, virt.DOMAIN_DEVICE_MODIFY_LIVE, 0},
		{virt.DOMAIN_AFFECT_CONFIG, virt.DOMAIN_DEVICE_MODIFY_CONFIG, virt.DOMAIN_XML_INACTIVE},
	} {
		if i&part.impact == 0 {
			continue
		}
		has, err := hasDevice(dom, d.key.alias, part.xml)
		if err != nil {
			return err
		}
		if err := d.change(dom, has, part.flags); err != nil {
			return err
		}
	}
	return nil
}

func (d deviceChange) change(dom *virt.Domain, has bool, flags virt.DomainDeviceModifyFlags) error {
	switch d.verb {
	case domain.AttachDevice:
		if has {
			return nil
		}
		return dom.AttachDeviceFlags(d.xml, flags)
	case domain.DetachDevice:
		if !has {
			return nil
		}
		return d.detach(dom, flags)
	}
	if !has {
		return virt.Error{Code: virt.ERR_DEVICE_MISSING, Message: "no device " + d.key.alias}
	}
	return dom.UpdateDeviceFlags(d.xml, flags)
}

// detach asks the guest to release the device, unless it has just been asked, and
// takes it out of the definition.
func (d deviceChange) detach(dom *virt.Domain, flags virt.DomainDeviceModifyFlags) error {
	live := flags&virt.DOMAIN_DEVICE_MODIFY_LIVE != 0
	if live && !d.asked.begin(d.key) {
		return nil
	}
	err := dom.DetachDeviceAlias(d.key.alias, flags)
	if err != nil && live {
		d.asked.end(d.key)
	}
	if code(err, virt.ERR_DEVICE_MISSING) {
		return nil
	}
	return err
}

func hasDevice(dom *virt.Domain, alias string, flags virt.DomainXMLFlags) (bool, error) {
	xml, err := dom.GetXMLDesc(flags)
	if err != nil {
		return false, err
	}
	var d libvirtxml.Domain
	if err := d.Unmarshal(xml); err != nil {
		return false, fmt.Errorf("parse domain: %w", err)
	}
	return domain.HasDevice(&d, alias), nil
}
