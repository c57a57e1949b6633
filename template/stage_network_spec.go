// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi/validate"
)

// NetworkRules is the stock NetworkSpecValidator. It rejects what cannot be rendered or what the API server or multus would
// reject, and leaves policy, such as the binding of a network, to admission.
type NetworkRules struct{}

// ValidateNetworks implements NetworkSpecValidator. It reports all faults. Bindings that KubeVirt has removed wrap
// render.ErrUnsupported, other errors wrap render.ErrInvalid.
func (NetworkRules) ValidateNetworks(in Input) error {
	return errors.Join(slices.Concat(
		checkNetworks(in),
		checkPrimaryNetwork(in.VMI.Spec.Networks),
		checkInterfaces(in),
	)...)
}

func validateNetworks(d *render.Draft, validators []NetworkSpecValidator) error {
	for _, v := range validators {
		if err := v.ValidateNetworks(d.Input()); err != nil {
			return err
		}
	}
	return nil
}

// netName matches valid names of networks and interfaces: they become parts of device names and of arguments.
var netName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func checkNetName(at, name string) []error {
	if validate.Plain(name) || netName.MatchString(name) {
		return nil
	}
	return []error{render.Invalid(at+".name", fmt.Sprintf("%q must be a valid name", name), "use letters, digits, dashes and underscores")}
}

func checkNetworks(in Input) (errs []error) {
	networks := in.VMI.Spec.Networks
	for i := range networks {
		n, at := &networks[i], elementOf(vmiNetworks, i)
		errs = append(errs, checkNetName(at, n.Name)...)
		if networkOf(networks, n.Name) < i {
			errs = append(errs, render.Invalid(at+".name", fmt.Sprintf("%q is a duplicate", n.Name), "use unique network names"))
		}
		if interfaceOf(in.VMI.Spec.Domain.Devices.Interfaces, n.Name) < 0 {
			errs = append(errs, render.Invalid(at+".name", fmt.Sprintf("interface %q is not defined", n.Name),
				"add the interface to spec.domain.devices.interfaces or remove the network"))
		}
		errs = append(errs, checkNetworkSource(in, at, n)...)
	}
	return errs
}

func checkNetworkSource(in Input, at string, n *v1.Network) []error {
	var sources []string
	if n.Pod != nil {
		sources = append(sources, "pod")
	}
	if n.Multus != nil {
		sources = append(sources, "multus")
	}
	if n.ResourceClaim != nil {
		sources = append(sources, "resourceClaim")
	}
	switch {
	case len(sources) == 0:
		return []error{render.Invalid(at, "must specify a source", "add one, such as pod or multus")}
	case len(sources) > 1:
		return []error{render.Invalid(at, "must specify one source, not "+strings.Join(sources, ", "), "keep one of them")}
	case n.Multus != nil:
		return checkNADReference(at+".multus.networkName", in.VMI.Namespace, n.Multus.NetworkName)
	case n.ResourceClaim != nil && in.Config.GateEnabled(gateNetworkDRA):
		return checkNetworkClaim(at+".resourceClaim", n.ResourceClaim, in.VMI.Spec.ResourceClaims)
	}
	return nil
}

// checkNADReference rejects an invalid name of a NetworkAttachmentDefinition.
func checkNADReference(at, vmiNamespace, reference string) (errs []error) {
	if reference == "" {
		return []error{render.Invalid(at, "must be set", "use the name of a NetworkAttachmentDefinition")}
	}
	const remedy = "use <name> or <namespace>/<name> of a NetworkAttachmentDefinition"
	namespace, name := nadReference(vmiNamespace, reference)
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		errs = append(errs, render.Invalid(at, fmt.Sprintf("%q: namespace %q: %s", reference, namespace, problems[0]), remedy))
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		errs = append(errs, render.Invalid(at, fmt.Sprintf("%q: name %q: %s", reference, name, problems[0]), remedy))
	}
	return errs
}

func checkNetworkClaim(at string, c *v1.ClaimRequest, claims []v1.VirtualMachineInstanceResourceClaim) []error {
	if c.ClaimName == "" || c.RequestName == "" {
		return []error{render.Invalid(at, "claimName and requestName must be set", "use an entry of spec.resourceClaims and one of its requests")}
	}
	if !slices.ContainsFunc(claims, func(r v1.VirtualMachineInstanceResourceClaim) bool { return r.Name == c.ClaimName }) {
		return []error{render.Invalid(at+".claimName", fmt.Sprintf("resource claim %q is not defined", c.ClaimName), "add it to spec.resourceClaims")}
	}
	return nil
}

