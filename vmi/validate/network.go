// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"math"
	"net"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmidefaults"
)

var networkRules = []Rule{
	{"networks", checkNetworks, false},
	{"network-sources", checkNetworkSources, false},
	{"one-pod-network", checkOnePodNetwork, false},
	{"pod-network", checkPodNetwork, false},
	{"interfaces", checkInterfaces, false},
	{"bindings", checkBindings, false},
	{"mac-addresses", checkMACs, false},
	{"cards", checkCards, false},
	{"ports", checkPorts, true},
	{"ports", checkPortRanges, false},
	{"dhcp-options", checkDHCP, false},
}

// netName matches valid names of networks and interfaces: they become parts of device names and of arguments.
var netName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)

// networkChecker validates networks and interfaces.
type networkChecker struct{ *checker }

// netNames reports names that are invalid, duplicate or without a counterpart.
func (k networkChecker) netNames(list *fieldPath, all, counterparts []string, other string) {
	taken := names{}
	for i, name := range all {
		at := list.index(i).child("name")
		if !netName.MatchString(name) {
			k.invalid(at, name, "must be a valid network name", "use 1 to 63 letters, digits, - and _")
		}
		taken.take(k.checker, at, name)
		if !slices.Contains(counterparts, name) {
			k.invalid(at, name, "is not defined in "+other, "add it to "+other+", or remove it")
		}
	}
}

func (k networkChecker) networkNames() (all []string) {
	for i := range k.spec.Networks {
		all = append(all, k.spec.Networks[i].Name)
	}
	return all
}

func (k networkChecker) interfaceNames() (all []string) {
	for i := range k.devices.Interfaces {
		all = append(all, k.devices.Interfaces[i].Name)
	}
	return all
}

func checkNetworks(k *checker) {
	networkChecker{k}.netNames(atNetworks, networkChecker{k}.networkNames(), networkChecker{k}.interfaceNames(), atInterfaces.String())
}

func checkInterfaces(k *checker) {
	networkChecker{k}.netNames(atInterfaces, networkChecker{k}.interfaceNames(), networkChecker{k}.networkNames(), atNetworks.String())
}

func checkNetworkSources(k *checker) {
	for i := range k.spec.Networks {
		n, at := &k.spec.Networks[i], atNetworks.index(i)
		k.only(at, chosen(alternative{"pod", n.Pod != nil}, alternative{"multus", n.Multus != nil}, alternative{"resourceClaim", n.ResourceClaim != nil}), "pod or multus")
		switch {
		case n.Pod != nil:
			networkChecker{k}.cidr(at.child("pod.vmNetworkCIDR"), n.Pod.VMNetworkCIDR, false)
			networkChecker{k}.cidr(at.child("pod.vmIPv6NetworkCIDR"), n.Pod.VMIPv6NetworkCIDR, true)
		case n.Multus != nil:
			networkChecker{k}.attachment(at.child("multus.networkName"), n.Multus.NetworkName)
		case n.ResourceClaim != nil:
			checkClaimRequest(k, at.child("resourceClaim"), n.ResourceClaim)
		}
	}
}

func (k networkChecker) cidr(at *fieldPath, text string, v6 bool) {
	if text == "" {
		return
	}
	if ip, _, err := net.ParseCIDR(text); err != nil || (ip.To4() == nil) != v6 {
		k.invalid(at, text, "must be a CIDR of this family", "use the form 10.0.2.0/24, or fd10:0:2::/120 for IPv6")
	}
}

// attachment reports an invalid name of a NetworkAttachmentDefinition.
func (k networkChecker) attachment(at *fieldPath, reference string) {
	if reference == "" {
		k.required(at, "must be set", "use the name of a NetworkAttachmentDefinition")
		return
	}
	const remedy = "use NAME or NAMESPACE/NAME of a NetworkAttachmentDefinition"
	name := reference
	if namespace, rest, qualified := strings.Cut(reference, "/"); qualified {
		k.text(at, namespace, validation.IsDNS1123Label, remedy)
		name = rest
	}
	k.text(at, name, validation.IsDNS1123Subdomain, remedy)
}

