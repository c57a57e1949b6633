// SPDX-License-Identifier: Apache-2.0

package domain

import (
	v1 "kubevirt.io/api/core/v1"
)

// Name returns the name of the domain of a VirtualMachineInstance.
func Name(namespace, name string) string { return namespace + "_" + name }

// UUID returns the UUID of the domain: spec.domain.firmware.uuid if it is set, else the
// UID of the object. libvirt requires that the UUID in the guest's system information is
// that of the domain.
func UUID(vmi *v1.VirtualMachineInstance) string {
	if fw := vmi.Spec.Domain.Firmware; fw != nil && fw.UUID != "" {
		return string(fw.UUID)
	}
	return string(vmi.UID)
}
