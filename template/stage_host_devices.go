// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// hostDevices requests the VMI's host devices: by the resource name of a device plugin, or by a claim of the Pod for
// dynamic resource allocation. A device by claim whose feature gate is disabled is omitted, as in KubeVirt.
func hostDevices(d *render.Draft) error {
	devices := passedThrough(d)
	if err := errors.Join(slices.Concat(checkClaims(d.VMI().Spec.ResourceClaims), checkPassthrough(d, devices))...); err != nil {
		return err
	}
	if len(devices) == 0 {
		return nil
	}
	plugged := map[corev1.ResourceName][]render.Term{}
	for i := range devices {
		p := &devices[i]
		switch {
		case p.resource != "":
			name := corev1.ResourceName(p.resource)
			plugged[name] = append(plugged[name], render.Term{
				Name: p.kind + " " + p.name, Amount: *resource.NewQuantity(1, resource.DecimalSI), From: p.field,
			})
		case p.claimable:
			d.From(p.field).Container(computeContainer).Claim(corev1.ResourceClaim{Name: p.claim.ClaimName, Request: p.claim.RequestName})
		}
	}
	for _, name := range sortedKeys(plugged) {
		n := *resource.NewQuantity(int64(len(plugged[name])), resource.DecimalSI)
		from := d.From(plugged[name][0].From).Terms(plugged[name]...)
		from.Container(computeContainer).Request(name, n)
		from.Container(computeContainer).Limit(name, n)
	}
	return nil
}

// passthrough is one host device of a VMI.
type passthrough struct {
	kind, name, field string
	resource          string
	claim             *v1.ClaimRequest
	gate              string // for claims of this kind
	claimable         bool   // the gate is enabled
}

// passedThrough returns the GPUs, then the other devices, each in the order of the VMI.
func passedThrough(d *render.Draft) []passthrough {
	devices := &d.VMI().Spec.Domain.Devices
	if len(devices.GPUs)+len(devices.HostDevices) == 0 {
		return nil
	}
	var all []passthrough
	claimable := d.Config().GateEnabled(gateGPUsWithDRA)
	for i := range devices.GPUs {
		g := &devices.GPUs[i]
		all = append(all, passthrough{
			"GPU", g.Name, elementOf("spec.domain.devices.gpus", i), g.DeviceName, g.ClaimRequest, gateGPUsWithDRA, claimable,
		})
	}
	claimable = d.Config().GateEnabled(gateHostDevicesDRA)
	for i := range devices.HostDevices {
		h := &devices.HostDevices[i]
		all = append(all, passthrough{
			"HostDevice", h.Name, elementOf("spec.domain.devices.hostDevices", i), h.DeviceName, h.ClaimRequest, gateHostDevicesDRA, claimable,
		})
	}
	return all
}

// checkPassthrough rejects invalid devices, and devices that are not in the cluster's list, if there is one.
func checkPassthrough(d *render.Draft, devices []passthrough) (errs []error) {
	for i := range devices {
		p := &devices[i]
		at := p.field + ".deviceName"
		switch {
		case p.resource == "" && p.claim == nil:
			errs = append(errs, render.Invalid(at, "must be set without a claim", "set the resource of the device, or a claim and its request"))
		case p.resource != "" && p.claim != nil:
			errs = append(errs, render.Invalid(at, "must not be set with a claim", "keep one of them"))
		case p.claim != nil:
			errs = append(errs, checkClaimed(d, p)...)
		default:
			errs = append(errs, checkPlugged(d.Config().PermittedHostDevices, at, p)...)
		}
	}
	return errs
}

func checkPlugged(list *v1.PermittedHostDevices, at string, p *passthrough) []error {
	if list != nil && !permitted(list, p.resource) {
		return []error{render.Invalid(at, p.kind+" "+p.resource+" is not permitted in permittedHostDevices configuration",
			"add it to permittedHostDevices or choose another device")}
	}
	if !handedOut(p.resource) {
		return []error{render.Invalid(at, fmt.Sprintf("%q must be a resource of a device plugin", p.resource), "use a name such as vendor.com/device")}
	}
	return nil
}

// checkClaimed rejects a device whose claim the Pod does not have. If the gate is disabled, a list permits no claims.
func checkClaimed(d *render.Draft, p *passthrough) []error {
	if p.claimable {
		return checkClaimRequest(p.field, p.claim, d.VMI().Spec.ResourceClaims)
	}
	if d.Config().PermittedHostDevices == nil {
		return nil
	}
	return []error{render.Invalid(p.field, p.kind+" "+p.name+" is not permitted in permittedHostDevices configuration: claims of this kind are disabled",
		"enable feature gate "+p.gate+", or set the resource of a device plugin")}
}

// handedOut reports whether a name is valid for device plugins: qualified, and neither Kubernetes' own nor the launcher's.
func handedOut(name string) bool {
	return strings.Contains(name, "/") && !strings.Contains(name, corev1.ResourceDefaultNamespacePrefix) &&
		!slices.Contains(launcherDevices, corev1.ResourceName(name)) && len(validation.IsQualifiedName("requests."+name)) == 0
}

func permitted(list *v1.PermittedHostDevices, name string) bool {
	return slices.ContainsFunc(list.PciHostDevices, func(h v1.PciHostDevice) bool { return h.ResourceName == name }) ||
		slices.ContainsFunc(list.MediatedDevices, func(h v1.MediatedHostDevice) bool { return h.ResourceName == name }) ||
		slices.ContainsFunc(list.USB, func(h v1.USBHostDevice) bool { return h.ResourceName == name })
}

// checkClaims rejects claims with invalid references.
func checkClaims(claims []v1.VirtualMachineInstanceResourceClaim) (errs []error) {
	for i := range claims {
		field, name := ".resourceClaimName", claims[i].ResourceClaimName
		if name == nil {
			field, name = ".resourceClaimTemplateName", claims[i].ResourceClaimTemplateName
		}
		if name == nil {
			continue
		}
		if problems := validation.IsDNS1123Subdomain(*name); len(problems) > 0 {
			errs = append(errs, render.Invalid(elementOf("spec.resourceClaims", i)+field, fmt.Sprintf("%q: %s", *name, problems[0]),
				"use an object of the VMI's namespace"))
		}
	}
	return errs
}

// checkClaimRequest rejects a device whose claim the Pod does not have.
func checkClaimRequest(at string, c *v1.ClaimRequest, claims []v1.VirtualMachineInstanceResourceClaim) []error {
	if !slices.ContainsFunc(claims, func(r v1.VirtualMachineInstanceResourceClaim) bool { return r.Name == c.ClaimName }) {
		return []error{render.Invalid(at+".claimName", fmt.Sprintf("resource claim %q is not defined", c.ClaimName), "add it to spec.resourceClaims")}
	}
	if problems := validation.IsDNS1123Label(c.RequestName); len(problems) > 0 {
		return []error{render.Invalid(at+".requestName", fmt.Sprintf("%q: %s", c.RequestName, problems[0]), "use a request of the claim")}
	}
	return nil
}