func checkOnePodNetwork(k *checker) {
	taken := names{}
	for i := range k.spec.Networks {
		if n := &k.spec.Networks[i]; n.Pod != nil || n.Multus != nil && n.Multus.Default {
			taken.take(k, atNetworks.index(i), "Pod network")
		}
	}
}

// checkPodNetwork reports that the defaults could set no network.
func checkPodNetwork(k *checker) {
	if binding, usable := k.config.cluster().PodBinding(); !usable && vmidefaults.WantsPodNetwork(k.spec) {
		k.required(atInterfaces, fmt.Sprintf("the cluster's default binding %s is not permitted for the Pod network", binding),
			"set networks and interfaces, or set "+atDevices.child("autoattachPodInterface").String()+" to false")
	}
}

func bindings(i *v1.Interface) []string {
	return chosen(
		alternative{"bridge", i.Bridge != nil}, alternative{"masquerade", i.Masquerade != nil}, alternative{"sriov", i.SRIOV != nil},
		alternative{"passtBinding", i.PasstBinding != nil}, alternative{"binding", i.Binding != nil},
		alternative{"slirp", i.DeprecatedSlirp != nil}, alternative{"macvtap", i.DeprecatedMacvtap != nil},
		alternative{"passt", i.DeprecatedPasst != nil},
	)
}

func checkBindings(k *checker) {
	onPod, networks := map[string]bool{}, map[string]bool{}
	for i := range k.spec.Networks {
		networks[k.spec.Networks[i].Name] = true
		onPod[k.spec.Networks[i].Name] = k.spec.Networks[i].Pod != nil
	}
	for i := range k.devices.Interfaces {
		in, at := &k.devices.Interfaces[i], atInterfaces.index(i)
		all := bindings(in)
		if len(all) > 1 {
			k.only(at, all, "")
			continue
		}
		networkChecker{k}.binding(at.child(slices.Concat(all, []string{"bridge"})[0]), in, onPod[in.Name], networks[in.Name])
	}
}

// binding checks the binding of an interface, by default a bridge.
func (k networkChecker) binding(at *fieldPath, in *v1.Interface, onPod, known bool) {
	switch {
	case in.DeprecatedSlirp != nil || in.DeprecatedMacvtap != nil || in.DeprecatedPasst != nil:
		k.forbidden(at, "was removed from KubeVirt", "use masquerade, bridge or passtBinding")
	case in.Binding != nil:
		k.plugin(at.child("name"), in.Binding.Name)
	case in.SRIOV != nil && onPod:
		k.invalid(at, "{}", "is supported for multus networks only", "use masquerade")
	case vmidefaults.IsBridge(in) && onPod && k.config.ForbidPodBridge:
		k.forbidden(at, "the cluster does not permit bridge binding on the Pod network", "use masquerade")
	case known && !onPod:
		k.secondary(at, in)
	}
}

// secondary reports bindings with address translation, which only the Pod network supports.
func (k networkChecker) secondary(at *fieldPath, in *v1.Interface) {
	if in.Masquerade != nil || in.PasstBinding != nil {
		k.invalid(at, "{}", "is supported for the Pod network only", "use bridge, or change the network to pod")
	}
}

func (k networkChecker) plugin(at *fieldPath, name string) {
	if _, registered := k.config.NetworkBindings[name]; !registered {
		k.invalid(at, name, "network binding plugin is not registered", "register it in spec.configuration.network.binding of the KubeVirt object")
	}
}

func checkMACs(k *checker) {
	taken := names{}
	for i := range k.devices.Interfaces {
		at, mac := atInterfaces.index(i).child("macAddress"), k.devices.Interfaces[i].MacAddress
		if mac == "" {
			continue
		}
		hw, err := net.ParseMAC(mac)
		switch {
		case err != nil || len(hw) != 6:
			k.invalid(at, mac, "must be a MAC address", "use the form 02:00:00:12:34:56")
		case hw[0]&1 != 0:
			k.invalid(at, mac, "must not be a multicast address", "use an even first byte")
		default:
			taken.take(k, at, hw.String())
		}
	}
}

