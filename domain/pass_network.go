// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"crypto/sha256"
	"fmt"
	"net"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

const (
	// maxQueues is what a tap device has at most.
	maxQueues = 256
	// maxACPIIndex is the highest index a card can be named by.
	maxACPIIndex = 16*1024 - 1

	remedyBinding = "use masquerade or bridge"
)

// cardModels are the network cards KubeVirt accepts.
var cardModels = []string{"e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", busVirtio}

// MAC returns the hardware address of a guest's interface that neither the spec
// nor the Pod's link gives one: locally administered, and the same on every node
// and after any restart.
func MAC(uid types.UID, name string) string {
	sum := sha256.Sum256([]byte(string(uid) + "/" + name))
	return net.HardwareAddr(append([]byte{0x02}, sum[:5]...)).String()
}

// interfaces converts every network card. Virtual functions are checked here and
// converted with the other devices of the host.
func interfaces(c *Conversion) error {
	seen := map[string]bool{}
	for i := range c.VMI.Spec.Domain.Devices.Interfaces {
		in := &c.VMI.Spec.Domain.Devices.Interfaces[i]
		field := interfaceField(i)
		if seen[in.Name] {
			return c.Invalid(field+".name", fmt.Sprintf("%q occurs twice", in.Name), "give every interface a name of its own")
		}
		seen[in.Name] = true
		if err := c.checkInterface(field, in); err != nil {
			return err
		}
		if in.State == v1.InterfaceStateAbsent {
			continue // its network may be gone already
		}
		if err := c.checkBinding(field, in); err != nil {
			return err
		}
		if in.SRIOV != nil {
			continue
		}
		if in.Binding != nil && !slices.Contains(c.Facts.Cluster.TapBindings, in.Binding.Name) {
			if err := c.leftToSidecar(field, in); err != nil {
				return err
			}
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

// leftToSidecar refuses the card of a binding plugin that no tap device stands for,
// unless the plugin's sidecar is asked to add it.
func (c *Conversion) leftToSidecar(field string, in *v1.Interface) error {
	if c.Facts.Services.Hooks {
		return nil
	}
	return &Error{
		Object: c.object(), Field: field + ".binding", Err: ErrUnsupported,
		Reason: fmt.Sprintf("the card of binding plugin %q is added by its sidecar, which the node does not call", in.Binding.Name),
		Remedy: "use a plugin whose domainAttachmentType is tap, or masquerade or bridge",
	}
}

func interfaceField(i int) string { return fmt.Sprintf("%sinterfaces[%d]", specDevices, i) }

func (c *Conversion) networkInterface(field string, in *v1.Interface) (*libvirtxml.DomainInterface, error) {
	mac, err := c.macAddress(field, in)
	if err != nil {
		return nil, err
	}
	model := in.Model
	if model == "" || model == busVirtio {
		model = c.virtioModel()
	}
	out := &libvirtxml.DomainInterface{
		Alias: alias(in.Name),
		MAC:   &libvirtxml.DomainInterfaceMAC{Address: mac},
		Model: &libvirtxml.DomainInterfaceModel{Type: model},
	}
	if in.ACPIIndex > 0 {
		out.ACPI = &libvirtxml.DomainDeviceACPI{Index: uint(in.ACPIIndex)}
	}
	if in.PciAddress != "" {
		if out.Address, err = c.pciAddress(field+".pciAddress", in.PciAddress); err != nil {
			return nil, err
		}
	}
	if model == c.virtioModel() {
		out.Driver = c.vhost()
	}
	c.bootAndLink(in, out)
	return out, c.plug(field, in, out)
}

// bootAndLink sets boot order, boot ROM and link state.
func (c *Conversion) bootAndLink(in *v1.Interface, out *libvirtxml.DomainInterface) {
	if in.BootOrder != nil {
		out.Boot = &libvirtxml.DomainDeviceBoot{Order: *in.BootOrder}
	}
	// The ROM only serves to boot from the network, and does not know encrypted memory.
	// KubeVirt leaves it to cards of passt.
	if c.arch.romOff && in.PasstBinding == nil && (in.BootOrder == nil || c.encrypted()) {
		out.ROM = &libvirtxml.DomainROM{Enabled: "no"}
	}
	if in.State == v1.InterfaceStateLinkDown {
		out.Link = &libvirtxml.DomainInterfaceLink{State: "down"}
	}
}

// plug connects a card with what the node has for it: passt, a tap device, or a
// bridge that libvirt plugs it into.
func (c *Conversion) plug(field string, in *v1.Interface, out *libvirtxml.DomainInterface) error {
	link := c.Facts.Links[in.Name]
	if link.MTU > 0 {
		out.MTU = &libvirtxml.DomainInterfaceMTU{Size: link.MTU}
	}
	switch bridge := c.Facts.Bridges[in.Name]; {
	case in.PasstBinding != nil:
		return c.passt(field, in, out)
	case link.Tap != "":
		out.Source = &libvirtxml.DomainInterfaceSource{Ethernet: &libvirtxml.DomainInterfaceSourceEthernet{}}
		out.Target = &libvirtxml.DomainInterfaceTarget{Dev: link.Tap, Managed: "no"}
	case in.Binding != nil:
		return &Error{
			Object: c.object(), Field: field + ".binding", Err: ErrUnsupported,
			Reason: fmt.Sprintf("the node has no tap device from binding plugin %q", in.Binding.Name),
			Remedy: "use a plugin whose domainAttachmentType is tap, or masquerade or bridge",
		}
	case bridge != "":
		out.Source = &libvirtxml.DomainInterfaceSource{Bridge: &libvirtxml.DomainInterfaceSourceBridge{Bridge: bridge}}
	default:
		return c.noNetwork(in.Name, "the node has neither a tap device nor a bridge for this network")
	}
	return nil
}

func (c *Conversion) noNetwork(name, reason string) error {
	return &Error{
		Object: c.object(), Field: fmt.Sprintf("spec.networks[%s]", name),
		Reason: reason, Remedy: "set the network up on the node", Err: ErrNotFound,
	}
}

// vhost returns what the driver of a virtio card has beside the defaults: one
// queue per CPU, and bounce buffers for guests with encrypted memory. nil if
// there is nothing.
func (c *Conversion) vhost() *libvirtxml.DomainInterfaceDriver {
	out := &libvirtxml.DomainInterfaceDriver{Name: "vhost"}
	if isTrue(c.VMI.Spec.Domain.Devices.NetworkInterfaceMultiQueue) {
		out.Queues = uint(min(topologyOf(&c.VMI.Spec.Domain).count(), maxQueues))
	}
	if c.encrypted() {
		out.IOMMU = "on"
	}
	if out.Queues == 0 && out.IOMMU == "" {
		return nil
	}
	return out
}

// removedBindings were taken out of KubeVirt.
var removedBindings = []string{"slirp", "macvtap", "passt"}

// checkBinding wants one binding and a network of the interface's name. A
// masqueraded interface is plugged in like a bridged one: what sets the network
// up translates addresses.
func (c *Conversion) checkBinding(field string, in *v1.Interface) error {
	m := &in.InterfaceBindingMethod
	var named []string
	for _, b := range []struct {
		name string
		set  bool
	}{
		{"bridge", m.Bridge != nil}, {"masquerade", m.Masquerade != nil}, {"sriov", m.SRIOV != nil},
		{"passtBinding", m.PasstBinding != nil}, {"binding", in.Binding != nil},
		{"slirp", m.DeprecatedSlirp != nil}, {"macvtap", m.DeprecatedMacvtap != nil}, {"passt", m.DeprecatedPasst != nil},
	} {
		if b.set {
			named = append(named, b.name)
		}
	}
	switch {
	case len(named) == 0:
		return c.Invalid(field, "has no binding", remedyBinding)
	case len(named) > 1:
		return c.Invalid(field, "has more than one binding: "+strings.Join(named, ", "), "leave one")
	case slices.Contains(removedBindings, named[0]):
		return &Error{
			Object: c.object(), Field: field + "." + named[0], Reason: "was removed from KubeVirt",
			Remedy: remedyBinding, Err: ErrUnsupported,
		}
	}
	if c.nameParts(); !c.networks[in.Name] {
		return c.Invalid(field+".name", fmt.Sprintf("no network %q", in.Name), "add a network of that name to spec.networks")
	}
	return nil
}

// checkInterface refuses values that would only fail when the guest starts.
func (c *Conversion) checkInterface(field string, in *v1.Interface) error {
	switch {
	case in.Model != "" && !slices.Contains(cardModels, in.Model):
		return c.Invalid(field+".model", fmt.Sprintf("%q is no network card", in.Model), "use one of "+strings.Join(cardModels, ", "))
	case in.BootOrder != nil && *in.BootOrder == 0:
		return c.Invalid(field+".bootOrder", "0 is no position", "count from 1")
	case in.ACPIIndex < 0 || in.ACPIIndex > maxACPIIndex:
		return c.Invalid(field+".acpiIndex", fmt.Sprintf("%d is no index", in.ACPIIndex), fmt.Sprintf("use 1 to %d", maxACPIIndex))
	}
	if err := c.checkName(field+".name", in.Name); err != nil {
		return err
	}
	return c.checkState(field, in)
}

func (c *Conversion) checkState(field string, in *v1.Interface) error {
	switch in.State {
	case "", v1.InterfaceStateLinkUp, v1.InterfaceStateAbsent:
		return nil
	case v1.InterfaceStateLinkDown:
		if in.SRIOV == nil {
			return nil
		}
		return c.Invalid(field+".state", "the link of a virtual function cannot be switched", "use up or absent")
	}
	return c.Invalid(field+".state", fmt.Sprintf("%q is no state", in.State), "use up, down or absent")
}

// macAddress returns the address of the spec in its usual form, else that of the
// Pod's link, else a derived one.
func (c *Conversion) macAddress(field string, in *v1.Interface) (string, error) {
	address := in.MacAddress
	if link := c.Facts.Links[in.Name].MAC; address == "" && link != "" {
		address, field = link, fmt.Sprintf("spec.networks[%s]", in.Name)
	} else {
		field += ".macAddress"
	}
	if address == "" {
		return MAC(c.VMI.UID, in.Name), nil
	}
	hw, err := net.ParseMAC(address)
	switch {
	case err != nil || len(hw) != 6:
		return "", c.Invalid(field, fmt.Sprintf("%q is no MAC address", address), "use the form 02:00:00:12:34:56")
	case hw[0]&1 != 0:
		return "", c.Invalid(field, address+" is a multicast address", "make the first byte even")
	}
	return hw.String(), nil
}
