// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"encoding/xml"
	"fmt"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// DeviceAlias returns the alias of a device, by which it is known; for those who
// write a driver. A device without one is [ErrInvalid].
func DeviceAlias(d Device) (string, error) {
	s, err := d.Marshal()
	if err != nil {
		return "", fmt.Errorf("device: %w", err)
	}
	var x struct {
		Alias struct {
			Name string `xml:"name,attr"`
		} `xml:"alias"`
	}
	if err := xml.Unmarshal([]byte(s), &x); err != nil {
		return "", fmt.Errorf("device: %w", err)
	}
	if !strings.HasPrefix(x.Alias.Name, AliasPrefix) {
		return "", fmt.Errorf("device: alias %q does not begin with %s: %w", x.Alias.Name, AliasPrefix, ErrInvalid)
	}
	return x.Alias.Name, nil
}

// HasDevice tells whether a domain has a device with that alias; for those who
// write a driver.
func HasDevice(d *libvirtxml.Domain, name string) bool {
	if d == nil || d.Devices == nil {
		return false
	}
	for _, a := range aliases(d.Devices) {
		if a != nil && a.Name == name {
			return true
		}
	}
	return false
}

// aliases lists the aliases of the devices that can come and go.
func aliases(l *libvirtxml.DomainDeviceList) []*libvirtxml.DomainAlias {
	var out []*libvirtxml.DomainAlias
	for i := range l.Disks {
		out = append(out, l.Disks[i].Alias)
	}
	for i := range l.Interfaces {
		out = append(out, l.Interfaces[i].Alias)
	}
	for i := range l.Hostdevs {
		out = append(out, l.Hostdevs[i].Alias)
	}
	for i := range l.Memorydevs {
		out = append(out, l.Memorydevs[i].Alias)
	}
	for i := range l.Inputs {
		out = append(out, l.Inputs[i].Alias)
	}
	for i := range l.Watchdogs {
		out = append(out, l.Watchdogs[i].Alias)
	}
	for i := range l.Serials {
		out = append(out, l.Serials[i].Alias)
	}
	return out
}
