// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1 "kubevirt.io/api/core/v1"
)

// hostDevices asks for the host's devices that the guest gets.
func hostDevices(d *Draft) error {
	if err := checkPermitted(d); err != nil {
		return err
	}
	counts := map[string]int64{}
	for _, p := range passedThrough(d.vmi) {
		counts[p.resource]++
	}
	for _, name := range sortedKeys(counts) {
		n := *resource.NewQuantity(counts[name], resource.DecimalSI)
		d.From("spec.domain.devices").Request(computeContainer, corev1.ResourceName(name), n)
		d.From("spec.domain.devices").Limit(computeContainer, corev1.ResourceName(name), n.DeepCopy())
	}
	return nil
}

// passthrough is one device of the host that a guest gets.
type passthrough struct{ kind, field, resource string }

func passedThrough(vmi *v1.VirtualMachineInstance) (all []passthrough) {
	for i, g := range vmi.Spec.Domain.Devices.GPUs {
		all = append(all, passthrough{"GPU", fmt.Sprintf("spec.domain.devices.gpus[%d].deviceName", i), g.DeviceName})
	}
	for i, h := range vmi.Spec.Domain.Devices.HostDevices {
		all = append(all, passthrough{"HostDevice", fmt.Sprintf("spec.domain.devices.hostDevices[%d].deviceName", i), h.DeviceName})
	}
	return all
}

// checkPermitted refuses devices that the cluster's list, if there is one, does not have.
func checkPermitted(d *Draft) error {
	var errs []error
	for _, p := range passedThrough(d.vmi) {
		if p.resource == "" {
			errs = append(errs, invalid(p.field, "is empty", "name the resource of the device"))
		} else if list := d.config.PermittedHostDevices; list != nil && !permitted(list, p.resource) {
			errs = append(errs, invalid(p.field, p.kind+" "+p.resource+" is not permitted in permittedHostDevices configuration",
				"add it to permittedHostDevices or choose another device"))
		}
	}
	return errors.Join(errs...)
}

func permitted(list *v1.PermittedHostDevices, name string) bool {
	return slices.ContainsFunc(list.PciHostDevices, func(h v1.PciHostDevice) bool { return h.ResourceName == name }) ||
		slices.ContainsFunc(list.MediatedDevices, func(h v1.MediatedHostDevice) bool { return h.ResourceName == name }) ||
		slices.ContainsFunc(list.USB, func(h v1.USBHostDevice) bool { return h.ResourceName == name })
}
