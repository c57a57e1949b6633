// SPDX-License-Identifier: Apache-2.0

package template

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template/render"
)

// Devices of virt-handler's device plugins.
const (
	devicePrefix = "devices.kubevirt.io/"

	deviceKVM      = corev1.ResourceName(devicePrefix + "kvm")
	deviceMSHV     = corev1.ResourceName(devicePrefix + "mshv")
	deviceTun      = corev1.ResourceName(devicePrefix + "tun")
	deviceVhostNet = corev1.ResourceName(devicePrefix + "vhost-net")
	deviceVsock    = corev1.ResourceName(devicePrefix + "vhost-vsock")
	deviceSEV      = corev1.ResourceName(devicePrefix + "sev")
	deviceTDX      = corev1.ResourceName(devicePrefix + "tdx")
	devicePRHelper = corev1.ResourceName(devicePrefix + "pr-helper")
	deviceIOMMUFD  = corev1.ResourceName(devicePrefix + "iommufd")
	fieldSecurity  = "spec.domain.launchSecurity"
)

// launcherDevices are those that the launcher requests itself.
var launcherDevices = []corev1.ResourceName{
	deviceKVM, deviceMSHV, deviceTun, deviceVhostNet, deviceVsock, deviceSEV, deviceTDX, devicePRHelper, deviceIOMMUFD,
}

// pluginDevice is a device that a VMI needs at most once.
type pluginDevice struct {
	name   corev1.ResourceName
	needed bool
	from   string
	// requested sets the request as well, which the API server would otherwise default.
	requested bool
}

// deviceResources requests the devices of device plugins. It overrides the resources of the VMI, which cannot request other
// amounts of these devices.
func deviceResources(d *render.Draft) error {
	if s := d.VMI().Spec.Domain.LaunchSecurity; s != nil && (s.SEV != nil && s.SNP != nil || s.TDX != nil && (s.SEV != nil || s.SNP != nil)) {
		return render.Invalid(fieldSecurity, "must specify one kind of protection", "keep one of sev, snp and tdx")
	}
	for _, device := range guestDevices(d) {
		if !device.needed {
			continue
		}
		one := *resource.NewQuantity(1, resource.DecimalSI)
		from := d.From(device.from)
		from.Container(computeContainer).Limit(device.name, one)
		if device.requested {
			from.Container(computeContainer).Request(device.name, one)
		}
	}
	return nil
}

func guestDevices(d *render.Draft) []pluginDevice {
	devices := &d.VMI().Spec.Domain.Devices
	security := d.VMI().Spec.Domain.LaunchSecurity
	if security == nil {
		security = &v1.LaunchSecurity{}
	}
	hypervisor := deviceKVM
	if d.Config().Hypervisor == v1.HyperVDirectHypervisorName {
		hypervisor = deviceMSHV
	}
	accelerated := !d.Config().AllowEmulation
	tun := len(devices.Interfaces) > 0 || devices.AutoattachPodInterface == nil || *devices.AutoattachPodInterface
	reserves := slices.ContainsFunc(devices.Disks, func(disk v1.Disk) bool { return disk.LUN != nil && disk.LUN.Reservation })
	return []pluginDevice{
		{name: hypervisor, needed: accelerated, from: "Config.Hypervisor, Config.AllowEmulation"},
		{name: deviceTun, needed: tun, from: "spec.domain.devices.autoattachPodInterface, " + vmiInterfaces},
		{name: deviceVhostNet, needed: accelerated && slices.ContainsFunc(devices.Interfaces, isVirtio), from: vmiInterfaces},
		{name: deviceVsock, needed: ptr.Deref(devices.AutoattachVSOCK, false), from: "spec.domain.devices.autoattachVSOCK"},
		{name: deviceSEV, needed: security.SEV != nil || security.SNP != nil, from: fieldSecurity, requested: true},
		{name: deviceTDX, needed: security.TDX != nil, from: fieldSecurity, requested: true},
		{name: devicePRHelper, needed: reserves, from: vmiDisks, requested: true},
		{name: deviceIOMMUFD, needed: d.Config().GateEnabled(gateIOMMUFD), from: "Config.FeatureGates", requested: true},
	}
}

// isVirtio reports whether an interface's packets go through the node's kernel. An SR-IOV interface without a model counts.
func isVirtio(i v1.Interface) bool { return i.Model == "" || i.Model == v1.VirtIO }
