// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"regexp"
	"strings"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
)

var uuidForm = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// identity sets name, uuid, type, emulator and metadata.
func identity(c *Conversion) error {
	for _, v := range []struct{ field, value string }{
		{"metadata.namespace", c.VMI.Namespace}, {"metadata.name", c.VMI.Name}, {"metadata.uid", string(c.VMI.UID)},
	} {
		if v.value == "" || strings.ContainsAny(v.value, "/\n") {
			return c.Invalid(v.field, fmt.Sprintf("Invalid value: %q", v.value), "convert an object that the API server has stored")
		}
	}
	uuid, field := UUID(c.VMI), "metadata.uid"
	if fw := c.VMI.Spec.Domain.Firmware; fw != nil && fw.UUID != "" {
		field = specDomain + "firmware.uuid"
	}
	if !uuidForm.MatchString(uuid) {
		return c.Invalid(field, fmt.Sprintf("Invalid value: %q is not a UUID", uuid), "use the form 01234567-89ab-cdef-0123-456789abcdef")
	}
	d := c.Domain
	d.Name = domain.Name(c.VMI.Namespace, c.VMI.Name)
	d.UUID = strings.ToLower(uuid)
	d.Type = "kvm"
	if c.Facts.Emulation {
		d.Type = "qemu"
	}
	d.Devices.Emulator = c.Facts.Emulator
	m := domain.Metadata{Namespace: c.VMI.Namespace, Name: c.VMI.Name, UID: c.VMI.UID, Epoch: c.Facts.Epoch}
	if err := m.Put(d); err != nil {
		return &Error{Object: c.object(), Field: "metadata", Reason: "cannot be stored in the metadata of the domain",
			Remedy: "use names without characters that XML forbids", Err: err}
	}
	return nil
}

// UUID returns the UUID of the domain: spec.domain.firmware.uuid if it is set, else the
// UID of the object. libvirt requires that the UUID in the guest's system information is
// that of the domain.
func UUID(vmi *v1.VirtualMachineInstance) string {
	if fw := vmi.Spec.Domain.Firmware; fw != nil && fw.UUID != "" {
		return string(fw.UUID)
	}
	return string(vmi.UID)
}
