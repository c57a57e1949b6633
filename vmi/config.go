// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"

	v1 "kubevirt.io/api/core/v1"
)

// The feature gates that decisions depend on.
const (
	gateReportOverhead = "VmiMemoryOverheadReport"
	gateContainerPaths = "ContainerPathVolumes"
)

// With returns the configuration as the cluster's KubeVirt object has it; what that
// leaves open stays as it is. Without one, nil, everything does.
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
	}
	return c
}

// gated is what a feature gate is when the object has its say; to disable wins.
func gated(is bool, d *v1.DeveloperConfiguration, gate string) bool {
	if slices.Contains(d.DisabledFeatureGates, gate) {
		return false
	}
	return is || slices.Contains(d.FeatureGates, gate)
}
