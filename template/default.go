// SPDX-License-Identifier: Apache-2.0

package template

import "github.com/virtloom/virtloom/template/render"

// Names of the stock stages, in order.
const (
	StageValidate     = "validate"           // rejects a VMI that cannot be rendered
	StageNetworkSpec  = "network-spec"       // calls the NetworkSpecValidators
	StageSupported    = "supported"          // rejects fields whose feature gates are disabled
	StageHooks        = "hooks"              // calls the SidecarCreators
	StageMetadata     = "metadata"           // name, labels, annotations, owner
	StagePod          = "pod"                // hostname, DNS, priority, service account, grace period
	StageSecurity     = "security"           // the Pod's security context
	StageCompute      = "compute"            // the container that runs the guest: command, args, env, ports
	StageConsole      = "console-log"        // the init container that prints the serial console
	StageResources    = "resources"          // CPU, memory, hugepages, ephemeral storage
	StageDevices      = "devices"            // kvm, tun, vhost-net, vsock, sev, tdx, pr-helper, iommufd
	StageHostDevices  = "host-devices"       // GPUs and other devices of the host, from device plugins or claims
	StageNetDevices   = "network-devices"    // devices that networks require
	StageRuntime      = "runtime-dirs"       // the folders of every launcher
	StageConfigMounts = "config-volumes"     // configMap, secret and downwardAPI volumes
	StageVolumes      = "volumes"            // claims, host disks, sysprep, downward metrics
	StageCloudInit    = "cloud-init"         // secrets with user and network data
	StageCredentials  = "access-credentials" // secrets with keys and passwords
	StageBackend      = "backend-storage"    // the claim for TPM, firmware variables and changed blocks
	StageImages       = "images"             // containerDisk and kernel boot as image volumes, pull secrets
	StageImageCopies  = "container-disks"    // containerDisk and kernel boot as containers
	StageHookSockets  = "hook-sockets"       // folders shared by the launcher with sidecars and plugins
	StageHugepages    = "hugepages"          // mounts of hugepages
	StageHotplug      = "hotplug-dir"        // the folder of hotplugged volumes
	StageNetworkInfo  = "network-info"       // the file that maps devices to networks
	StageVirtiofs     = "virtiofs"           // containers that share file systems with the guest
	StageSidecars     = "sidecars"           // the containers that stage hooks requested
	StageProbes       = "probes"             // readiness and liveness
	StageNodeSelector = "node-selector"      // labels a node must have
	StageAffinity     = "affinity"           // affinity and anti-affinity to nodes and Pods
	StageReservations = "reservations"       // separates VMIs with reservations of one LUN
	StageScheduling   = "scheduling"         // tolerations, spreading, scheduler
	StageNetwork      = "network"            // annotations for the network
	StageMesh         = "service-mesh"       // annotations for service meshes
	StageStorage      = "storage"            // annotations for backup tools
	StageTemporary    = "temporary"          // the command of a temporary Pod
	StageHotplugPod   = "hotplug-pod"        // name, owner, container and security of hotplug Pods
	StageAttachment   = "attachment"         // volumes and node of an attachment Pod
	StageTrigger      = "trigger"            // volume and node of a trigger Pod
	StageMigration    = "migration"          // marks a migration's Pods and keeps the target off the source node
	StageMigrationCPU = "migration-cpu"      // restricts the target to nodes with the source's CPU
	StageSELinux      = "migration-selinux"  // sets the source's SELinux level on the target
	StageMCS          = "selinux-workaround" // one SELinux level for all sidecars
	StageExporter     = "exporter"           // the bare exporter Pod
	StageExportServer = "export-server"      // the exporter's server, claims and manifests
)

// Default returns the renderer with the stock stages. Each is in its own file.
func Default() *Renderer {
	stages := stockStages()
	for i := range stages {
		stages[i].Trusted = true
	}
	r, err := render.NewRenderer(stages...)
	if err != nil {
		panic(err) //nolint:forbidigo // the stages are constant, and every test renders with them
	}
	return r
}

