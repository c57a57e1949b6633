// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"crypto/sha256"
	"fmt"
	"net"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

const (
	// maxQueues is the maximum number of queues of a tap device.
	maxQueues = 256
	// maxACPIIndex is the maximum ACPI index of an interface.
	maxACPIIndex = 16*1024 - 1

	remedyBinding = "use masquerade or bridge"
)

// cardModels are the interface models that KubeVirt accepts.
var cardModels = []string{"e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", xmlspec.BusVirtio}

// interfacePass converts networks and interfaces.
type interfacePass struct{ *Conversion }

// MAC returns the hardware address of an interface that has one neither in the spec nor on the
// Pod's link. It is locally administered, and the same on every node and after every restart.
func MAC(uid types.UID, name string) string {
	sum := sha256.Sum256([]byte(string(uid) + "/" + name))
	return net.HardwareAddr(append([]byte{0x02}, sum[:5]...)).String()
}

// interfaces converts every interface. Virtual functions are only validated here and converted with
// the other host devices.
func interfaces(c *Conversion) error {
	seen := map[string]bool{}
	for i := range c.VMI.Spec.Domain.Devices.Interfaces {
		in := &c.VMI.Spec.Domain.Devices.Interfaces[i]
		field := interfaceField(i)
		if seen[in.Name] {
			return c.Invalid(field+".name", fmt.Sprintf("Duplicate value: %q", in.Name), "use a unique name for each interface")
		}
		seen[in.Name] = true
		if err := (interfacePass{c}).checkInterface(field, in); err != nil {
			return err
		}
		if in.State == v1.InterfaceStateAbsent {
			continue // its network may be removed already
		}
		if err := (interfacePass{c}).checkBinding(field, in); err != nil {
			return err
		}
		if in.SRIOV != nil {
			continue
		}
		if in.Binding != nil && !slices.Contains(c.Facts.Cluster.TapBindings, in.Binding.Name) {
			if err := (interfacePass{c}).leftToSidecar(field, in); err != nil {
				return err
			}
			continue
		}
		out, err := interfacePass{c}.networkInterface(field, in)
		if err != nil {
			return err
		}
		c.Domain.Devices.Interfaces = append(c.Domain.Devices.Interfaces, *out)
	}
	return nil
}

// leftToSidecar rejects an interface whose binding plugin has no tap device, unless the sidecar of
// the plugin is called to add it.
func (c interfacePass) leftToSidecar(field string, in *v1.Interface) error {
	if c.Facts.Services.Hooks {
		return nil
	}
	return &Error{
		Object: c.object(), Field: field + ".binding", Err: domain.ErrUnsupported,
		Reason: fmt.Sprintf("the interface of binding plugin %q is added by its sidecar, which the node does not call", in.Binding.Name),
		Remedy: "use a plugin whose domainAttachmentType is tap, or masquerade or bridge",
	}
}

func interfaceField(i int) string { return fmt.Sprintf("%sinterfaces[%d]", specDevices, i) }

