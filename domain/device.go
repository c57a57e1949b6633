// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// AliasPrefix begins the aliases of devices that come from the spec, not from libvirt: the disk "root" has the alias
// ua-root.
const AliasPrefix = xmlspec.AliasPrefix

// DeviceAlias returns the alias that identifies a device, with [AliasPrefix]; it is for
// authors of drivers. A device without one is [ErrInvalid].
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

// HasDevice reports whether the domain has a device with that alias; it is for authors of
// drivers.
func (s State) HasDevice(alias string) bool {
	if s.Domain == nil || s.Domain.Devices == nil {
		return false
	}
	for _, a := range xmlspec.Aliases(s.Domain.Devices) {
		if a != nil && a.Name == alias {
			return true
		}
	}
	return false
}

// DeviceAlias returns the alias of the device that the operation is about; empty if it is
// about none, or about one without an alias.
func (o Operation) DeviceAlias() string {
	switch {
	case o.Verb == ResizeDisk:
		return o.Disk
	case o.Device == nil:
		return ""
	}
	name, err := DeviceAlias(o.Device)
	if err != nil {
		return ""
	}
	return name
}
