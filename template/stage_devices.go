// SPDX-License-Identifier: Apache-2.0

package template

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
)

const devicePrefix = "devices.kubevirt.io/"

// deviceResources asks for what device plugins hand out. It overrides the resources of the VMI, which cannot
// name these devices in another amount.
func deviceResources(d *Draft) error {
	devices := &d.vmi.Spec.Domain.Devices
	one := *resource.NewQuantity(1, resource.DecimalSI)
	for _, device := range []struct {
		name   string
		needed bool
	}{
		{"kvm", !d.config.AllowEmulation},
		{"tun", len(devices.Interfaces) > 0 || devices.AutoattachPodInterface == nil || *devices.AutoattachPodInterface},
		{"vhost-net", !d.config.AllowEmulation && slices.ContainsFunc(devices.Interfaces, isVirtio)},
		{"vhost-vsock", isTrue(devices.AutoattachVSOCK)},
	} {
		if device.needed {
			d.Limit(computeContainer, corev1.ResourceName(devicePrefix+device.name), one.DeepCopy())
		}
	}
	return nil
}

func isVirtio(i v1.Interface) bool { return i.Model == "" || i.Model == v1.VirtIO }
