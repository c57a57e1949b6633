// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"

	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi/validate"
)

// supported rejects fields whose feature gates are disabled, for VMIs that passed no webhook. They are neither rendered nor
// silently omitted.
func supported(d *render.Draft) error {
	return errors.Join(render.Refused(validate.Closed(d.VMI(), validate.Gates{On: d.Config().FeatureGates, Off: d.Config().DisabledFeatureGates}))...)
}
