// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// KubeVirt's names and addresses in the network namespace of a Pod. All names are constants: no
// part of an object names a link.
const (
	podLink     = "eth0"
	podBridge   = "k6t-eth0"
	podTap      = "tap0"
	defaultIPv4 = "10.0.2.0/24"
	defaultIPv6 = "fd10:0:2::/120"
)

// bridgeMAC is the same in all Pods, so that a guest that has migrated finds its gateway under the
// hardware address that it knows.
var bridgeMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0}

// Pods connects VMIs to the networks of their launcher Pods, in the network namespaces of these:
// a bridge with the guest's gateway, a tap device for the hypervisor, and rules that translate
// addresses. It changes no other namespace, above all not that of the node. The guest gets its
// address from package dhcp, in the launcher.
//
// There are no records: Prepare compares the namespace with what it has to be and completes it,
// whatever has happened before. It is idempotent, does not disturb a running guest, and is safe for
// concurrent use for different VMIs.
type Pods struct {
	// PID returns a process of the VMI's launcher, which must be connected, as
	// launcher.Connector.PID does.
	PID func(vmi *v1.VirtualMachineInstance) (int, error)
	// Node is the file of the network namespace of the node. Default /proc/1/ns/net, for an agent in
	// the PID namespace of the node.
	Node string
	// User and Group may open the tap device (KubeVirt: 107, qemu).
	User, Group int
}

// card is the desired setup of an interface.
type card struct {
	mac        net.HardwareAddr
	ports      []portRange // none: all
	multiqueue bool
	v4, v6     subnet
}

// subnet is the network between a guest and its gateway.
type subnet struct {
	prefix         netip.Prefix
	gateway, guest netip.Addr
	field          string // of the object
}

// Prepare connects the VMI's interface with binding masquerade to the network of its Pod, and
// returns it as a link with the Pod's addresses and MTU. Until the launcher is connected and the
// Pod has an address, the error wraps [domain.ErrNotReady]. Interfaces of other bindings that would
// need a tap device, and of other networks, are a [convert.Error] that wraps
// [domain.ErrUnsupported].
func (p Pods) Prepare(ctx context.Context, vmi *v1.VirtualMachineInstance) (map[string]convert.Link, error) {
	if err := checkUID(vmi.UID); err != nil {
		return nil, err
	}
	links := map[string]convert.Link{}
	name, c, err := cardOf(vmi)
	if err != nil || c == nil {
		return links, err
	}
	ns, err := p.namespace(vmi)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	var link convert.Link
	err = within(ns, func() (err error) {
		link, err = connect(ctx, *c, p.User, p.Group)
		return err
	})
	if errors.Is(err, domain.ErrNotReady) {
		return nil, fmt.Errorf("waiting for network %q: %w", name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("network %q in the Pod: %w", name, err)
	}
	links[name] = link
	return links, nil
}

// Release forgets the VMI: what was set up ends with the network namespace of its Pod.
func (Pods) Release(_ context.Context, uid types.UID) error { return checkUID(uid) }

// defect is an error about a field of the VMI.
func defect(vmi *v1.VirtualMachineInstance, field, reason, remedy string, cause error) error {
	return &convert.Error{
		Object: fmt.Sprintf("VirtualMachineInstance %s/%s", vmi.Namespace, vmi.Name), Field: field, Reason: reason, Remedy: remedy, Err: cause,
	}
}

// cardOf returns the interface to set up and the name of its network; nil if there is none.
func cardOf(vmi *v1.VirtualMachineInstance) (name string, c *card, err error) {
	networks := map[string]int{}
	for i, n := range vmi.Spec.Networks {
		networks[n.Name] = i
	}
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		in := &vmi.Spec.Domain.Devices.Interfaces[i]
		n, known := networks[in.Name]
		// These have no tap device, or are refused by the conversion.
		if !known || in.State == v1.InterfaceStateAbsent || in.SRIOV != nil || in.PasstBinding != nil || in.Binding != nil {
			continue
		}
		if err := supported(vmi, i, n); err != nil {
			return "", nil, err
		}
		if in.Masquerade == nil {
			continue // without a binding, which the conversion refuses
		}
		if c != nil {
			return "", nil, defect(vmi, fmt.Sprintf("spec.networks[%d].pod", n), "the Pod has one network only", "remove this network and its interface", domain.ErrInvalid)
		}
		if c, err = newCard(vmi, i, n); err != nil {
			return "", nil, err
		}
		name = in.Name
	}
	return name, c, nil
}