func (c interfacePass) networkInterface(field string, in *v1.Interface) (*libvirtxml.DomainInterface, error) {
	mac, err := c.macAddress(field, in)
	if err != nil {
		return nil, err
	}
	model := in.Model
	if model == "" || model == xmlspec.BusVirtio {
		model = c.virtioModel()
	}
	out := &libvirtxml.DomainInterface{
		Alias: xmlspec.Alias(in.Name),
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
	return out, c.connectInterface(field, in, out)
}

// bootAndLink sets boot order, boot ROM and link state.
func (c interfacePass) bootAndLink(in *v1.Interface, out *libvirtxml.DomainInterface) {
	if in.BootOrder != nil {
		out.Boot = &libvirtxml.DomainDeviceBoot{Order: *in.BootOrder}
	}
	// The ROM only serves network boot, and does not support encrypted memory. KubeVirt keeps it
	// for interfaces of passt.
	if c.arch.romOff && in.PasstBinding == nil && (in.BootOrder == nil || c.encrypted()) {
		out.ROM = &libvirtxml.DomainROM{Enabled: "no"}
	}
	if in.State == v1.InterfaceStateLinkDown {
		out.Link = &libvirtxml.DomainInterfaceLink{State: "down"}
	}
}

// connectInterface connects an interface to its backend on the node: passt, a tap device, or a bridge to which
// libvirt attaches it.
func (c interfacePass) connectInterface(field string, in *v1.Interface, out *libvirtxml.DomainInterface) error {
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
			Object: c.object(), Field: field + ".binding", Err: domain.ErrUnsupported,
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

func (c interfacePass) noNetwork(name, reason string) error {
	return &Error{
		Object: c.object(), Field: fmt.Sprintf("spec.networks[%s]", name),
		Reason: reason, Remedy: "set the network up on the node", Err: domain.ErrNotFound,
	}
}

// vhost returns the driver options of a virtio interface: one queue per CPU if requested, and
// bounce buffers for guests with encrypted memory. Nil for the defaults.
func (c interfacePass) vhost() *libvirtxml.DomainInterfaceDriver {
	out := &libvirtxml.DomainInterfaceDriver{Name: "vhost"}
	if specIsTrue(c.VMI.Spec.Domain.Devices.NetworkInterfaceMultiQueue) {
		out.Queues = uint(min(xmlspec.TopologyOf(&c.VMI.Spec.Domain).Count(), maxQueues))
	}
	if c.encrypted() {
		out.IOMMU = "on"
	}
	if out.Queues == 0 && out.IOMMU == "" {
		return nil
	}
	return out
}

// removedBindings are bindings that were removed from KubeVirt.
var removedBindings = []string{"slirp", "macvtap", "passt"}

// checkBinding requires exactly one binding, and a network with the name of the interface.
// Masquerade and bridge are attached alike: the network setup of the node translates addresses.
func (c interfacePass) checkBinding(field string, in *v1.Interface) error {
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
		return c.Invalid(field, "Required value: binding", remedyBinding)
	case len(named) > 1:
		return c.Invalid(field, "Forbidden: bindings are mutually exclusive: "+strings.Join(named, ", "), "set one of them")
	case slices.Contains(removedBindings, named[0]):
		return &Error{
			Object: c.object(), Field: field + "." + named[0], Reason: "was removed from KubeVirt",
			Remedy: remedyBinding, Err: domain.ErrUnsupported,
		}
	}
	if c.nameParts(); !c.networks[in.Name] {
		return c.Invalid(field+".name", fmt.Sprintf("no matching network %q", in.Name), "add a network with that name to spec.networks")
	}
	return nil
}

// checkInterface rejects values that would otherwise fail when the guest starts.
func (c interfacePass) checkInterface(field string, in *v1.Interface) error {
	switch {
	case in.Model != "" && !slices.Contains(cardModels, in.Model):
		return c.Invalid(field+".model", fmt.Sprintf("Unsupported value: %q", in.Model), "use one of "+strings.Join(cardModels, ", "))
	case in.BootOrder != nil && *in.BootOrder == 0:
		return c.Invalid(field+".bootOrder", "Invalid value: 0", "count from 1")
	case in.ACPIIndex < 0 || in.ACPIIndex > maxACPIIndex:
		return c.Invalid(field+".acpiIndex", fmt.Sprintf("Invalid value: %d", in.ACPIIndex), fmt.Sprintf("use 1 to %d", maxACPIIndex))
	}
	if err := c.checkName(field+".name", in.Name); err != nil {
		return err
	}
	return c.checkState(field, in)
}

func (c interfacePass) checkState(field string, in *v1.Interface) error {
	switch in.State {
	case "", v1.InterfaceStateLinkUp, v1.InterfaceStateAbsent:
		return nil
	case v1.InterfaceStateLinkDown:
		if in.SRIOV == nil {
			return nil
		}
		return c.Invalid(field+".state", "Unsupported value: the link state of a virtual function cannot be set", "use up or absent")
	}
	return c.Invalid(field+".state", fmt.Sprintf("Unsupported value: %q", in.State), "use up, down or absent")
}

// macAddress returns the normalized address of the spec, else that of the Pod's link, else a
// derived one.
func (c interfacePass) macAddress(field string, in *v1.Interface) (string, error) {
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
		return "", c.Invalid(field, fmt.Sprintf("Invalid value: %q is not a MAC address", address), "use the form 02:00:00:12:34:56")
	case hw[0]&1 != 0:
		return "", c.Invalid(field, "Invalid value: "+address+" is a multicast address", "make the first byte even")
	}
	return hw.String(), nil
}
