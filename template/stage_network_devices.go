// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

const (
	resourceNameAnnotation = "k8s.v1.cni.cncf.io/resourceName"
	networkInfoAnnotation  = "kubevirt.io/network-info"
	networkInfoVolume      = "network-info-annotation"
	passtOverhead          = 250 * mi // of one passt process, as measured by KubeVirt
)

// NetworkOverhead adds the memory of network bindings: 250Mi for passt, and computeResourceOverhead of each network binding
// plugin, once for all interfaces with that plugin. Unregistered plugins add nothing.
type NetworkOverhead struct{}

// Overhead implements OverheadCalculator.
func (NetworkOverhead) Overhead(in Input) (terms []render.Term) {
	passt, seen := false, map[string]bool{}
	for i := range in.VMI.Spec.Domain.Devices.Interfaces {
		iface := &in.VMI.Spec.Domain.Devices.Interfaces[i]
		if iface.PasstBinding != nil && !passt {
			passt = true
			terms = append(terms, bytesTerm("passt", passtOverhead, elementOf(vmiInterfaces, i)+".passtBinding"))
		}
		if iface.Binding == nil || seen[iface.Binding.Name] {
			continue
		}
		seen[iface.Binding.Name] = true
		overhead := in.Config.NetworkBindings[iface.Binding.Name].ComputeResourceOverhead
		if overhead == nil || overhead.Requests.Memory().IsZero() {
			continue
		}
		terms = append(terms, render.Term{
			Name: "network binding plugin " + iface.Binding.Name, Amount: overhead.Requests.Memory().DeepCopy(),
			From: "Config.NetworkBindings[" + iface.Binding.Name + "]",
		})
	}
	return terms
}

// networkDevices requests the devices of networks: those of NetworkAttachmentDefinitions, unless a webhook adds them, and
// those of resource claims.
func networkDevices(d *render.Draft) error {
	if !d.Config().GateEnabled(gateExternalNetInject) {
		if err := networkResources(d); err != nil {
			return err
		}
	}
	if !d.Config().GateEnabled(gateNetworkDRA) {
		return nil
	}
	for i := range d.VMI().Spec.Networks {
		if c := d.VMI().Spec.Networks[i].ResourceClaim; c != nil {
			d.From(elementOf(vmiNetworks, i) + ".resourceClaim").Container(computeContainer).Claim(corev1.ResourceClaim{Name: c.ClaimName, Request: c.RequestName})
		}
	}
	return nil
}

// networkResources requests one device for each network whose definition names a resource, in addition to the VMI's other
// devices.
func networkResources(d *render.Draft) error {
	counts := map[corev1.ResourceName]int64{}
	var errs []error
	for i := range d.VMI().Spec.Networks {
		n := &d.VMI().Spec.Networks[i]
		if n.Multus == nil {
			continue
		}
		name, err := networkResource(d, elementOf(vmiNetworks, i)+".multus.networkName", n.Multus.NetworkName)
		if err != nil {
			errs = append(errs, err)
		} else if name != "" {
			counts[name]++
		}
	}
	compute := d.Container(computeContainer).View()
	if len(errs) > 0 || compute == nil {
		return errors.Join(errs...)
	}
	for _, name := range sortedKeys(counts) {
		request, limit := compute.Resources.Requests[name], compute.Resources.Limits[name]
		pieces := *resource.NewQuantity(counts[name], resource.DecimalSI)
		request.Add(pieces)
		limit.Add(pieces)
		d.From("Facts.NetworkAttachmentDefinitions").Container(computeContainer).Request(name, request)
		d.From("Facts.NetworkAttachmentDefinitions").Container(computeContainer).Limit(name, limit)
	}
	return nil
}

// networkResource returns the resource name of a network's devices; empty if it has none.
func networkResource(d *render.Draft, at, reference string) (corev1.ResourceName, error) {
	namespace, name := nadReference(d.VMI().Namespace, reference)
	nad := d.Facts().NetworkAttachmentDefinitions[namespace+"/"+name]
	if nad == nil {
		return "", &render.Error{
			Field: at, Reason: fmt.Sprintf("NetworkAttachmentDefinition %s/%s not found", namespace, name),
			Remedy: "create it, or use another network", Err: render.ErrMissingFact,
		}
	}
	device := nad.Annotations[resourceNameAnnotation]
	if device == "" {
		return "", nil
	}
	if problems := validation.IsQualifiedName(device); len(problems) > 0 {
		return "", render.Invalid(fmt.Sprintf("Facts.NetworkAttachmentDefinitions[%s/%s].metadata.annotations[%s]", namespace, name, resourceNameAnnotation),
			fmt.Sprintf("%q: %s", device, problems[0]), "use a resource of a device plugin, such as intel.com/sriov")
	}
	return corev1.ResourceName(device), nil
}

// networkInfo adds the file that maps devices to networks. Its annotation is written after the Pod's networks have been set
// up.
func networkInfo(d *render.Draft) error {
	from := networkInfoSource(d)
	if from == "" {
		return nil
	}
	d.From(from).Volume(corev1.Volume{Name: networkInfoVolume, VolumeSource: corev1.VolumeSource{
		DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{
			Path:     "network-info",
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + networkInfoAnnotation + "']"},
		}}},
	}})
	d.From(from).Container(computeContainer).Mount(podInfoMount())
	return nil
}

// networkInfoSource returns the first field that requires the file, if any.
func networkInfoSource(d *render.Draft) string {
	for i := range d.VMI().Spec.Domain.Devices.Interfaces {
		iface := &d.VMI().Spec.Domain.Devices.Interfaces[i]
		if iface.SRIOV != nil || (iface.Binding != nil &&
			d.Config().NetworkBindings[iface.Binding.Name].DownwardAPI == v1.DeviceInfo) {
			return elementOf(vmiInterfaces, i)
		}
	}
	for i := range d.Sidecars() {
		if d.Sidecars()[i].DeviceInfo {
			return d.Sidecars()[i].From
		}
	}
	return ""
}

func podInfoMount() corev1.VolumeMount {
	return corev1.VolumeMount{Name: networkInfoVolume, MountPath: podInfoDir}
}
