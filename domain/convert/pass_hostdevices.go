// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// hostDevices adds virtual functions, host devices and GPUs. Devices of a host do not migrate: the
// domain of a migration target has none of them, except a GPU that supports migration.
func hostDevices(c *Conversion) error {
	p := devicePass{Conversion: c, taken: map[string]int{}}
	steps := []func() error{p.virtualFunctions, p.devices, p.gpus, p.leftOver}
	if c.Facts.Incoming {
		steps = []func() error{p.migratedGPU}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// devicePass converts host devices and counts which ones are used.
type devicePass struct {
	*Conversion
	taken map[string]int // used devices by resource
}

func (p *devicePass) add(d *libvirtxml.DomainHostdev) {
	p.Domain.Devices.Hostdevs = append(p.Domain.Devices.Hostdevs, *d)
}

// virtualFunctions adds the SR-IOV interfaces.
func (p *devicePass) virtualFunctions() error {
	for i := range p.VMI.Spec.Domain.Devices.Interfaces {
		in := &p.VMI.Spec.Domain.Devices.Interfaces[i]
		if in.SRIOV == nil || in.State == v1.InterfaceStateAbsent {
			continue
		}
		address := p.Facts.SRIOV[in.Name]
		if address == "" {
			return interfacePass{p.Conversion}.noNetwork(in.Name, "the node has allocated no virtual function for this network")
		}
		out, err := p.hostDevice(fmt.Sprintf("spec.networks[%s]", in.Name), HostDevice{PCI: address})
		if err != nil {
			return err
		}
		out.Alias = xmlspec.Alias(xmlspec.PrefixSRIOV + in.Name)
		if in.PciAddress != "" {
			if out.Address, err = p.pciAddress(interfaceField(i)+".pciAddress", in.PciAddress); err != nil {
				return err
			}
		}
		if in.BootOrder != nil {
			out.Boot = &libvirtxml.DomainDeviceBoot{Order: *in.BootOrder}
		}
		if in.ACPIIndex > 0 {
			out.ACPI = &libvirtxml.DomainDeviceACPI{Index: uint(in.ACPIIndex)}
		}
		p.add(out)
	}
	return nil
}

// devices adds spec.domain.devices.hostDevices.
func (p *devicePass) devices() error {
	for i, in := range p.VMI.Spec.Domain.Devices.HostDevices {
		field := fmt.Sprintf("%shostDevices[%d]", specDevices, i)
		resource := xmlspec.DeviceResource(in.DeviceName, in.ClaimRequest)
		for n := range p.together(resource) {
			d, err := p.pop(field, in.Name, resource)
			if err != nil {
				return err
			}
			if err := p.device(field, &in, d, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// together returns how many devices each entry of a resource stands for: one, but for USB devices that
// the node hands out together.
func (p *devicePass) together(resource string) int {
	all, entries := p.Facts.Devices[resource], 0
	for _, in := range p.VMI.Spec.Domain.Devices.HostDevices {
		if xmlspec.DeviceResource(in.DeviceName, in.ClaimRequest) == resource {
			entries++
		}
	}
	if len(all)%entries != 0 || slices.ContainsFunc(all, func(d HostDevice) bool { return d.USB == "" }) {
		return 1
	}
	return max(1, len(all)/entries)
}

// device adds the n-th device of an entry of spec.domain.devices.hostDevices.
func (p *devicePass) device(field string, in *v1.HostDevice, d HostDevice, n int) error {
	out, err := p.hostDevice(field, d)
	if err != nil {
		return err
	}
	out.Alias = xmlspec.Alias(xmlspec.PrefixHost + in.Name)
	switch {
	case d.USB != "" && !p.hasUSB():
		return p.Invalid(field, "USB is not supported on "+p.arch.name, "remove it")
	case d.USB != "" && n > 0:
		out.Alias = xmlspec.Alias(fmt.Sprintf("%s%s-%d", xmlspec.PrefixUSB, in.Name, n))
	case d.USB != "":
		out.Alias = xmlspec.Alias(xmlspec.PrefixUSB + in.Name)
	case d.MDev != "" && in.DeviceName == "" && p.arch.name == specS390X:
		out.SubsysMDev.Model = "vfio-ap" // on s390x, mediated devices of claims are cryptographic ones
	}
	p.add(out)
	return nil
}

// gpus adds spec.domain.devices.gpus. Unless one of them has display options, the first mediated
// GPU becomes a display with a boot framebuffer, which works before the guest has loaded a driver.
func (p *devicePass) gpus() error {
	in := p.VMI.Spec.Domain.Devices.GPUs
	open := p.hasGraphics()
	for i := range in {
		open = open && (in[i].VirtualGPUOptions == nil || in[i].VirtualGPUOptions.Display == nil)
	}
	framebuffers := 0
	for i := range in {
		out, err := p.gpu(i)
		if err != nil {
			return err
		}
		if open && out.SubsysMDev != nil {
			setDisplay(out, "on")
			open = false
		}
		if hasFramebuffer(out) {
			framebuffers++
		}
		if framebuffers > 1 {
			return p.Invalid(fmt.Sprintf("%sgpus[%d].virtualGPUOptions.display.ramFB", specDevices, i),
				"Forbidden: at most one GPU can have a boot framebuffer", "disable it for all other GPUs")
		}
		p.add(out)
	}
	return nil
}

// setDisplay makes a GPU a display, with or without a boot framebuffer.
func setDisplay(d *libvirtxml.DomainHostdev, framebuffer string) {
	if d.SubsysMDev != nil {
		d.SubsysMDev.Display, d.SubsysMDev.RamFB = "on", framebuffer
	} else {
		d.SubsysPCI.Display, d.SubsysPCI.RamFB = "on", framebuffer
	}
}

func hasFramebuffer(d *libvirtxml.DomainHostdev) bool {
	return d.SubsysMDev != nil && d.SubsysMDev.RamFB == "on" || d.SubsysPCI != nil && d.SubsysPCI.RamFB == "on"
}

// gpu converts one GPU with the display options of the spec.
func (p *devicePass) gpu(i int) (*libvirtxml.DomainHostdev, error) {
	in := &p.VMI.Spec.Domain.Devices.GPUs[i]
	field := fmt.Sprintf("%sgpus[%d]", specDevices, i)
	d, err := p.pop(field, in.Name, xmlspec.DeviceResource(in.DeviceName, in.ClaimRequest))
	if err != nil {
		return nil, err
	}
	if d.USB != "" {
		return nil, p.badDevice(field, fmt.Sprintf("USB device %s, which is not a GPU", d.USB))
	}
	out, err := p.hostDevice(field, d)
	if err != nil {
		return nil, err
	}
	out.Alias = xmlspec.Alias(xmlspec.PrefixGPU + in.Name)
	if in.VirtualGPUOptions == nil || in.VirtualGPUOptions.Display == nil {
		return out, nil
	}
	o := in.VirtualGPUOptions.Display
	switch {
	case specIsFalse(o.Enabled), out.SubsysPCI != nil && o.Enabled == nil:
		return out, nil
	case !p.hasGraphics():
		return nil, p.Invalid(field+".virtualGPUOptions.display", "Forbidden: requires a graphics device", "set autoattachGraphicsDevice, or disable the display")
	}
	framebuffer := ""
	if o.RamFB == nil || !specIsFalse(o.RamFB.Enabled) {
		framebuffer = "on"
	}
	setDisplay(out, framebuffer)
	return out, nil
}

// migratedGPU adds the mediated GPU that migrates with the guest, if the cluster allows it.
func (p *devicePass) migratedGPU() error {
	in := p.VMI.Spec.Domain.Devices.GPUs
	if !p.Facts.Cluster.MigratableVGPU || len(in) != 1 {
		return nil
	}
	if d := p.Facts.Devices[xmlspec.DeviceResource(in[0].DeviceName, in[0].ClaimRequest)]; len(d) > 0 && d[0].MDev == "" {
		return nil
	}
	return p.gpus()
}

// pop takes the next allocated device of a resource.
func (p *devicePass) pop(field, name, resource string) (HostDevice, error) {
	if err := p.checkName(field+".name", name); err != nil {
		return HostDevice{}, err
	}
	if resource == "" {
		return HostDevice{}, p.Invalid(field, "Required value", "set deviceName, or claimName and requestName")
	}
	n := p.taken[resource]
	if p.taken[resource]++; n < len(p.Facts.Devices[resource]) {
		return p.Facts.Devices[resource][n], nil
	}
	return HostDevice{}, &Error{
		Object: p.object(), Field: field, Err: domain.ErrNotFound,
		Reason: fmt.Sprintf("the node has allocated %d devices of %s, fewer than the spec requests", n, resource),
		Remedy: "schedule it to a node that has them",
	}
}

// leftOver rejects allocated devices that the spec does not use: either the guest would lack one,
// or they belong to another VMI.
func (p *devicePass) leftOver() error {
	check := func(field, resource string) error {
		if have := len(p.Facts.Devices[resource]); have > p.taken[resource] {
			return p.badDevice(field, fmt.Sprintf("%d devices of %s, but the spec requests %d", have, resource, p.taken[resource]))
		}
		return nil
	}
	for i, in := range p.VMI.Spec.Domain.Devices.HostDevices {
		if err := check(fmt.Sprintf("%shostDevices[%d]", specDevices, i), xmlspec.DeviceResource(in.DeviceName, in.ClaimRequest)); err != nil {
			return err
		}
	}
	for i, in := range p.VMI.Spec.Domain.Devices.GPUs {
		if err := check(fmt.Sprintf("%sgpus[%d]", specDevices, i), xmlspec.DeviceResource(in.DeviceName, in.ClaimRequest)); err != nil {
			return err
		}
	}
	return nil
}

// badDevice returns the error for an allocated device of the wrong kind.
func (p *devicePass) badDevice(field, what string) error {
	return &Error{
		Object: p.object(), Field: field, Reason: "the node has allocated " + what,
		Remedy: "correct the device plugin or driver of the resource", Err: domain.ErrInvalid,
	}
}

// hostDevice converts the address of one device.
func (p *devicePass) hostDevice(field string, d HostDevice) (*libvirtxml.DomainHostdev, error) {
	switch d {
	case HostDevice{PCI: d.PCI, Cell: d.Cell}:
		if a, err := p.pciAddress(field, d.PCI); err == nil {
			return &libvirtxml.DomainHostdev{
				Managed: "no", SubsysPCI: &libvirtxml.DomainHostdevSubsysPCI{Source: &libvirtxml.DomainHostdevSubsysPCISource{Address: a.PCI}},
			}, nil
		}
		return nil, p.badDevice(field, fmt.Sprintf("%q, which is not a PCI address", d.PCI))
	case HostDevice{MDev: d.MDev, Cell: d.Cell}:
		if uuidForm.MatchString(d.MDev) {
			return &libvirtxml.DomainHostdev{SubsysMDev: &libvirtxml.DomainHostdevSubsysMDev{
				Model: "vfio-pci", Source: &libvirtxml.DomainHostdevSubsysMDevSource{Address: &libvirtxml.DomainAddressMDev{UUID: d.MDev}},
			}}, nil
		}
		return nil, p.badDevice(field, fmt.Sprintf("%q, which is not the UUID of a mediated device", d.MDev))
	case HostDevice{USB: d.USB, Cell: d.Cell}:
		if bus, device, ok := usbAddress(d.USB); ok {
			return &libvirtxml.DomainHostdev{SubsysUSB: &libvirtxml.DomainHostdevSubsysUSB{
				Source: &libvirtxml.DomainHostdevSubsysUSBSource{Address: &libvirtxml.DomainAddressUSB{Bus: &bus, Device: &device}},
			}}, nil
		}
		return nil, p.badDevice(field, fmt.Sprintf("%q, which is not a USB bus and device", d.USB))
	}
	return nil, p.badDevice(field, "a device with more than one address")
}

// usbAddress parses USB bus and device, as in 3:7.
func usbAddress(s string) (bus, device uint, ok bool) {
	b, d, ok := strings.Cut(s, ":")
	bus64, err1 := strconv.ParseUint(b, 10, 16)
	device64, err2 := strconv.ParseUint(d, 10, 16)
	return uint(bus64), uint(device64), ok && err1 == nil && err2 == nil
}
