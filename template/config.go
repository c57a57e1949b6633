// SPDX-License-Identifier: Apache-2.0

package template

import (
	"strconv"
	"strings"

	v1 "kubevirt.io/api/core/v1"
)

// ConfigFrom reads the cluster's configuration from the KubeVirt object; nil means KubeVirt's defaults, but for the seccomp
// profile: launchers have that of the container runtime, so that namespaces can have Pod Security level restricted. The result
// shares maps, slices and pointers with the object. The default image of hook sidecars is the sidecar-shim next to the launcher
// image, as in KubeVirt's operator: with the same registry, prefix and tag. It is empty if the launcher image is not called
// virt-launcher, or is referenced by digest.
func ConfigFrom(kv *v1.KubeVirt, launcherImage string) Config {
	c := Config{LauncherImage: launcherImage, SidecarShimImage: shimBeside(launcherImage)}
	if kv == nil {
		c.Seccomp = launcherSeccomp(&v1.KubeVirtConfiguration{})
		return c
	}
	spec := &kv.Spec.Configuration
	c.Seccomp = launcherSeccomp(spec)
	c.ImagePullPolicy = spec.ImagePullPolicy
	c.SELinuxLauncherType = spec.SELinuxLauncherType
	c.DefaultRuntimeClass = spec.DefaultRuntimeClass
	c.OVMFPath = spec.OVMFPath
	c.OVMFPaths = ovmfPaths(spec.ArchitectureConfiguration)
	if a := spec.ArchitectureConfiguration; a != nil {
		c.ClusterArchitecture = a.DefaultArchitecture
	}
	if len(spec.Hypervisors) > 0 {
		c.Hypervisor = spec.Hypervisors[0].Name
	}
	if n := spec.NetworkConfiguration; n != nil {
		c.NetworkBindings = n.Binding
	}
	c.PermittedHostDevices = spec.PermittedHostDevices
	c.ContainerResources = spec.SupportContainerResources
	c.AutoCPULimitNamespaceLabelSelector = spec.AutoCPULimitNamespaceLabelSelector
	skip, err := strconv.ParseBool(kv.Annotations[skipBackupHooks])
	c.SkipBackupHooks = err == nil && skip
	if spec.AdditionalGuestMemoryOverheadRatio != nil {
		c.AdditionalGuestMemoryOverheadRatio = *spec.AdditionalGuestMemoryOverheadRatio
	}
	if m := spec.MigrationConfiguration; m != nil && m.MatchSELinuxLevelOnMigration != nil {
		c.IgnoreSELinuxLevel = !*m.MatchSELinuxLevelOnMigration
	}
	if o := spec.VirtualMachineOptions; o != nil {
		c.DisableSerialConsoleLog = o.DisableSerialConsoleLog != nil
	}
	developer(&c, spec.DeveloperConfiguration)
	return c
}

// launcherSeccomp returns the seccomp profile of launchers. Without a choice of the cluster it is that of the container
// runtime, unless the cluster allows post-copy: that needs userfaultfd, which runtimes refuse. A profile without content
// is a choice: none.
func launcherSeccomp(spec *v1.KubeVirtConfiguration) *v1.CustomProfile {
	m := spec.MigrationConfiguration
	switch s := spec.SeccompConfiguration; {
	case s != nil && s.VirtualMachineInstanceProfile != nil:
		return s.VirtualMachineInstanceProfile.CustomProfile
	case s != nil, m != nil && m.AllowPostCopy != nil && *m.AllowPostCopy:
		return nil
	}
	return &v1.CustomProfile{RuntimeDefaultProfile: true}
}

// shimBeside returns the sidecar-shim of the launcher image's release; empty if it cannot be derived.
func shimBeside(launcherImage string) string {
	const launcher, shim = "virt-launcher", "sidecar-shim"
	at := strings.LastIndex(launcherImage, "/") + 1
	name, tag, _ := strings.Cut(launcherImage[at:], ":")
	prefix, ok := strings.CutSuffix(name, launcher)
	if !ok || strings.Contains(launcherImage, digestMark) {
		return ""
	}
	if tag != "" {
		tag = ":" + tag
	}
	return launcherImage[:at] + prefix + shim + tag
}

func developer(c *Config, d *v1.DeveloperConfiguration) {
	if d == nil {
		return
	}
	c.AllowEmulation = d.UseEmulation
	c.CPUAllocationRatio = d.CPUAllocationRatio
	c.MemoryOvercommit = d.MemoryOvercommit
	c.NodeSelectors = d.NodeSelectors
	c.FeatureGates, c.DisabledFeatureGates = d.FeatureGates, d.DisabledFeatureGates
	if d.LogVerbosity != nil && d.LogVerbosity.VirtLauncher > 0 {
		c.LauncherVerbosity = &d.LogVerbosity.VirtLauncher
	}
	if d.DiskVerification != nil && d.DiskVerification.MemoryLimit != nil {
		c.DiskMemoryLimit = d.DiskVerification.MemoryLimit.Value()
	}
}

func ovmfPaths(a *v1.ArchConfiguration) map[string]string {
	if a == nil {
		return nil
	}
	paths := map[string]string{}
	for arch, c := range map[string]*v1.ArchSpecificConfiguration{"amd64": a.Amd64, "arm64": a.Arm64, "s390x": a.S390x} {
		if c != nil && c.OVMFPath != "" {
			paths[arch] = c.OVMFPath
		}
	}
	return paths
}
