// SPDX-License-Identifier: Apache-2.0

package render

import (
	"errors"
	"fmt"
	"strings"

	"github.com/virtloom/virtloom/vmi/validate"
)

// Classes of errors, for errors.Is.
var (
	// ErrInvalid marks input that cannot be rendered.
	ErrInvalid = errors.New("invalid")
	// ErrUnsupported marks a feature that no stage renders, or not with the given feature gates.
	ErrUnsupported = errors.New("not supported")
	// ErrMissingFact marks an object that is missing in Facts or Migration, such as a claim that does not exist yet. A retry
	// with newer facts may succeed.
	ErrMissingFact = errors.New("missing fact")
	// ErrFieldOwned marks a stage that sets a field of another stage.
	ErrFieldOwned = errors.New("field is owned by another stage")
	// ErrStage marks a change of a Renderer with an unknown stage or a duplicate name.
	ErrStage = errors.New("invalid list of stages")
)

// Error is the error of a stage. Err is one of the classes above, except for errors of custom stages.
type Error struct {
	// Stage is the name of the stage that failed.
	Stage string
	// Object is kind, namespace and name of the rendered object, or of the Pod in question.
	Object string
	// Field is the path of the field at fault, such as spec.domain.devices.disks[0].name, in the VMI or, for ErrFieldOwned,
	// in the Pod.
	Field string
	// Reason says why the field is rejected.
	Reason string
	// Remedy says how to fix it. It may be empty.
	Remedy string
	// Err is the class or cause.
	Err error
}

// Error returns stage, object, field, reason and remedy in one line.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "render %s: stage %s", e.Object, e.Stage)
	if e.Field != "" {
		fmt.Fprintf(&b, ": %s", e.Field)
	}
	if e.Reason != "" {
		fmt.Fprintf(&b, ": %s", e.Reason)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, " (%v)", e.Err)
	}
	if e.Remedy != "" {
		fmt.Fprintf(&b, "; %s", e.Remedy)
	}
	return b.String()
}

// Unwrap returns the class or cause.
func (e *Error) Unwrap() error { return e.Err }

// Invalid returns an error of class ErrInvalid. The Renderer adds stage and object.
func Invalid(field, reason, remedy string) *Error {
	return &Error{Field: field, Reason: reason, Remedy: remedy, Err: ErrInvalid}
}

// Refused returns the errors of the faults of a VMI.
func Refused(faults []validate.Fault) (errs []error) {
	for _, f := range faults {
		e := Invalid(f.Field, f.Text(), f.Remedy)
		if f.Kind == validate.Gated {
			e.Err = ErrUnsupported
		}
		errs = append(errs, e)
	}
	return errs
}
