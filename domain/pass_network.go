// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"crypto/sha256"
	"fmt"
	"net"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// maxQueues is what a tap device has at most.
const maxQueues = 256

// MAC returns the hardware address of a guest's interface that the spec gives
// none: locally administered, and the same on every node and after any restart.
func MAC(uid types.UID, name string) string {
	sum := sha256.Sum256([]byte(string(uid) + "/" + name))
	return net.HardwareAddr(append([]byte{0x02}, sum[:5]...)).String()
}

// interfaces converts every network card: a tap device on the bridge that the
// facts name for its network.
func interfaces(c *Conversion) error {
	seen := map[string]bool{}
	for i := range c.VMI.Spec.Domain.Devices.Interfaces {
		in := &c.VMI.Spec.Domain.Devices.Interfaces[i]
		field := fmt.Sprintf("%sinterfaces[%d]", specDevices, i)
		if err := c.checkName(field+".name", in.Name); err != nil {
			return err
		}
		if seen[in.Name] {
			return c.Invalid(field+".name", fmt.Sprintf("%q occurs twice", in.Name), "give every interface a name of its own")
		}
		seen[in.Name] = true
		if in.State == v1.InterfaceStateAbsent {
			continue
		}
		out, err := c.networkInterface(field, in)
		if err != nil {
			return err
		}
		c.Domain.Devices.Interfaces = append(c.Domain.Devices.Interfaces, *out)
	}
	return nil
}

func (c *Conversion) networkInterface(field string, in *v1.Interface) (*libvirtxml.DomainInterface, error) {
	if err := c.checkBinding(field, in); err != nil {
		return nil, err
	}
	mac, err := c.macAddress(field, in)
	if err != nil {
		return nil, err
	}
	model := in.Model
	if model == "" || model == "virtio" {
		model = c.virtioModel()
	}
	out := &libvirtxml.DomainInterface{
		Alias:  alias(in.Name),
		MAC:    &libvirtxml.DomainInterfaceMAC{Address: mac},
		Source: &libvirtxml.DomainInterfaceSource{Bridge: &libvirtxml.DomainInterfaceSourceBridge{Bridge: c.Facts.Bridges[in.Name]}},
		Model:  &libvirtxml.DomainInterfaceModel{Type: model},
	}
	if in.ACPIIndex > 0 {
		out.ACPI = &libvirtxml.DomainDeviceACPI{Index: uint(in.ACPIIndex)}
	}
	if in.PciAddress != "" {
		if out.Address, err = c.pciAddress(field+".pciAddress", in.PciAddress); err != nil {
			return nil, err
		}
	}
	if isTrue(c.VMI.Spec.Domain.Devices.NetworkInterfaceMultiQueue) && model == c.virtioModel() {
		out.Driver = &libvirtxml.DomainInterfaceDriver{Queues: uint(min(topologyOf(&c.VMI.Spec.Domain).count(), maxQueues))}
	}
	return out, c.bootAndLink(field, in, out)
}

// bootAndLink sets boot order, boot ROM and link state.
func (c *Conversion) bootAndLink(field string, in *v1.Interface, out *libvirtxml.DomainInterface) error {
	switch {
	case in.BootOrder == nil && c.arch.romOff:
		out.ROM = &libvirtxml.DomainROM{Enabled: "no"}
	case in.BootOrder == nil:
	case *in.BootOrder == 0:
		return c.Invalid(field+".bootOrder", "0 is no position", "count from 1")
	default:
		out.Boot = &libvirtxml.DomainDeviceBoot{Order: *in.BootOrder}
	}
	switch in.State {
	case "", v1.InterfaceStateLinkUp:
	case v1.InterfaceStateLinkDown:
		out.Link = &libvirtxml.DomainInterfaceLink{State: "down"}
	default:
		return c.Invalid(field+".state", fmt.Sprintf("%q is no state", in.State), "use up, down or absent")
	}
	return nil
}

// checkBinding refuses bindings that are no bridge and networks without one.
// A masqueraded interface is a port of a bridge as well: what sets the bridge up
// translates addresses.
func (c *Conversion) checkBinding(field string, in *v1.Interface) error {
	const remedy = "use masquerade or bridge"
	m := in.InterfaceBindingMethod
	switch {
	case in.Binding != nil:
		return c.Unsupported(field+".binding", remedy)
	case m.SRIOV != nil:
		return c.Unsupported(field+".sriov", remedy)
	case m.DeprecatedSlirp != nil:
		return c.Unsupported(field+".slirp", remedy)
	case m.DeprecatedMacvtap != nil:
		return c.Unsupported(field+".macvtap", remedy)
	case m.DeprecatedPasst != nil:
		return c.Unsupported(field+".passt", remedy)
	case m.PasstBinding != nil:
		return c.Unsupported(field+".passtBinding", remedy)
	case m.Bridge == nil && m.Masquerade == nil:
		return c.Invalid(field, "has no binding", remedy)
	}
	known := slices.ContainsFunc(c.VMI.Spec.Networks, func(n v1.Network) bool { return n.Name == in.Name })
	if !known {
		return c.Invalid(field+".name", fmt.Sprintf("no network %q", in.Name), "add a network of that name to spec.networks")
	}
	if c.Facts.Bridges[in.Name] == "" {
		return &Error{
			Object: c.object(), Field: fmt.Sprintf("spec.networks[%s]", in.Name),
			Reason: "the node has no bridge for this network", Remedy: "set the network up on the node", Err: ErrNotFound,
		}
	}
	return nil
}

// macAddress returns the spec's address in its usual form, or a derived one.
func (c *Conversion) macAddress(field string, in *v1.Interface) (string, error) {
	if in.MacAddress == "" {
		return MAC(c.VMI.UID, in.Name), nil
	}
	hw, err := net.ParseMAC(in.MacAddress)
	switch {
	case err != nil || len(hw) != 6:
		return "", c.Invalid(field+".macAddress", fmt.Sprintf("%q is no MAC address", in.MacAddress), "use the form 02:00:00:12:34:56")
	case hw[0]&1 != 0:
		return "", c.Invalid(field+".macAddress", in.MacAddress+" is a multicast address", "make the first byte even")
	}
	return hw.String(), nil
}
