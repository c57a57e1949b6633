// SPDX-License-Identifier: Apache-2.0

package template

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	networksAnnotation       = "k8s.v1.cni.cncf.io/networks"
	networkStatusAnnotation  = "k8s.v1.cni.cncf.io/network-status"
	defaultNetworkAnnotation = "v1.multus-cni.io/default-network"

	vmiNetworks = "spec.networks"
)

// InterfaceNaming names a Pod's interfaces in its secondary networks. The node agent and the launcher find the interface of
// a network by its name, so that a custom scheme needs support in both.
type InterfaceNaming interface {
	// InterfaceNames returns the names of interfaces by network. It receives all networks of the VMI and must return names
	// for the secondary ones: multus networks that are not the default.
	InterfaceNames(networks []v1.Network) map[string]string
}

// HashedNames names interfaces "pod" and the first 11 hexadecimal digits of the SHA-256 of the network's name, as KubeVirt
// does in new Pods. A name depends on its network only, so that networks can be added and removed.
type HashedNames struct{}

// InterfaceNames implements InterfaceNaming.
func (HashedNames) InterfaceNames(networks []v1.Network) map[string]string {
	names := map[string]string{}
	for i := range networks {
		if isSecondary(&networks[i]) {
			sum := sha256.Sum256([]byte(networks[i].Name))
			names[networks[i].Name] = "pod" + hex.EncodeToString(sum[:])[:11]
		}
	}
	return names
}

// OrdinalNames names interfaces net1, net2 and so on in the order of the secondary networks, as old releases of KubeVirt
// did and multus does by default.
type OrdinalNames struct{}

// InterfaceNames implements InterfaceNaming.
func (OrdinalNames) InterfaceNames(networks []v1.Network) map[string]string {
	names := map[string]string{}
	for i := range networks {
		if isSecondary(&networks[i]) {
			names[networks[i].Name] = fmt.Sprintf("net%d", len(names)+1)
		}
	}
	return names
}

func isSecondary(n *v1.Network) bool { return n.Multus != nil && !n.Multus.Default }

// NetworkElement requests one interface of the Pod from multus. It is an element of the annotation
// k8s.v1.cni.cncf.io/networks, to which a custom generator may add other elements.
type NetworkElement struct {
	// Name and Namespace of the NetworkAttachmentDefinition.
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	// IPs are addresses with prefix length for the Pod's interface, if the network's plugin supports them. The stock
	// generator sets none: the guest has the addresses.
	IPs []string `json:"ips,omitempty"`
	// MAC is the address of the interface. Empty leaves it to the network.
	MAC string `json:"mac,omitempty"`
	// Interface is the name of the interface in the Pod. Empty leaves it to multus.
	Interface string `json:"interface,omitempty"`
	// CNIArgs are passed to the network's plugin.
	CNIArgs map[string]any `json:"cni-args,omitempty"`
}

// MultusAnnotations generates multus' annotations: k8s.v1.cni.cncf.io/networks for secondary networks and
// v1.multus-cni.io/default-network for one that replaces the Pod's own. Absent interfaces and networks without an interface
// are omitted.
type MultusAnnotations struct {
	// Naming names the Pod's interfaces. Defaults to HashedNames, or to OrdinalNames for the target of a migration whose
	// source has interfaces like net1 if feature gate PodSecondaryInterfaceNamingUpgrade is disabled.
	Naming InterfaceNaming
}

// Annotations implements AnnotationGenerator. It returns the errors of Elements.
func (m MultusAnnotations) Annotations(in Input) (map[string]string, error) {
	annotations := map[string]string{}
	elements, err := m.Elements(in)
	if err != nil {
		return nil, err
	}
	if len(elements) > 0 {
		text, err := json.Marshal(elements)
		if err != nil {
			return nil, err
		}
		annotations[networksAnnotation] = string(text)
	}
	for i := range in.VMI.Spec.Networks {
		if n := in.VMI.Spec.Networks[i].Multus; n != nil && n.Default {
			annotations[defaultNetworkAnnotation] = n.NetworkName
			break
		}
	}
	return annotations, nil
}

