// SPDX-License-Identifier: Apache-2.0

package domain

import (
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// Name returns the name of the domain of a VirtualMachineInstance.
func Name(namespace, name string) string { return namespace + "_" + name }

// UUID returns the UUID of the domain: the one in the spec's firmware section if
// there is one, else the UID of the object.
func UUID(vmi *v1.VirtualMachineInstance) string {
	if fw := vmi.Spec.Domain.Firmware; fw != nil && fw.UUID != "" {
		return string(fw.UUID)
	}
	return string(vmi.UID)
}

// Pass is one step of a conversion.
type Pass struct {
	// Name identifies the pass in lists and errors.
	Name string
	// Apply adds its part to c.Domain, or returns an *Error.
	Apply func(c *Conversion) error
}

// Conversion is what passes work on. Passes read VMI and Facts and change Domain.
type Conversion struct {
	VMI    *v1.VirtualMachineInstance
	Facts  Facts
	Domain *libvirtxml.Domain
}

// Passes returns the stock list in order; the slice is the caller's.
func Passes() []Pass { return nil }

// Convert returns the domain of a VirtualMachineInstance on a node with those
// facts. It is deterministic and changes neither argument. What cannot be
// converted, or is not supported yet and would change what the guest is, is an
// [*Error] that names field and remedy.
func Convert(vmi *v1.VirtualMachineInstance, f Facts) (*libvirtxml.Domain, error) {
	return ConvertWith(vmi, f, Passes())
}

// ConvertWith is Convert with a list of passes of the caller's own.
func ConvertWith(vmi *v1.VirtualMachineInstance, f Facts, passes []Pass) (*libvirtxml.Domain, error) {
	c := &Conversion{VMI: vmi, Facts: f, Domain: &libvirtxml.Domain{}}
	for _, p := range passes {
		if err := p.Apply(c); err != nil {
			return nil, err
		}
	}
	return c.Domain, nil
}
