// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
	"github.com/virtloom/virtloom/internal/durable"
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
// Prepare compares the namespace with what it has to be and completes it, whatever has happened
// before: it is idempotent, does not disturb a running guest, and is safe for concurrent use for
// different VMIs. Only binding bridge needs a record, of the link that the guest gets.
type Pods struct {
	// PID returns a process of the VMI's launcher, which must be connected, as
	// launcher.Connector.PID does.
	PID func(vmi *v1.VirtualMachineInstance) (int, error)
	// Node is the file of the network namespace of the node. Default /proc/1/ns/net, for an agent in
	// the PID namespace of the node.
	Node string
	// User and Group may open the tap device (KubeVirt: 107, qemu).
	User, Group int
	// Records is the directory of the records of binding bridge, one per VMI, which no container can
	// write. Defaults to /var/run/virtloom/networks.
	Records string
}

// names are those of the links of an interface in its Pod.
type names struct {
	link, nic, bridge, tap string
}

// card is the desired setup of an interface.
type card struct {
	network    string
	names      names
	bridged    bool
	index      int              // among the networks
	place      int              // among the secondary ones, from 1
	mac        net.HardwareAddr // nil: that of the Pod's link
	ports      []portRange      // none: all
	multiqueue bool
	v4, v6     subnet
}

// subnet is the network between a guest and its gateway.
type subnet struct {
	prefix         netip.Prefix
	gateway, guest netip.Addr
	field          string // of the object
}

// Prepare connects the VMI's interfaces to the networks of its Pod, and returns them as links with the
// Pod's addresses and MTU: with binding masquerade to that of the Pod, with binding bridge to others as
// well. Until the launcher is connected and the Pod has its links and an address, the error wraps
// [domain.ErrNotReady]. What is not supported is a [convert.Error] that wraps
// [domain.ErrUnsupported].
func (p Pods) Prepare(ctx context.Context, vmi *v1.VirtualMachineInstance) (map[string]convert.Link, error) {
	if err := checkUID(vmi.UID); err != nil {
		return nil, err
	}
	links := map[string]convert.Link{}
	cards, err := cardsOf(vmi)
	if err != nil || len(cards) == 0 {
		return links, err
	}
	ns, err := p.namespace(vmi)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	for _, c := range cards {
		var link convert.Link
		err := inNamespace(ns, func() (err error) {
			link, err = p.prepare(ctx, vmi, c)
			return err
		})
		if errors.Is(err, domain.ErrNotReady) {
			return nil, fmt.Errorf("waiting for network %q: %w", c.network, err)
		}
		if err != nil {
			return nil, fmt.Errorf("network %q in the Pod: %w", c.network, err)
		}
		links[c.network] = link
	}
	return links, nil
}

// prepare sets up one interface in the network namespace of this thread.
func (p Pods) prepare(ctx context.Context, vmi *v1.VirtualMachineInstance, c card) (convert.Link, error) {
	in, err := p.open(c)
	if err != nil {
		return convert.Link{}, err
	}
	defer in.Close()
	if !c.bridged {
		return in.connect(ctx)
	}
	if err := in.ordinal(); err != nil {
		return convert.Link{}, err
	}
	had, err := in.remembered(p.records(), vmi.UID, c.network)
	if err != nil {
		return convert.Link{}, err
	}
	own, err := net.ParseMAC(had.MAC)
	if err != nil {
		return convert.Link{}, err
	}
	if in.mac == nil {
		in.mac = own
	}
	link, err := bridged{pod: in, had: had, ctx: ctx}.connect()
	link.MAC = in.mac.String()
	return link, err
}

func (p Pods) records() records { return records{cmp.Or(p.Records, defaultRecords)} }

// Release forgets the VMI: what was set up ends with the network namespace of its Pod.
func (p Pods) Release(_ context.Context, uid types.UID) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	return durable.Remove(p.records().path(uid))
}

// defect is an error about a field of the VMI.
func defect(vmi *v1.VirtualMachineInstance, field, reason, remedy string, cause error) error {
	return &convert.Error{
		Object: fmt.Sprintf("VirtualMachineInstance %s/%s", vmi.Namespace, vmi.Name), Field: field, Reason: reason, Remedy: remedy, Err: cause,
	}
}

// cardsOf returns the interfaces to set up.
func cardsOf(vmi *v1.VirtualMachineInstance) ([]card, error) {
	networks := map[string]int{}
	for i, n := range vmi.Spec.Networks {
		networks[n.Name] = i
	}
	var out []card
	primary := false
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		in := &vmi.Spec.Domain.Devices.Interfaces[i]
		n, known := networks[in.Name]
		if !known || elsewhere(in) {
			continue
		}
		if err := supported(vmi, i, n); err != nil {
			return nil, err
		}
		if in.Masquerade == nil && in.Bridge == nil {
			continue // without a binding, which the conversion refuses
		}
		first := primaryOf(&vmi.Spec.Networks[n])
		if first && primary {
			return nil, defect(vmi, fmt.Sprintf("spec.networks[%d].pod", n), "the Pod has one network only", "remove this network and its interface", domain.ErrInvalid)
		}
		primary = primary || first
		c, err := newCard(vmi, i, n)
		if err != nil {
			return nil, err
		}
		out = append(out, *c)
	}
	return out, nil
}