// Elements returns the elements of the annotation k8s.v1.cni.cncf.io/networks in order: one for the interface of each
// secondary network, followed by one for the network of its binding plugin, if any. An unregistered binding plugin and an
// invalid network-status of the migration's source are errors.
func (m MultusAnnotations) Elements(in Input) ([]NetworkElement, error) {
	naming, legacy := m.Naming, false
	if naming == nil {
		var err error
		if legacy, err = keepsOrdinalNames(in); err != nil {
			return nil, err
		}
		naming = HashedNames{}
		if legacy {
			naming = OrdinalNames{}
		}
	}
	names := naming.InterfaceNames(in.VMI.Spec.Networks)
	var elements []NetworkElement
	for _, a := range nics(&in.VMI.Spec, legacy) {
		if isSecondary(a.network) {
			element := nadElement(in.VMI.Namespace, a.network.Multus.NetworkName)
			element.MAC, element.Interface = a.iface.MacAddress, names[a.network.Name]
			elements = append(elements, element)
		}
		if a.iface.Binding == nil {
			continue
		}
		plugin, ok := in.Config.NetworkBindings[a.iface.Binding.Name]
		if !ok {
			return nil, unregistered(a.at, a.iface.Binding.Name)
		}
		if plugin.NetworkAttachmentDefinition != "" {
			element := nadElement(in.VMI.Namespace, plugin.NetworkAttachmentDefinition)
			element.CNIArgs = map[string]any{"logicNetworkName": a.network.Name}
			elements = append(elements, element)
		}
	}
	return elements, nil
}

// nic is an interface with its network.
type nic struct {
	at      string // path of the interface in the VMI
	iface   *v1.Interface
	network *v1.Network
}

// nics joins interfaces and networks by name, in the order of the interfaces and without absent ones. In the legacy order,
// of networks, absent ones are included: their interface on the source counts in the numbering.
func nics(spec *v1.VirtualMachineInstanceSpec, legacy bool) (all []nic) {
	interfaces, networks := spec.Domain.Devices.Interfaces, spec.Networks
	join := func(i, n int) {
		if i >= 0 && n >= 0 {
			all = append(all, nic{at: elementOf(vmiInterfaces, i), iface: &interfaces[i], network: &networks[n]})
		}
	}
	if legacy {
		for n := range networks {
			join(interfaceOf(interfaces, networks[n].Name), n)
		}
		return all
	}
	for i := range interfaces {
		if interfaces[i].State != v1.InterfaceStateAbsent {
			join(i, networkOf(networks, interfaces[i].Name))
		}
	}
	return all
}

// interfaceOf and networkOf return the index of the first of a name, or -1. The lists are too short for an index.
func interfaceOf(list []v1.Interface, name string) int {
	for i := range list {
		if list[i].Name == name {
			return i
		}
	}
	return -1
}

func networkOf(list []v1.Network, name string) int {
	for i := range list {
		if list[i].Name == name {
			return i
		}
	}
	return -1
}

func unregistered(at, plugin string) *render.Error {
	return render.Invalid(at+".binding.name", fmt.Sprintf("network binding plugin %q is not registered", plugin),
		"register it in Config.NetworkBindings, or use another binding")
}

func nadElement(vmiNamespace, reference string) NetworkElement {
	namespace, name := nadReference(vmiNamespace, reference)
	return NetworkElement{Name: name, Namespace: namespace}
}

// nadReference splits the name of a NetworkAttachmentDefinition; its namespace defaults to the VMI's.
func nadReference(vmiNamespace, reference string) (namespace, name string) {
	if namespace, name, ok := strings.Cut(reference, "/"); ok {
		return namespace, name
	}
	return vmiNamespace, reference
}

var ordinalName = regexp.MustCompile(`^net\d+$`)

// keepsOrdinalNames reports whether a migration's target must number its interfaces because the source does and the
// launcher does not rename them.
func keepsOrdinalNames(in Input) (bool, error) {
	if in.Migration == nil || in.Migration.SourcePod == nil || in.Config.GateEnabled(gateSecondaryNaming) {
		return false, nil
	}
	text := in.Migration.SourcePod.Annotations[networkStatusAnnotation]
	if text == "" {
		return false, nil
	}
	var statuses []struct {
		Interface string `json:"interface"`
	}
	if err := json.Unmarshal([]byte(text), &statuses); err != nil {
		return false, render.Invalid("Input.Migration.SourcePod.metadata.annotations["+networkStatusAnnotation+"]",
			"must be the network status of multus: "+err.Error(), "restore the value, which determines the source's interface names")
	}
	for _, s := range statuses {
		if ordinalName.MatchString(s.Interface) {
			return true, nil
		}
	}
	return false, nil
}