const maxACPIIndex = 16*1024 - 1

func checkCards(k *checker) {
	taken := names{}
	for i := range k.devices.Interfaces {
		in, at := &k.devices.Interfaces[i], atInterfaces.index(i)
		oneOf(k, at.child("model"), in.Model, "e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", "virtio")
		if in.PciAddress != "" && !pciForm.MatchString(in.PciAddress) {
			k.invalid(at.child("pciAddress"), in.PciAddress, "must be a PCI address", pciRemedy)
		}
		if n := in.ACPIIndex; n < 0 || n > maxACPIIndex {
			k.invalid(at.child("acpiIndex"), n, "is out of range", fmt.Sprintf("use 1 to %d", maxACPIIndex))
		} else if n > 0 {
			taken.take(k, at.child("acpiIndex"), fmt.Sprint(n))
		}
		oneOf(k, at.child("state"), in.State, v1.InterfaceStateLinkUp, v1.InterfaceStateLinkDown, v1.InterfaceStateAbsent)
		if in.SRIOV != nil && in.State == v1.InterfaceStateLinkDown {
			k.invalid(at.child("state"), in.State, "is not supported for SR-IOV", "use up or absent")
		}
	}
}

func checkPorts(k *checker) {
	taken := names{}
	for i := range k.devices.Interfaces {
		in, list := &k.devices.Interfaces[i], atInterfaces.index(i).child("ports")
		for j, p := range in.Ports {
			at := list.index(j)
			oneOf(k, at.child("protocol"), p.Protocol, string(corev1.ProtocolTCP), string(corev1.ProtocolUDP), string(corev1.ProtocolSCTP))
			networkChecker{k}.port(at.child("port"), p.Port)
			if p.Name != "" {
				k.text(at.child("name"), p.Name, validation.IsValidPortName, "use at most 15 lower case letters, digits and dashes")
				taken.take(k, at.child("name"), p.Name)
			}
		}
	}
}

func checkPortRanges(k *checker) {
	for i := range k.devices.Interfaces {
		in, list := &k.devices.Interfaces[i], atInterfaces.index(i).child("portRanges")
		if len(in.PortRanges) > 0 && (len(in.Ports) > 0 || in.Masquerade == nil) {
			k.invalid(list, len(in.PortRanges), "require masquerade and no ports", "list the ports in ports")
		}
		for j, r := range in.PortRanges {
			networkChecker{k}.port(list.index(j).child("start"), r.Start)
			networkChecker{k}.port(list.index(j).child("end"), r.End)
			if r.End < r.Start {
				k.invalid(list.index(j).child("end"), r.End, fmt.Sprintf("must not be below the start, %d", r.Start), "swap them")
			}
		}
	}
}

func (k networkChecker) port(at *fieldPath, port int32) {
	if port < 1 || port > math.MaxUint16 {
		k.invalid(at, port, "must be a valid port number", "use 1 to 65535")
	}
}

func checkDHCP(k *checker) {
	for i := range k.devices.Interfaces {
		o, at := k.devices.Interfaces[i].DHCPOptions, atInterfaces.index(i).child("dhcpOptions")
		if o == nil {
			continue
		}
		for j, server := range o.NTPServers {
			if ip := net.ParseIP(server); ip == nil || ip.To4() == nil {
				k.invalid(at.child("ntpServers").index(j), server, "must be an IPv4 address", "use an address such as 10.0.0.123")
			}
		}
		options := map[int]bool{}
		for j, p := range o.PrivateOptions {
			if p.Option < 224 || p.Option > 254 || options[p.Option] {
				k.invalid(at.child("privateOptions").index(j).child("option"), p.Option, "must be a unique private option", "use each of 224 to 254 once")
			}
			options[p.Option] = true
		}
	}
}
