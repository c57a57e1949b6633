// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"

	"github.com/virtloom/virtloom/internal/vmirules"
)

// supported refuses what the cluster's feature gates do not let guests have, where no webhook has. Nothing of it is left out
// of the Pod without a word, and nothing reaches it.
func supported(d *Draft) error {
	return errors.Join(refused(vmirules.Closed(d.vmi, d.config.gates()))...)
}

// refused are the errors of what a guest may not ask for.
func refused(faults []vmirules.Fault) (errs []error) {
	for _, f := range faults {
		e := invalid(f.Field, f.Text(), f.Remedy)
		if f.Kind == vmirules.Gated {
			e.Err = ErrUnsupported
		}
		errs = append(errs, e)
	}
	return errs
}

func isTrue(b *bool) bool { return b != nil && *b }
