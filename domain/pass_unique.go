// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// unique refuses devices that share a name or a place in the boot order: libvirt
// would refuse the whole domain without saying which field is to blame.
func unique(c *Conversion) error {
	names := map[string]bool{}
	all := aliases(c.Domain.Devices)
	for i := range c.Domain.Devices.Sounds {
		all = append(all, c.Domain.Devices.Sounds[i].Alias)
	}
	for _, a := range all {
		name := nameOf(a)
		if name != "" && names[name] {
			return c.Invalid(specDevices+"*.name", fmt.Sprintf("two devices have the name %q", name), "give every device a name of its own")
		}
		names[name] = true
	}
	return uniqueBootOrders(c)
}

func uniqueBootOrders(c *Conversion) error {
	d := c.Domain.Devices
	at := map[uint]string{}
	check := func(a *libvirtxml.DomainAlias, b *libvirtxml.DomainDeviceBoot) error {
		if b == nil {
			return nil
		}
		name := strings.TrimPrefix(nameOf(a), prefixSRIOV)
		if other, taken := at[b.Order]; taken {
			return c.Invalid(specDevices+"*.bootOrder", fmt.Sprintf("%q and %q are both at position %d", other, name, b.Order), "give each a position of its own")
		}
		at[b.Order] = name
		return nil
	}
	for i := range d.Disks {
		if err := check(d.Disks[i].Alias, d.Disks[i].Boot); err != nil {
			return err
		}
	}
	for i := range d.Interfaces {
		if err := check(d.Interfaces[i].Alias, d.Interfaces[i].Boot); err != nil {
			return err
		}
	}
	for i := range d.Hostdevs {
		if err := check(d.Hostdevs[i].Alias, d.Hostdevs[i].Boot); err != nil {
			return err
		}
	}
	return nil
}
