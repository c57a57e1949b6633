// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"

	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/vmirules"
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
		c.FeatureGates, c.DisabledFeatureGates = d.FeatureGates, d.DisabledFeatureGates
	}
	return c
}

// qemuUser is the user that guests' launchers run as: QEMU's, in the launcher's image.
const qemuUser = 107

// root reports whether guests' launchers run as root.
func (c Config) root() bool {
	return vmirules.Gates{On: c.FeatureGates, Off: c.DisabledFeatureGates}.Enabled(vmirules.Root)
}

// gated is what a feature gate is when the object has its say; to disable wins.
func gated(is bool, d *v1.DeveloperConfiguration, gate string) bool {
	if slices.Contains(d.DisabledFeatureGates, gate) {
		return false
	}
	return is || slices.Contains(d.FeatureGates, gate)
}
