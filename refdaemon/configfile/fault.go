// SPDX-License-Identifier: Apache-2.0

package configfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Fault is one error in a configuration.
type Fault struct {
	// File and Line locate it. File is empty if a flag is invalid or missing;
	// Line is zero if no line can be named.
	File string
	Line int
	// Flag is the flag of the field, without dashes; empty if none.
	Flag string
	// Field is the path of the field; empty for the whole file.
	Field string
	// Reason says what is wrong, and the remedy.
	Reason string
}

// Error implements error.
func (f Fault) Error() string {
	if f.File == "" {
		return fmt.Sprintf("--%s %s", f.Flag, f.Reason)
	}
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
	}
	b.WriteString(": ")
	if f.Field != "" {
		b.WriteString(f.Field + ": ")
	}
	b.WriteString(f.Reason)
	return b.String()
}

// Faults are all errors in a configuration.
type Faults []Fault

// Error implements error: one line for each fault.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i := range f {
		lines[i] = f[i].Error()
	}
	return strings.Join(lines, "\n")
}

// OfFlags reports whether all faults are about invalid or missing flags.
func (f Faults) OfFlags() bool {
	for i := range f {
		if f[i].File != "" {
			return false
		}
	}
	return true
}

// err returns the faults as an error; nil if there are none.
func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

// origin records where each field was set, and its faults.
type origin struct {
	file   string
	lines  map[string]int
	given  []Setting
	faults Faults
}

// check adds the faults of validation, except those of fields that could not be
// read.
func (o *origin) check(options []Option, errs field.ErrorList) {
	for _, e := range errs {
		if !slices.ContainsFunc(o.faults, func(f Fault) bool { return f.Field == e.Field }) {
			o.faults = append(o.faults, o.fault(options, e))
		}
	}
	slices.SortStableFunc(o.faults, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
}

// fault locates a validation error where the field was set; a field that is not set
// is missing in the file, if there is one.
func (o *origin) fault(options []Option, e *field.Error) Fault {
	f := Fault{Field: e.Field, Reason: reason(e)}
	if option := optionAt(options, e.Field); option != nil {
		f.Flag = option.Flag
	}
	if o.file != "" && !slices.ContainsFunc(o.given, func(g Setting) bool { return g.Flag == f.Flag }) {
		f.File, f.Line = o.file, o.line(e.Field)
	}
	return f
}

// optionAt returns the option of a field, or of the list or map that contains it.
func optionAt(options []Option, path string) *Option {
	for i := range options {
		if path == options[i].Field || strings.HasPrefix(path, options[i].Field+"[") {
			return &options[i]
		}
	}
	return nil
}

// line returns the line of a field, or of the closest enclosing one.
func (o *origin) line(path string) int {
	for path != "" {
		if line, known := o.lines[path]; known {
			return line
		}
		i := strings.LastIndexAny(path, ".[")
		path = path[:max(i, 0)]
	}
	return 0
}

// reason returns the text of a field error without the field.
func reason(e *field.Error) string {
	switch e.Type {
	case field.ErrorTypeRequired:
		return "is required: " + e.Detail
	case field.ErrorTypeForbidden:
		return e.Detail
	default:
		if text, isText := e.BadValue.(string); isText {
			return fmt.Sprintf("%q %s", text, e.Detail)
		}
		return fmt.Sprintf("%v %s", e.BadValue, e.Detail)
	}
}
