// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"regexp"
	"strings"
)

var uuidForm = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// identity sets name, uuid, type, emulator and metadata.
func identity(c *Conversion) error {
	for _, v := range []struct{ field, value string }{
		{"metadata.namespace", c.VMI.Namespace}, {"metadata.name", c.VMI.Name}, {"metadata.uid", string(c.VMI.UID)},
	} {
		if v.value == "" || strings.ContainsAny(v.value, "/\n") {
			return c.Invalid(v.field, fmt.Sprintf("%q cannot name a domain", v.value), "convert an object that the API server has stored")
		}
	}
	uuid, field := UUID(c.VMI), "metadata.uid"
	if fw := c.VMI.Spec.Domain.Firmware; fw != nil && fw.UUID != "" {
		field = specDomain + "firmware.uuid"
	}
	if !uuidForm.MatchString(uuid) {
		return c.Invalid(field, fmt.Sprintf("%q is no UUID", uuid), "use the form 01234567-89ab-cdef-0123-456789abcdef")
	}
	d := c.Domain
	d.Name = Name(c.VMI.Namespace, c.VMI.Name)
	d.UUID = strings.ToLower(uuid)
	d.Type = "kvm"
	if c.Facts.Emulation {
		d.Type = "qemu"
	}
	d.Devices.Emulator = c.Facts.Emulator
	m := Metadata{Namespace: c.VMI.Namespace, Name: c.VMI.Name, UID: c.VMI.UID, Epoch: c.Facts.Epoch}
	if err := PutMetadata(d, m); err != nil {
		return &Error{Object: c.object(), Field: "metadata", Reason: "cannot be stored in the domain",
			Remedy: "use names that XML can hold", Err: err}
	}
	return nil
}
