// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"

	"github.com/virtloom/virtloom/internal/vmirules"
	"github.com/virtloom/virtloom/template/render"
)

// supported rejects fields whose feature gates are disabled, for VMIs that passed no webhook. They are neither rendered nor
// silently omitted.
func supported(d *render.Draft) error {
	return errors.Join(render.Refused(vmirules.Closed(d.VMI(), vmirules.Gates{On: d.Config().FeatureGates, Off: d.Config().DisabledFeatureGates}))...)
}

func isTrue(b *bool) bool { return b != nil && *b }