func stockStages() []render.Stage {
	return []render.Stage{
		{Name: StageValidate, Apply: validateVMI},
		NetworkSpecStage(NetworkRules{}),
		{Name: StageSupported, Apply: supported},
		HooksStage(HookAnnotation{}, BindingPluginSidecars{}),
		{Name: StageMetadata, Apply: metadata},
		{Name: StagePod, Apply: podSettings},
		{Name: StageSecurity, Apply: security},
		{Name: StageCompute, Apply: compute},
		{Name: StageConsole, Apply: consoleLog},
		ResourcesStage(NetworkOverhead{}),
		{Name: StageDevices, Apply: deviceResources, Overrides: []string{"spec.containers[compute].resources.*"}},
		{Name: StageHostDevices, Apply: hostDevices, Overrides: []string{"spec.containers[compute].resources.*"}},
		{Name: StageNetDevices, Apply: networkDevices, Overrides: []string{"spec.containers[compute].resources.*"}},
		{Name: StageRuntime, Apply: runtimeDirs},
		{Name: StageConfigMounts, Apply: configMounts},
		{Name: StageVolumes, Apply: volumes},
		{Name: StageCloudInit, Apply: cloudInit},
		{Name: StageCredentials, Apply: accessCredentials},
		{Name: StageBackend, Apply: backendStorage},
		{Name: StageImages, Apply: images},
		{Name: StageImageCopies, Apply: imageCopies},
		{Name: StageHookSockets, Apply: hookSockets},
		{Name: StageHugepages, Apply: hugepages},
		{Name: StageHotplug, Apply: hotplugDir},
		{Name: StageNetworkInfo, Apply: networkInfo},
		{Name: StageVirtiofs, Apply: virtiofs},
		{Name: StageSidecars, Apply: sidecars},
		{Name: StageProbes, Apply: probes},
		{Name: StageNodeSelector, Apply: nodeSelector},
		{Name: StageAffinity, Apply: affinity},
		{Name: StageReservations, Apply: reservations, Overrides: []string{"metadata.labels[pr.kubevirt.io/*"}},
		{Name: StageScheduling, Apply: scheduling},
		AnnotationStage(StageNetwork, MultusAnnotations{}),
		AnnotationStage(StageMesh, MeshAnnotations{}),
		AnnotationStage(StageStorage, VeleroHooks{}),
		{Name: StageTemporary, Pods: render.TemporaryPod, Apply: temporary, Overrides: []string{
			"metadata.name", "metadata.annotations[*", "spec.containers[compute].*",
		}},
		{Name: StageHotplugPod, Pods: render.HotplugPods, Apply: hotplugPod},
		{Name: StageAttachment, Pods: render.AttachmentPod, Apply: attachment, Overrides: []string{
			"spec.containers[hotplug-disk].securityContext.seLinuxOptions*",
		}},
		{Name: StageTrigger, Pods: render.TriggerPod, Apply: trigger},
		{Name: StageMigration, Pods: render.TargetPod | render.AttachmentPod, Apply: migrationMarks, Overrides: []string{
			"metadata.name", "metadata.labels[*", "metadata.annotations[*",
		}},
		{Name: StageMigrationCPU, Pods: render.TargetPod, Apply: sameCPU, Overrides: []string{"spec.nodeSelector[*"}},
		{Name: StageSELinux, Pods: render.TargetPod, Apply: sameSELinuxLevel, Overrides: []string{"spec.securityContext.seLinuxOptions"}},
		{Name: StageMCS, Apply: selinuxWorkaround, Overrides: []string{"spec.containers[*"}},
		{Name: StageExporter, Pods: render.ExporterPod, Apply: exporter},
		{Name: StageExportServer, Pods: render.ExporterPod, Apply: exportServer, Overrides: []string{"metadata.labels[*"}},
	}
}
