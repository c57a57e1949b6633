// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"

	"github.com/virtloom/virtloom/vmi/validate"
)

// supported rejects fields whose feature gates are disabled, for VMIs that passed no webhook. They are neither rendered nor
// silently omitted.
func supported(d *Draft) error {
	return errors.Join(refused(validate.Closed(d.vmi, d.config.gates()))...)
}

// refused returns the errors of the faults.
func refused(faults []validate.Fault) (errs []error) {
	for _, f := range faults {
		e := invalid(f.Field, f.Text(), f.Remedy)
		if f.Kind == validate.Gated {
			e.Err = ErrUnsupported
		}
		errs = append(errs, e)
	}
	return errs
}

func isTrue(b *bool) bool { return b != nil && *b }
