// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"

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

const (
	useLabelValue = "use at most 63 letters, digits, dashes, underscores and dots, beginning and ending with a letter or digit"
	useDNSName    = "use lower case letters, digits, dashes and dots"
)
