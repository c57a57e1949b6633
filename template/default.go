// SPDX-License-Identifier: Apache-2.0

package template

// Names of the stock stages, in their order.
const (
	StageValidate     = "validate"      // refuses what no Pod can be rendered from
	StageSupported    = "supported"     // refuses what no stage renders yet
	StageMetadata     = "metadata"      // name, labels, annotations, owner
	StagePod          = "pod"           // hostname, DNS, priority, service account, grace period
	StageSecurity     = "security"      // the Pod's security context
	StageCompute      = "compute"       // the container that runs the guest: command, args, env, ports
	StageConsole      = "console-log"   // the init container that prints the serial console
	StageResources    = "resources"     // CPU, memory, hugepages, ephemeral storage
	StageDevices      = "devices"       // kvm, tun, vhost-net, vsock, passed through devices
	StageRuntime      = "runtime-dirs"  // the folders every launcher has
	StageConfigMounts = "config-mounts" // configMap, secret and downwardAPI volumes
	StageVolumes      = "volumes"       // claims, host disks, cloud-init secrets, sysprep
	StageImages       = "images"        // containerDisk and kernel boot
	StageHugepages    = "hugepages"     // mounts of hugepages
	StageHotplug      = "hotplug"       // the folder in which hotplugged volumes appear
	StageProbes       = "probes"        // readiness and liveness
	StageScheduling   = "scheduling"    // node selector, affinity, tolerations
	StageNetwork      = "network"       // annotations for the network
	StageStorage      = "storage"       // annotations for backup tools
	StageMigration    = "migration"     // what a migration target has beyond a launcher
)

// Default returns the renderer with the stock stages. Each is in a file of its own.
func Default() *Renderer {
	return &Renderer{stages: []Stage{
		{Name: StageValidate, Apply: validate},
		{Name: StageSupported, Apply: supported},
		{Name: StageMetadata, Apply: metadata},
		{Name: StagePod, Apply: podSettings},
		{Name: StageSecurity, Apply: security},
		{Name: StageCompute, Apply: compute},
		{Name: StageConsole, Apply: consoleLog},
		{Name: StageResources, Apply: resources, Overrides: []string{"metadata.annotations[kubevirt.io/memory-overhead-bytes]"}},
		{Name: StageDevices, Apply: deviceResources, Overrides: []string{"spec.containers[compute].resources.*"}},
		{Name: StageRuntime, Apply: runtimeDirs},
		{Name: StageConfigMounts, Apply: configMounts},
		{Name: StageVolumes, Apply: volumes},
		{Name: StageImages, Apply: images},
		{Name: StageHugepages, Apply: hugepages},
		{Name: StageHotplug, Apply: hotplug},
		{Name: StageProbes, Apply: probes},
		{Name: StageScheduling, Apply: scheduling},
		{Name: StageNetwork, Apply: network, Overrides: []string{"metadata.annotations[*"}},
		{Name: StageStorage, Apply: storage, Overrides: []string{"metadata.annotations[*"}},
		{Name: StageMigration, Apply: migrationDeltas, Overrides: []string{
			"metadata.name", "metadata.labels[*", "metadata.annotations[*", "spec.nodeSelector[*", "spec.affinity",
			"spec.securityContext",
		}},
	}}
}
