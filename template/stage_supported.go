// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"

	"github.com/virtloom/virtloom/internal/vmirules"
)

// supported rejects fields whose feature gates are disabled, for VMIs that passed no webhook. They are neither rendered nor
// silently omitted.
func supported(d *Draft) error {
	return errors.Join(Refused(vmirules.Closed(d.VMI(), vmirules.Gates{On: d.Config().FeatureGates, Off: d.Config().DisabledFeatureGates}))...)
}

func isTrue(b *bool) bool { return b != nil && *b }
