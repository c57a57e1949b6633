// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi/validate"
)

// faults collects the faults of a VMI.
type faults []error

func (f *faults) add(field, reason, remedy string) {
	*f = append(*f, render.Invalid(field, reason, remedy))
}

// text adds a fault if a rule of the API server rejects a string.
func (f *faults) text(field, value string, rule func(string) []string, remedy string) {
	if validate.Plain(value) {
		return
	}
	if problems := rule(value); len(problems) > 0 {
		f.add(field, fmt.Sprintf("%q: %s", value, problems[0]), remedy)
	}
}

// oneOf adds a fault if a value is not supported. The empty value means the default.
func (f *faults) oneOf(field, value string, known ...string) {
	if value != "" && !slices.Contains(known, value) {
		f.add(field, fmt.Sprintf("%q is not supported", value), "use "+strings.Join(known, " or "))
	}
}

const (
	useLabelValue = "use at most 63 letters, digits, dashes, underscores and dots, beginning and ending with a letter or digit"
	useDNSName    = "use lower case letters, digits, dashes and dots"
)
