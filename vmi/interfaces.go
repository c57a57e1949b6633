// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

const (
	networksAnnotation      = "k8s.v1.cni.cncf.io/networks"
	networkStatusAnnotation = "k8s.v1.cni.cncf.io/network-status"

	// Values of infoSource in status.interfaces.
	sourceMultus = "multus-status"
	sourceDomain = "domain"

	// defaultPodInterface is the name of the Pod's primary interface unless multus
	// reports another one.
	defaultPodInterface = "eth0"
)

// Interfaces returns the new value of status.interfaces: the stored list, updated from
// the Pod. Neither argument is modified. (specs: VMI reconciliation 6)
//
// The list has two writers, and each preserves the fields of the other:
//
//   - the controller owns podInterfaceName and the value multus-status in infoSource,
//     for the default network and the multus networks of the spec. It adds a missing
//     entry for the default network, and for a multus network that the Pod is attached
//     to. It neither removes nor moves entries: a new one is placed first (the default
//     network) or after the last one of the spec;
//   - the node agent owns every other field, the rest of infoSource, the order, and the
//     entries of all other networks (resource claims) and those not in the spec (found
//     by the guest agent). It removes stale entries, but neither that of the default
//     network nor one with multus-status.
//
// So each writer keeps the other's values, and in steady state neither changes anything; a
// test of both together ensures this.
//
// An annotation of multus that cannot be parsed is an error: the names of the Pod's
// interfaces are unknown then. If pod is nil, the stored list is returned.
func Interfaces(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) ([]v1.VirtualMachineInstanceNetworkInterface, error) {
	var out []v1.VirtualMachineInstanceNetworkInterface
	for i := range vmi.Status.Interfaces {
		out = append(out, *vmi.Status.Interfaces[i].DeepCopy())
	}
	if pod == nil {
		return out, nil
	}
	attached, err := linksOf(pod)
	if err != nil {
		return nil, err
	}
	if n := defaultNetwork(vmi.Spec.Networks); n != nil {
		i := interfaceNamed(out, n.Name)
		if i < 0 {
			out, i = slices.Insert(out, 0, v1.VirtualMachineInstanceNetworkInterface{Name: n.Name}), 0
		}
		out[i].PodInterfaceName = attached.primary()
	}
	names := podInterfaceNames(vmi.Spec.Networks, attached)
	for k := range vmi.Spec.Networks {
		n := &vmi.Spec.Networks[k]
		if !secondary(n) {
			continue
		}
		on, i := attached.has(names[n.Name]), interfaceNamed(out, n.Name)
		if i < 0 && !on {
			continue
		}
		if i < 0 {
			i = behindSpec(out, vmi.Spec.Networks)
			out = slices.Insert(out, i, v1.VirtualMachineInstanceNetworkInterface{Name: n.Name})
		}
		out[i].PodInterfaceName = names[n.Name]
		out[i].InfoSource = withSource(out[i].InfoSource, sourceMultus, on)
	}
	return out, nil
}

// podLink is one interface of the Pod, as reported by multus.
type podLink struct {
	Interface string `json:"interface"`
	Default   bool   `json:"default"`
}

// podLinks are the interfaces of one Pod.
type podLinks []podLink

// linksOf parses the report of multus; a Pod without a report has no links.
func linksOf(pod *corev1.Pod) (podLinks, error) {
	text := pod.Annotations[networkStatusAnnotation]
	if text == "" {
		return nil, nil
	}
	var all podLinks
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("vmi: Pod %s/%s: annotation %s: Invalid value, the names of its interfaces are unknown; find out who changed it: %w",
			pod.Namespace, pod.Name, networkStatusAnnotation, err)
	}
	return all, nil
}

func (p podLinks) primary() string {
	for _, a := range p {
		if a.Default && a.Interface != "" {
			return a.Interface
		}
	}
	return defaultPodInterface
}

func (p podLinks) has(name string) bool {
	return slices.ContainsFunc(p, func(a podLink) bool { return a.Interface == name })
}

var ordinalInterface = regexp.MustCompile(`^net\d+$`)