// elsewhere reports whether an interface has no tap device, or is refused by the conversion.
func elsewhere(in *v1.Interface) bool {
	return in.State == v1.InterfaceStateAbsent || in.SRIOV != nil || in.PasstBinding != nil || in.Binding != nil
}

// primaryOf reports whether a network is that of the Pod's address.
func primaryOf(n *v1.Network) bool { return n.Pod != nil || n.Multus != nil && n.Multus.Default }

// supported reports what an interface asks for that a Pod's network does not have here.
func supported(vmi *v1.VirtualMachineInstance, i, n int) error {
	in, of := &vmi.Spec.Domain.Devices.Interfaces[i], &vmi.Spec.Networks[n]
	field, network := fmt.Sprintf("spec.domain.devices.interfaces[%d]", i), fmt.Sprintf("spec.networks[%d]", n)
	switch {
	case of.Pod == nil && of.Multus == nil:
		return defect(vmi, network, "only the Pod network and those of multus are supported", "use one of these", domain.ErrUnsupported)
	case in.Masquerade != nil && of.Pod == nil:
		return defect(vmi, network+".multus", "binding masquerade is for the Pod network", "use bridge", domain.ErrUnsupported)
	}
	if o := in.DHCPOptions; o != nil && (o.BootFileName != "" || o.TFTPServerName != "" || len(o.NTPServers)+len(o.PrivateOptions) > 0) {
		return defect(vmi, field+".dhcpOptions", "options of DHCP are not supported yet", "remove them", domain.ErrUnsupported)
	}
	return nil
}

func newCard(vmi *v1.VirtualMachineInstance, i, n int) (*card, error) {
	in, of := &vmi.Spec.Domain.Devices.Interfaces[i], &vmi.Spec.Networks[n]
	field := fmt.Sprintf("spec.domain.devices.interfaces[%d]", i)
	c := &card{network: in.Name, bridged: in.Bridge != nil, index: n, names: namesOf(of)}
	c.count(vmi.Spec.Networks[:n+1])
	var err error
	if c.mac, err = macOf(vmi, in, field); err != nil {
		return nil, err
	}
	if c.ports, err = portsOf(in); err != nil {
		return nil, defect(vmi, field+".ports", err.Error(), "use numbers from 1 to 65535 and TCP or UDP; ports in a row, and portRanges, count as one", domain.ErrInvalid)
	}
	if err := c.subnetsOf(vmi, n); err != nil {
		return nil, err
	}
	devices := &vmi.Spec.Domain.Devices
	virtio := in.Model == "" || in.Model == xmlspec.BusVirtio
	// The hypervisor opens a device with several queues in another way than one with a single queue.
	c.multiqueue = virtio && devices.NetworkInterfaceMultiQueue != nil && *devices.NetworkInterfaceMultiQueue &&
		xmlspec.TopologyOf(&vmi.Spec.Domain).Count() > 1
	return c, nil
}

// count notes the place of the last of these networks among the secondary ones.
func (c *card) count(networks []v1.Network) {
	for i := range networks {
		if !primaryOf(&networks[i]) {
			c.place++
		}
	}
}

// subnetsOf sets the networks between the guest and its gateway, if it has one of its own.
func (c *card) subnetsOf(vmi *v1.VirtualMachineInstance, n int) (err error) {
	if c.bridged {
		return nil
	}
	pod, at := vmi.Spec.Networks[n].Pod, fmt.Sprintf("spec.networks[%d].pod.", n)
	if c.v4, err = newSubnet(vmi, at+"vmNetworkCIDR", pod.VMNetworkCIDR, defaultIPv4); err == nil {
		c.v6, err = newSubnet(vmi, at+"vmIPv6NetworkCIDR", pod.VMIPv6NetworkCIDR, defaultIPv6)
	}
	return err
}

// macOf returns the hardware address of the guest, nil if it is that of the Pod's link.
func macOf(vmi *v1.VirtualMachineInstance, in *v1.Interface, field string) (net.HardwareAddr, error) {
	address := in.MacAddress
	switch {
	case address != "":
	case in.Bridge == nil:
		address = convert.MAC(vmi.UID, in.Name)
	default:
		if address = arrived(vmi, in.Name); address == "" {
			return nil, nil
		}
	}
	mac, err := net.ParseMAC(address)
	if err != nil || len(mac) != 6 {
		return nil, defect(vmi, field+".macAddress", fmt.Sprintf("Invalid value: %.40q is not a MAC address", address), "use the form 02:00:00:12:34:56", domain.ErrInvalid)
	}
	return mac, nil
}

// arrived returns the hardware address that the guest has from the Pod that it comes from.
func arrived(vmi *v1.VirtualMachineInstance, name string) string {
	if m := vmi.Status.MigrationState; m == nil || m.SourcePod == "" {
		return ""
	}
	for _, s := range vmi.Status.Interfaces {
		if s.Name == name {
			return s.MAC
		}
	}
	return ""
}

// namesOf returns KubeVirt's names of the links of a network.
func namesOf(n *v1.Network) names {
	if primaryOf(n) {
		return names{link: podLink, nic: podLink + "-nic", bridge: podBridge, tap: podTap}
	}
	sum := sha256.Sum256([]byte(n.Name))
	hash := hex.EncodeToString(sum[:])[:11]
	return names{link: "pod" + hash, nic: hash + "-nic", bridge: "k6t-" + hash, tap: "tap" + hash}
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
