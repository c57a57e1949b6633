// SPDX-License-Identifier: Apache-2.0

package template

import (
	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// ConfigFrom reads the cluster's configuration from the KubeVirt object; nil
// stands for a cluster without one, which has KubeVirt's defaults.
func ConfigFrom(kv *v1.KubeVirt, launcherImage string) Config {
	c := Config{LauncherImage: launcherImage}
	if kv == nil {
		return c
	}
	spec := &kv.Spec.Configuration
	c.ImagePullPolicy = corev1.PullPolicy(spec.ImagePullPolicy)
	c.SELinuxLauncherType = spec.SELinuxLauncherType
	c.DefaultRuntimeClass = spec.DefaultRuntimeClass
	c.PermittedHostDevices = spec.PermittedHostDevices
	c.ContainerResources = spec.SupportContainerResources
	c.AutoCPULimitNamespaceLabelSelector = spec.AutoCPULimitNamespaceLabelSelector
	c.SkipBackupHooks = kv.Annotations[skipBackupHooks] == "true"
	if d := spec.DeveloperConfiguration; d != nil {
		c.AllowEmulation = d.UseEmulation
		c.CPUAllocationRatio = d.CPUAllocationRatio
		c.MemoryOvercommit = d.MemoryOvercommit
		c.NodeSelectors = d.NodeSelectors
		c.FeatureGates, c.DisabledFeatureGates = d.FeatureGates, d.DisabledFeatureGates
	}
	if d := spec.AdditionalGuestMemoryOverheadRatio; d != nil {
		c.AdditionalGuestMemoryOverheadRatio = *d
	}
	if s := spec.SeccompConfiguration; s != nil && s.VirtualMachineInstanceProfile != nil {
		c.Seccomp = s.VirtualMachineInstanceProfile.CustomProfile
	}
	if m := spec.MigrationConfiguration; m != nil && m.MatchSELinuxLevelOnMigration != nil {
		c.IgnoreSELinuxLevel = !*m.MatchSELinuxLevelOnMigration
	}
	return c
}
