// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain/deviceplugin"
)

// usbForm matches the ports of USB devices, bus first, but neither root hubs nor interfaces.
var usbForm = regexp.MustCompile(`^[0-9]{1,5}-[0-9]{1,5}(\.[0-9]{1,5}){0,8}$`)

// usbID is vendor and product of a USB device.
type usbID struct{ vendor, product uint64 }

// usbDevice is a USB device of the node.
type usbDevice struct {
	usbID
	port        string
	bus, number uint64
}

// usb finds USB devices. Each device belongs to the first entry that it fits; an entry with several
// selectors stands for as many devices that are given together.
func (s *search) usb(entries []v1.USBHostDevice) {
	var there []usbDevice
	for i, e := range entries {
		if e.ExternalResourceProvider {
			continue
		}
		wanted, err := usbIDs(e.Selectors)
		if err = errors.Join(checkResource(e.ResourceName), err); err != nil {
			s.omit(fmt.Sprintf("spec.configuration.permittedHostDevices.usb[%d]", i), err)
			continue
		}
		if there == nil {
			there = s.pluggedIn()
		}
		for {
			together := take(&there, wanted)
			if together == nil {
				break
			}
			s.add(e.ResourceName, usbUnit(e.ResourceName, together))
		}
	}
}

// usbIDs parses selectors.
func usbIDs(selectors []v1.USBSelector) ([]usbID, error) {
	if len(selectors) == 0 {
		return nil, errors.New("selectors: Required value: set vendor and product of a device")
	}
	out := make([]usbID, len(selectors))
	for i, sel := range selectors {
		for _, part := range []struct {
			name, text string
			to         *uint64
		}{{"vendor", sel.Vendor, &out[i].vendor}, {"product", sel.Product, &out[i].product}} {
			n, err := strconv.ParseUint(part.text, 16, 16)
			if err != nil {
				return nil, fmt.Errorf("selectors[%d].%s: Invalid value: %.40q: use four hexadecimal digits", i, part.name, part.text)
			}
			*part.to = n
		}
	}
	return out, nil
}

// pluggedIn returns all USB devices of the node; not nil.
func (s *search) pluggedIn() []usbDevice {
	f := s.host.bus("usb")
	ports, err := f.names(usbForm)
	if err != nil {
		s.omit("usb devices", err)
	}
	out := make([]usbDevice, 0, len(ports))
	for _, port := range ports {
		d := usbDevice{port: port}
		for _, a := range []struct {
			name string
			base int
			to   *uint64
		}{{"idVendor", 16, &d.vendor}, {"idProduct", 16, &d.product}, {"busnum", 10, &d.bus}, {"devnum", 10, &d.number}} {
			if *a.to, err = f.number(port, a.name, a.base, 16); err != nil {
				break
			}
		}
		if err != nil {
			s.omit("usb device "+port, err)
			continue
		}
		out = append(out, d)
	}
	return out
}

// take removes one device for each wanted ID and returns them; nil if there are not all.
func take(from *[]usbDevice, wanted []usbID) []usbDevice {
	rest := slices.Clone(*from)
	var out []usbDevice
	for _, id := range wanted {
		i := slices.IndexFunc(rest, func(d usbDevice) bool { return d.usbID == id })
		if i < 0 {
			return nil
		}
		out = append(out, rest[i])
		rest = slices.Delete(rest, i, i+1)
	}
	*from = rest
	return out
}

// usbUnit returns devices that are given together.
func usbUnit(resource string, together []usbDevice) deviceplugin.Unit {
	u := deviceplugin.Unit{Variable: variable(v1.USBResourcePrefix, resource)}
	var ports []string
	for _, d := range together {
		ports = append(ports, d.port)
		u.Nodes = append(u.Nodes, fmt.Sprintf("/dev/bus/usb/%03d/%03d", d.bus, d.number))
		u.Values = append(u.Values, fmt.Sprintf("%d:%d", d.bus, d.number))
	}
	u.ID = strings.Join(ports, "+")
	return u
}
