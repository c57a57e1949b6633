// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// unique rejects devices with the same name or boot order: libvirt would reject the whole domain
// without naming the field.
func unique(c *Conversion) error {
	names := map[string]bool{}
	all := xmlspec.Aliases(c.Domain.Devices)
	for i := range c.Domain.Devices.Sounds {
		all = append(all, c.Domain.Devices.Sounds[i].Alias)
	}
	for _, a := range all {
		name := xmlspec.NameOf(a)
		if name != "" && names[name] {
			return c.Invalid(specDevices+"*.name", fmt.Sprintf("Duplicate value: %q", name), "use a unique name for each device")
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
		name := strings.TrimPrefix(xmlspec.NameOf(a), xmlspec.PrefixSRIOV)
		if other, taken := at[b.Order]; taken {
			return c.Invalid(specDevices+"*.bootOrder", fmt.Sprintf("Duplicate value: %d for %q and %q", b.Order, other, name), "use a unique boot order for each")
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
