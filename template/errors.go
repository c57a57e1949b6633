// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"strings"
)

// Classes of errors, to be tested with errors.Is.
var (
	// ErrInvalid marks input that no Pod can be rendered from.
	ErrInvalid = errors.New("invalid")
	// ErrUnsupported marks a feature that no stage renders, or not with the given feature gates.
	ErrUnsupported = errors.New("not supported")
	// ErrMissingFact marks a reading that Facts or Migration lack, such as a claim that does not exist (yet). Trying
	// again with newer facts may succeed.
	ErrMissingFact = errors.New("missing fact")
	// ErrFieldOwned marks a stage that sets a field which another stage owns.
	ErrFieldOwned = errors.New("field is owned by another stage")
	// ErrStage marks a change of a Renderer that names an unknown stage or repeats a name.
	ErrStage = errors.New("no such list of stages")
)

// Error is the error of a stage. It wraps one of the classes above in Err, except for errors of custom stages.
type Error struct {
	// Stage is the name of the stage that failed.
	Stage string
	// Object is kind, namespace and name of what is rendered, or of the Pod that is asked about.
	Object string
	// Field is the path of the field at fault, such as spec.domain.devices.disks[0].name, in the VMI or, for
	// ErrFieldOwned, in the Pod.
	Field string
	// Reason says what is wrong.
	Reason string
	// Remedy says what to do about it. It may be empty.
	Remedy string
	// Err is the class or cause.
	Err error
}

// Error names stage, object, field, reason and remedy in one line.
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

func invalid(field, reason, remedy string) *Error {
	return &Error{Field: field, Reason: reason, Remedy: remedy, Err: ErrInvalid}
}
