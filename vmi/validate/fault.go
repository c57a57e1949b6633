// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"reflect"
	"strconv"
)

// Kind is the class of a Fault.
type Kind int

const (
	// Invalid marks a value that is never valid.
	Invalid Kind = iota
	// Required marks a field that must be set.
	Required
	// Forbidden marks a field that must not be set in this cluster.
	Forbidden
	// Excess marks a list, map or text beyond its maximum.
	Excess
	// Gated marks a field whose feature gate is disabled.
	Gated
)

// Fault is one violation of a rule by a VMI.
type Fault struct {
	Kind Kind
	// Field is the path of the field, such as spec.volumes[2].hostDisk.
	Field string
	// Value is the field's value; nil for a field that must be set, or must not be set at all. A fmt.Stringer is a value that
	// has been shortened or measured.
	Value any
	// Reason says why the value is rejected, Remedy how to fix it.
	Reason, Remedy string

	// sentence marks a Reason that is Kubernetes' own text and no predicate of the value.
	sentence bool
}

// Text returns value and reason in one string, for errors that have no field for the value. Texts of users are quoted and
// shortened.
func (f Fault) Text() string {
	reason := " " + f.Reason
	if f.sentence {
		reason = ": " + f.Reason
	}
	switch v := reflect.Indirect(reflect.ValueOf(f.Value)); {
	case !v.IsValid():
		return f.Reason
	case v.Kind() != reflect.String:
		return fmt.Sprint(v.Interface()) + reason
	case v.Type() == reflect.TypeFor[brief]():
		return v.String() + reason
	default:
		return shorten(v.String()).String() + reason
	}
}

// brief is a value as it appears in messages: an amount, a number of elements, or the quoted beginning of a text.
type brief string

// String implements fmt.Stringer, by which readers recognize a shortened value.
func (b brief) String() string { return string(b) }

// shorten returns the beginning of a user's text, quoted.
func shorten(s string) brief {
	const most = 64
	if len(s) > most {
		s = s[:most] + "..."
	}
	return brief(strconv.Quote(s))
}
