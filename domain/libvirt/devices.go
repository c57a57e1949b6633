// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libvirt

import (
	"errors"
	"fmt"

	"github.com/virtloom/virtloom/domain"
	virt "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// deviceChange attaches, detaches or updates one device.
type deviceChange struct {
	verb   domain.Verb
	key    deviceKey
	device domain.Device
	xml    string
	asked  *unplugs
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
	return deviceChange{verb: op.Verb, key: deviceKey{op.Domain, alias}, device: op.Device, xml: xml, asked: asked}, nil
}

// part is a live domain or a definition, which are changed one after the other.
type part struct {
	impact virt.DomainModificationImpact
	flags  virt.DomainDeviceModifyFlags
	xml    virt.DomainXMLFlags
}

var (
	livePart       = part{virt.DOMAIN_AFFECT_LIVE, virt.DOMAIN_DEVICE_MODIFY_LIVE, 0}
	definitionPart = part{virt.DOMAIN_AFFECT_CONFIG, virt.DOMAIN_DEVICE_MODIFY_CONFIG, virt.DOMAIN_XML_INACTIVE}
)

// apply changes the live domain first and its definition afterwards, each only if necessary: a
// change that was interrupted between the two is completed. A hotplugged device that does not fit
// into the definition is unplugged again, so that the guest does not silently lose it at its next
// start.
func (d deviceChange) apply(dom *virt.Domain) error {
	i, err := impact(dom)
	if err != nil {
		return err
	}
	plugged := false
	for _, p := range []part{livePart, definitionPart} {
		if i&p.impact == 0 {
			continue
		}
		has, err := hasDevice(dom, d.key.alias, p.xml)
		if err == nil {
			err = d.change(dom, has, p)
		}
		if err != nil && plugged {
			return d.rollBack(dom, err)
		}
		if err != nil {
			return err
		}
		plugged = d.verb == domain.AttachDevice && !has && p == livePart
	}
	return nil
}

// rollBack unplugs a device after attaching it to the definition failed with cause.
func (d deviceChange) rollBack(dom *virt.Domain, cause error) error {
	cause = translate("attach to the definition", d.key.domain, cause)
	err := translate("detach it from the running domain", d.key.domain, d.detach(dom, livePart))
	return errors.Join(cause, err)
}

func (d deviceChange) change(dom *virt.Domain, has bool, p part) error {
	switch d.verb {
	case domain.AttachDevice:
		if has {
			return nil
		}
		return dom.AttachDeviceFlags(d.xml, p.flags)
	case domain.DetachDevice:
		if !has {
			return nil
		}
		return d.detach(dom, p)
	}
	if !has {
		return virt.Error{Code: virt.ERR_DEVICE_MISSING, Message: "no device " + d.key.alias}
	}
	xml, err := d.placed(dom, p)
	if err != nil {
		return err
	}
	err = dom.UpdateDeviceFlags(xml, p.flags)
	if p == definitionPart && code(err, virt.ERR_OPERATION_UNSUPPORTED) {
		return d.replace(dom)
	}
	return err
}

// placed returns the XML of the device for an update. libvirt finds memory by its address and not
// by its alias.
func (d deviceChange) placed(dom *virt.Domain, p part) (string, error) {
	memory, ok := d.device.(*libvirtxml.DomainMemorydev)
	if !ok || memory.Address != nil {
		return d.xml, nil
	}
	x, err := parsed(dom, p.xml)
	if err != nil {
		return "", err
	}
	at := *memory
	for i := range x.Devices.Memorydevs {
		if m := &x.Devices.Memorydevs[i]; m.Alias != nil && m.Alias.Name == d.key.alias {
			at.Address = m.Address
		}
	}
	return at.Marshal()
}

// replace changes a device in the definition where libvirt can change it only in the live domain,
// such as memory.
func (d deviceChange) replace(dom *virt.Domain) error {
	if err := dom.DetachDeviceAlias(d.key.alias, definitionPart.flags); err != nil {
		return err
	}
	return dom.AttachDeviceFlags(d.xml, definitionPart.flags)
}

// detach requests that the guest release the device, unless a request is pending, and removes it
// from the definition.
func (d deviceChange) detach(dom *virt.Domain, p part) error {
	live := p == livePart
	if live && !d.asked.begin(d.key) {
		return nil
	}
	err := dom.DetachDeviceAlias(d.key.alias, p.flags)
	if err != nil && live {
		d.asked.end(d.key)
	}
	if err == nil {
		return nil
	}
	// It may be gone meanwhile, which libvirt reports in more than one way.
	if has, hasErr := hasDevice(dom, d.key.alias, p.xml); hasErr == nil && !has {
		return nil
	}
	return err
}

func hasDevice(dom *virt.Domain, alias string, flags virt.DomainXMLFlags) (bool, error) {
	d, err := parsed(dom, flags)
	return domain.State{Domain: d}.HasDevice(alias), err
}