// podInterfaceNames returns the names of the Pod's interfaces by multus network: ordinal in
// a Pod that already has such names, as rendered by old releases, otherwise hashed.
func podInterfaceNames(networks []v1.Network, attached podLinks) map[string]string {
	ordinal := slices.ContainsFunc(attached, func(a podLink) bool { return ordinalInterface.MatchString(a.Interface) })
	names := map[string]string{}
	for i := range networks {
		switch n := &networks[i]; {
		case !secondary(n):
		case ordinal:
			names[n.Name] = fmt.Sprintf("net%d", len(names)+1)
		default:
			sum := sha256.Sum256([]byte(n.Name))
			names[n.Name] = "pod" + hex.EncodeToString(sum[:])[:11]
		}
	}
	return names
}

// defaultNetwork returns the network of the Pod's address; nil if there is none.
func defaultNetwork(networks []v1.Network) *v1.Network {
	for i := range networks {
		if n := &networks[i]; n.Pod != nil || n.Multus != nil && n.Multus.Default {
			return n
		}
	}
	return nil
}

func secondary(n *v1.Network) bool { return n.Multus != nil && !n.Multus.Default }

func interfaceNamed(list []v1.VirtualMachineInstanceNetworkInterface, name string) int {
	return slices.IndexFunc(list, func(s v1.VirtualMachineInstanceNetworkInterface) bool { return s.Name == name })
}

// behindSpec returns the index after the last entry of a network of the spec.
func behindSpec(list []v1.VirtualMachineInstanceNetworkInterface, networks []v1.Network) int {
	for i := len(list) - 1; i >= 0; i-- {
		if slices.ContainsFunc(networks, func(n v1.Network) bool { return n.Name == list[i].Name }) {
			return i + 1
		}
	}
	return 0
}

// withSource adds a value to infoSource, or removes it; the others keep their order.
func withSource(sources, word string, there bool) string {
	if hasSource(sources, word) == there {
		return sources
	}
	if there && sources == "" {
		return word
	}
	if there {
		return sources + ", " + word
	}
	words := slices.DeleteFunc(strings.Split(sources, ","), func(s string) bool { return strings.TrimSpace(s) == word })
	for i := range words {
		words[i] = strings.TrimSpace(words[i])
	}
	return strings.Join(words, ", ")
}

func hasSource(sources, word string) bool {
	for s := range strings.SplitSeq(sources, ",") {
		if strings.TrimSpace(s) == word {
			return true
		}
	}
	return false
}

// SpecValidator validates a VirtualMachineInstance before its Pod is created; any cause it
// returns blocks the Pod. It must not modify vmi. The default rejects the network
// bindings slirp, macvtap and the old passt, which KubeVirt has removed.
// (specs: VMI reconciliation 2.2 #15)
type SpecValidator func(vmi *v1.VirtualMachineInstance) []metav1.StatusCause

// discontinuedBindings is the default SpecValidator: it rejects the network bindings that
// KubeVirt has removed (slirp, macvtap and the old passt) and nothing else; all other
// validation belongs to admission.
func discontinuedBindings(vmi *v1.VirtualMachineInstance) []metav1.StatusCause {
	var causes []metav1.StatusCause
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		in := &vmi.Spec.Domain.Devices.Interfaces[i]
		for _, b := range []struct {
			set          bool
			name, remedy string
		}{
			{in.DeprecatedSlirp != nil, "slirp", "use masquerade or passtBinding"},
			{in.DeprecatedMacvtap != nil, "macvtap", "use a network binding plugin for macvtap"},
			{in.DeprecatedPasst != nil, "passt", "use passtBinding"},
		} {
			if b.set {
				causes = append(causes, metav1.StatusCause{
					Type:    metav1.CauseTypeFieldValueInvalid,
					Field:   fmt.Sprintf("spec.domain.devices.interfaces[%d].%s", i, b.name),
					Message: "the binding is not supported, KubeVirt has removed it; " + b.remedy,
				})
			}
		}
	}
	return causes
}
