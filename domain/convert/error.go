// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"slices"
	"strings"

	"github.com/virtloom/virtloom/domain"
)

// Error is a defect of a spec, or of a node, that prevents a domain. It names the change
// that its owner has to make.
type Error struct {
	// Object names the defective object: "VirtualMachineInstance ns/name".
	Object string
	// Field is the path in the object, spec.domain.devices.disks[0].disk.bus; empty if
	// the cause is not a single field.
	Field string
	// Reason is the defect.
	Reason string
	// Remedy is the change that repairs it; may be empty.
	Remedy string
	// Err is the cause, or a sentinel such as ErrUnsupported; may be nil.
	Err error
}

// Error implements error: object, field, reason, cause and remedy in one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Object)
	if e.Field != "" {
		b.WriteString(": " + e.Field)
	}
	b.WriteString(": " + e.Reason)
	// A sentinel alone adds nothing to the reason.
	if e.Err != nil && !slices.Contains([]error{domain.ErrUnsupported, domain.ErrInvalid}, e.Err) {
		b.WriteString(": " + e.Err.Error())
	}
	if e.Remedy != "" {
		b.WriteString(" (" + e.Remedy + ")")
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
