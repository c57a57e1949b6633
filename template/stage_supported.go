// SPDX-License-Identifier: Apache-2.0

package template

import "errors"

// supported refuses what no stage renders with the given feature gates, so that no Pod silently lacks something its guest
// was promised.
func supported(d *Draft) error {
	var errs []error
	for i := range d.vmi.Spec.Volumes {
		if d.vmi.Spec.Volumes[i].ContainerPath != nil && !d.config.GateEnabled(gateContainerPaths) {
			errs = append(errs, &Error{
				Field: elementOf(vmiVolumes, i) + ".containerPath", Reason: "needs feature gate " + gateContainerPaths,
				Remedy: "add it to developerConfiguration.featureGates, or remove the volume", Err: ErrUnsupported,
			})
		}
	}
	return errors.Join(errs...)
}

func isTrue(b *bool) bool { return b != nil && *b }
