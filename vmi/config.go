// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vmi/validate"
)

// Feature gates that decisions depend on.
const (
	gateReportOverhead = "VmiMemoryOverheadReport"
	gateContainerPaths = "ContainerPathVolumes"
)

// With returns the configuration overridden by the cluster's KubeVirt object; unset fields
// keep their value. A nil object changes nothing.
func (c Config) With(kv *v1.KubeVirt) Config {
	if kv == nil {
		return c
	}
	spec := &kv.Spec.Configuration
	if spec.VMStateStorageClass != "" {
		c.StateClass = spec.VMStateStorageClass
	}
	if r := spec.AdditionalGuestMemoryOverheadRatio; r != nil {
		c.MemoryRatio = *r
	}
	if d := spec.DeveloperConfiguration; d != nil {
		if d.MinimumClusterTSCFrequency != nil {
			c.MinimumTSC = d.MinimumClusterTSCFrequency
		}
		c.ReportOverhead = gated(c.ReportOverhead, d, gateReportOverhead)
		c.ContainerPaths = gated(c.ContainerPaths, d, gateContainerPaths)
		c.FeatureGates, c.DisabledFeatureGates = d.FeatureGates, d.DisabledFeatureGates
	}
	return c
}

// qemuUser is the UID of QEMU in the launcher image; launchers run as this user.
const qemuUser = 107

// root reports whether launchers run as root.
func (c Config) root() bool {
	return validate.Gates{On: c.FeatureGates, Off: c.DisabledFeatureGates}.Enabled(validate.Root)
}

// gated returns the value of a feature gate with the KubeVirt object applied; disabling wins.
func gated(is bool, d *v1.DeveloperConfiguration, gate string) bool {
	if slices.Contains(d.DisabledFeatureGates, gate) {
		return false
	}
	return is || slices.Contains(d.FeatureGates, gate)
}