// checkPrimaryNetwork rejects more than one network for the Pod's own interface.
func checkPrimaryNetwork(networks []v1.Network) (errs []error) {
	first := -1
	for i := range networks {
		n := &networks[i]
		if n.Pod == nil && (n.Multus == nil || !n.Multus.Default) {
			continue
		}
		if first < 0 {
			first = i
			continue
		}
		errs = append(errs, render.Invalid(elementOf(vmiNetworks, i),
			fmt.Sprintf("must not be a second Pod network in addition to networks[%d]", first),
			"keep one network that is pod or multus with default, and change the others to multus without default"))
	}
	return errs
}

func checkInterfaces(in Input) (errs []error) {
	interfaces := in.VMI.Spec.Domain.Devices.Interfaces
	for i := range interfaces {
		iface, at := &interfaces[i], elementOf(vmiInterfaces, i)
		errs = append(errs, checkNetName(at, iface.Name)...)
		if interfaceOf(interfaces, iface.Name) < i {
			errs = append(errs, render.Invalid(at+".name", fmt.Sprintf("%q is a duplicate", iface.Name), "use unique interface names"))
		}
		if networkOf(in.VMI.Spec.Networks, iface.Name) < 0 {
			errs = append(errs, render.Invalid(at+".name", fmt.Sprintf("network %q is not defined", iface.Name), "add the network to spec.networks or remove the interface"))
		}
		errs = append(errs, checkMAC(at, iface.MacAddress)...)
		errs = append(errs, checkBinding(in, at, iface)...)
	}
	return errs
}

// checkMAC rejects an invalid address of an interface; multus passes it to the network's plugin as it is.
func checkMAC(at, mac string) []error {
	if mac == "" {
		return nil
	}
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) != 6 {
		return []error{render.Invalid(at+".macAddress", fmt.Sprintf("%q must be a MAC address", mac), "use the form 02:00:00:12:34:56")}
	}
	if hw[0]&1 != 0 {
		return []error{render.Invalid(at+".macAddress", mac+" must not be a multicast address", "use an even first byte")}
	}
	return nil
}

// checkBinding rejects interfaces with several bindings, a removed binding, or an unregistered plugin. An interface without
// a binding is a bridge.
func checkBinding(in Input, at string, i *v1.Interface) []error {
	var bindings []string
	for _, b := range []struct {
		name string
		set  bool
	}{
		{"bridge", i.Bridge != nil}, {"masquerade", i.Masquerade != nil}, {"sriov", i.SRIOV != nil},
		{"passtBinding", i.PasstBinding != nil}, {"binding", i.Binding != nil}, {"slirp", i.DeprecatedSlirp != nil},
		{"macvtap", i.DeprecatedMacvtap != nil}, {"passt", i.DeprecatedPasst != nil},
	} {
		if b.set {
			bindings = append(bindings, b.name)
		}
	}
	if len(bindings) > 1 {
		return []error{render.Invalid(at, "must specify one binding, not "+strings.Join(bindings, ", "), "keep one of them")}
	}
	switch {
	case i.DeprecatedSlirp != nil:
		return []error{removedBinding(at+".slirp", "use masquerade or passtBinding")}
	case i.DeprecatedMacvtap != nil:
		return []error{removedBinding(at+".macvtap", "use a network binding plugin for macvtap")}
	case i.DeprecatedPasst != nil:
		return []error{removedBinding(at+".passt", "use passtBinding")}
	case i.Binding != nil:
		return checkPlugin(in, at, i.Binding.Name)
	}
	return nil
}

func removedBinding(at, remedy string) *render.Error {
	return &render.Error{Field: at, Reason: "binding was removed from KubeVirt", Remedy: remedy, Err: render.ErrUnsupported}
}

func checkPlugin(in Input, at, name string) []error {
	plugin, ok := in.Config.NetworkBindings[name]
	switch {
	case !ok:
		return []error{unregistered(at, name)}
	case plugin.NetworkAttachmentDefinition == "":
		return nil
	}
	return checkNADReference("Config.NetworkBindings["+name+"].networkAttachmentDefinition", in.VMI.Namespace,
		plugin.NetworkAttachmentDefinition)
}
