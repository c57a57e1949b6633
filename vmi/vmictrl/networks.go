// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
)

// Annotations of a Pod's networks.
const (
	multusNetworks = "k8s.v1.cni.cncf.io/networks"
	multusStatus   = "k8s.v1.cni.cncf.io/network-status"
	networkInfo    = "kubevirt.io/network-info"
)

// PodAnnotator generates annotations of a running launcher Pod; all others stay unchanged. It
// must be pure; on error no annotation is changed.
type PodAnnotator interface {
	Annotations(in template.Input, pod *corev1.Pod) (map[string]string, error)
}

// ActiveNetworks generates the network annotations of a running launcher Pod:
//
//   - k8s.v1.cni.cncf.io/networks, when an interface is hotplugged that a running Pod can
//     be given, or an interface is unplugged. A controller that attaches running Pods to
//     networks acts on it. Interfaces keep their names in the Pod.
//   - kubevirt.io/network-info, which maps networks to devices for the launcher, once
//     multus has reported them.
//
// (specs: VMI reconciliation 6)
type ActiveNetworks struct{}

// Annotations implements PodAnnotator. An annotation of multus that cannot be parsed, and an
// error of template.MultusAnnotations, is an error.
func (ActiveNetworks) Annotations(in template.Input, pod *corev1.Pod) (map[string]string, error) {
	out := map[string]string{}
	if replugged(in.VMI) {
		made, err := template.MultusAnnotations{Naming: namingOf(pod)}.Annotations(in)
		if err != nil {
			return nil, err
		}
		if networks, found := made[multusNetworks]; found {
			out[multusNetworks] = networks
		} else if _, has := pod.Annotations[multusNetworks]; has {
			out[multusNetworks] = "[]"
		}
	}
	info, err := deviceInfo(in, pod)
	if err != nil {
		return nil, err
	}
	if info != "" {
		out[networkInfo] = info
	}
	return out, nil
}

// replugged reports whether the networks of the running VMI change.
func replugged(vmi *v1.VirtualMachineInstance) bool {
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		iface := &vmi.Spec.Domain.Devices.Interfaces[i]
		if iface.State == v1.InterfaceStateAbsent {
			return true
		}
		known := slices.ContainsFunc(vmi.Status.Interfaces, func(s v1.VirtualMachineInstanceNetworkInterface) bool { return s.Name == iface.Name })
		if iface.SRIOV == nil && !known && secondary(vmi, iface.Name) {
			return true
		}
	}
	return false
}

func secondary(vmi *v1.VirtualMachineInstance, network string) bool {
	return slices.ContainsFunc(vmi.Spec.Networks, func(n v1.Network) bool {
		return n.Name == network && n.Multus != nil && !n.Multus.Default
	})
}

var ordinal = regexp.MustCompile(`"interface":\s*"net\d+"`)

// namingOf returns the naming of interfaces used in the Pod.
func namingOf(pod *corev1.Pod) template.InterfaceNaming {
	if ordinal.MatchString(pod.Annotations[multusNetworks]) {
		return template.OrdinalNames{}
	}
	return template.HashedNames{}
}

// status is an element of the annotation k8s.v1.cni.cncf.io/network-status.
type status struct {
	Interface  string          `json:"interface"`
	MAC        string          `json:"mac,omitempty"`
	DeviceInfo json.RawMessage `json:"device-info,omitempty"`
}

// info is an element of the annotation kubevirt.io/network-info.
type info struct {
	Network    string          `json:"network"`
	DeviceInfo json.RawMessage `json:"deviceInfo,omitempty"`
	MAC        string          `json:"mac,omitempty"`
}

// deviceInfo returns the annotation kubevirt.io/network-info; empty if there is no device to
// report, yet or at all.
func deviceInfo(in template.Input, pod *corev1.Pod) (string, error) {
	report := pod.Annotations[multusStatus]
	if report == "" {
		return "", nil
	}
	names := namingOf(pod).InterfaceNames(in.VMI.Spec.Networks)
	var statuses []status
	var infos []info
	for i := range in.VMI.Spec.Domain.Devices.Interfaces {
		iface := &in.VMI.Spec.Domain.Devices.Interfaces[i]
		if !needsDeviceInfo(in, iface) || !secondary(in.VMI, iface.Name) {
			continue
		}
		if statuses == nil {
			if err := json.Unmarshal([]byte(report), &statuses); err != nil {
				return "", fmt.Errorf("vmictrl: Pod %s/%s: annotation %s: %w", pod.Namespace, pod.Name, multusStatus, err)
			}
		}
		at := slices.IndexFunc(statuses, func(s status) bool { return s.Interface == names[iface.Name] })
		if at >= 0 {
			infos = append(infos, info{iface.Name, statuses[at].DeviceInfo, statuses[at].MAC})
		}
	}
	if len(infos) == 0 {
		return "", nil
	}
	out, err := json.Marshal(map[string][]info{"interfaces": infos})
	return string(out), err
}

func needsDeviceInfo(in template.Input, iface *v1.Interface) bool {
	return iface.SRIOV != nil ||
		iface.Binding != nil && in.Config.NetworkBindings[iface.Binding.Name].DownwardAPI == v1.DeviceInfo
}
