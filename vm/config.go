// SPDX-License-Identifier: Apache-2.0

package vm

import (
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/vm/instancetype"
)

// With returns the configuration with the settings of the cluster's KubeVirt object, which may be nil, in place of
// its own: vmRolloutStrategy, cpuAllocationRatio, instancetype.referencePolicy, and those of the default network.
func (c Config) With(kv *v1.KubeVirt) Config {
	if kv == nil {
		return c
	}
	spec := &kv.Spec.Configuration
	if s := spec.VMRolloutStrategy; s != nil {
		c.Stage = *s == v1.VMRolloutStrategyStage
	}
	if d := spec.DeveloperConfiguration; d != nil && d.CPUAllocationRatio > 0 {
		c.CPURatio = int64(d.CPUAllocationRatio)
	}
	if i := spec.Instancetype; i != nil && i.ReferencePolicy != nil {
		c.Policy = instancetype.Policy(*i.ReferencePolicy)
	}
	if n := spec.NetworkConfiguration; n != nil {
		if n.NetworkInterface != "" {
			c.Cluster.NetworkInterface = v1.NetworkInterfaceType(n.NetworkInterface)
		}
		if n.PermitBridgeInterfaceOnPodNetwork != nil {
			c.Cluster.ForbidPodBridge = !*n.PermitBridgeInterfaceOnPodNetwork
		}
	}
	return c
}