// supported reports what an interface asks for that a Pod's network does not have here.
func supported(vmi *v1.VirtualMachineInstance, i, n int) error {
	in, of := &vmi.Spec.Domain.Devices.Interfaces[i], &vmi.Spec.Networks[n]
	field, network := fmt.Sprintf("spec.domain.devices.interfaces[%d]", i), fmt.Sprintf("spec.networks[%d]", n)
	const remedy = "use the Pod network with masquerade"
	switch {
	case of.Multus != nil:
		return defect(vmi, network+".multus", "secondary networks are not supported yet", remedy, domain.ErrUnsupported)
	case of.Pod == nil:
		return defect(vmi, network, "only the Pod network is supported", remedy, domain.ErrUnsupported)
	case in.Bridge != nil:
		return defect(vmi, field+".bridge", "binding bridge is not supported yet in launcher Pods", "use masquerade", domain.ErrUnsupported)
	}
	if o := in.DHCPOptions; o != nil && (o.BootFileName != "" || o.TFTPServerName != "" || len(o.NTPServers)+len(o.PrivateOptions) > 0) {
		return defect(vmi, field+".dhcpOptions", "options of DHCP are not supported yet", "remove them", domain.ErrUnsupported)
	}
	return nil
}

func newCard(vmi *v1.VirtualMachineInstance, i, n int) (*card, error) {
	in, pod := &vmi.Spec.Domain.Devices.Interfaces[i], vmi.Spec.Networks[n].Pod
	field := fmt.Sprintf("spec.domain.devices.interfaces[%d]", i)
	address := in.MacAddress
	if address == "" {
		address = convert.MAC(vmi.UID, in.Name)
	}
	mac, err := net.ParseMAC(address)
	if err != nil || len(mac) != 6 {
		return nil, defect(vmi, field+".macAddress", fmt.Sprintf("Invalid value: %.40q is not a MAC address", address), "use the form 02:00:00:12:34:56", domain.ErrInvalid)
	}
	c := &card{mac: mac}
	if c.ports, err = portsOf(in); err != nil {
		return nil, defect(vmi, field+".ports", err.Error(), "use numbers from 1 to 65535 and TCP or UDP; ports in a row, and portRanges, count as one", domain.ErrInvalid)
	}
	at := fmt.Sprintf("spec.networks[%d].pod.", n)
	if c.v4, err = newSubnet(vmi, at+"vmNetworkCIDR", pod.VMNetworkCIDR, defaultIPv4); err != nil {
		return nil, err
	}
	if c.v6, err = newSubnet(vmi, at+"vmIPv6NetworkCIDR", pod.VMIPv6NetworkCIDR, defaultIPv6); err != nil {
		return nil, err
	}
	devices := &vmi.Spec.Domain.Devices
	virtio := in.Model == "" || in.Model == xmlspec.BusVirtio
	// The hypervisor opens a device with several queues in another way than one with a single queue.
	c.multiqueue = virtio && devices.NetworkInterfaceMultiQueue != nil && *devices.NetworkInterfaceMultiQueue &&
		xmlspec.TopologyOf(&vmi.Spec.Domain).Count() > 1
	return c, nil
}

// newSubnet returns the network of a field. The standard one has its family.
func newSubnet(vmi *v1.VirtualMachineInstance, field, cidr, standard string) (subnet, error) {
	prefix, err := netip.ParsePrefix(cmp.Or(cidr, standard))
	size := netip.MustParsePrefix(standard).Addr().BitLen()
	// A gateway and a guest need four addresses.
	if err != nil || prefix.Addr().BitLen() != size || prefix.Bits() > size-2 || !prefix.Addr().IsGlobalUnicast() {
		return subnet{}, defect(vmi, field, fmt.Sprintf("Invalid value: %.60q is not a network for a guest and its gateway", cidr), "use a network such as "+standard, domain.ErrInvalid)
	}
	gateway := prefix.Masked().Addr().Next()
	return subnet{prefix: prefix.Masked(), gateway: gateway, guest: gateway.Next(), field: field}, nil
}
