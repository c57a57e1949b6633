// SPDX-License-Identifier: Apache-2.0

package template

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	exportv1 "kubevirt.io/api/export/v1"
)

// Input is everything a Pod is rendered from.
type Input struct {
	// VMI is the guest. Required except for an exporter, with name, namespace and UID. Fields that KubeVirt's webhooks
	// default are taken as they are, but for status.runtimeUser: that is root's only with feature gate Root.
	VMI *v1.VirtualMachineInstance
	// Config is the cluster's configuration. Config.LauncherImage is required.
	Config Config
	// Facts are what the cluster says about objects the VMI refers to.
	Facts Facts
	// Migration is required by MigrationTarget. HotplugAttachment uses it for a Pod beside the target; others ignore it.
	Migration *Migration
	// Hotplug is required by HotplugAttachment and HotplugTrigger.
	Hotplug *Hotplug
	// Export is required by Exporter.
	Export *Export
}

// Facts are readings of other objects, gathered by the caller before rendering.
type Facts struct {
	// Claims are the PersistentVolumeClaims of the VMI's namespace by name: at least those its volumes refer to and those
	// labelled persistent-state-for with its name or, for a target, kubevirt.io/migrationName with that of the migration. Of
	// several with one label the newest counts. A claim that is missing here is an Error wrapping ErrMissingFact.
	Claims map[string]*corev1.PersistentVolumeClaim
	// ConfigMaps names the ConfigMaps of the VMI's namespace that exist: at least those its hook sidecars refer to.
	ConfigMaps map[string]bool
	// NetworkAttachmentDefinitions are those the VMI's networks refer to, by namespace/name. Only their annotations are
	// read, and only if feature gate ExternalNetResourceInjection is off.
	NetworkAttachmentDefinitions map[string]*metav1.PartialObjectMetadata
	// Quotas are the ResourceQuotas of the VMI's namespace. One that limits CPU or memory makes the Pod carry limits.
	Quotas []*corev1.ResourceQuota
	// NamespaceLabels are the labels of the VMI's namespace.
	NamespaceLabels map[string]string
}

// Migration is what a migration adds to the launcher Pod.
type Migration struct {
	// UID and Name are those of the VirtualMachineInstanceMigration. Both are required.
	UID  types.UID
	Name string
	// AddedNodeSelector is the migration's spec.addedNodeSelector. Selectors of the VMI win over it.
	AddedNodeSelector map[string]string
	// SourcePod is the Pod the guest runs in. Required by MigrationTarget, unless the migration Receives: image digests, CPU
	// selectors and the naming of network interfaces are taken from it.
	SourcePod *corev1.Pod
	// Receives says that the guest comes from another cluster or namespace (spec.receive). What is to be known of its
	// source is then in the VMI's status.migrationState.sourceState.
	Receives bool
	// StateClaim names the claim that keeps TPM, firmware variables and changed blocks on the target: the migration's
	// status.migrationState.targetPersistentStatePVCName. If it is empty, the VMI's status names it, provided that is about
	// this migration, else it is the claim labelled kubevirt.io/migrationName with the migration's name.
	StateClaim string
	// SourceNode is the node the guest runs on; nil if unknown. Its labels restrict the target's CPU.
	SourceNode *corev1.Node
}

// Hotplug is what is plugged into a running guest.
type Hotplug struct {
	// Owner is the guest's Pod, which the hotplug Pod is beside and dies with. Required, with name, UID and, for an
	// attachment, node.
	Owner *corev1.Pod
	// Volumes are the names of volumes in spec.volumes or spec.utilityVolumes, in the order in which they are put into the
	// Pod. A trigger takes exactly one.
	Volumes []string
	// KeepRunning lets a trigger hold its volume until it is deleted. By default it ends at once and leaves nothing but
	// the provisioned claim.
	KeepRunning bool
}

// Export is what an exporter serves.
type Export struct {
	// Object is the export. Required, with name, namespace and UID.
	Object *exportv1.VirtualMachineExport
	// NamePrefix is put before the export's name in the Pod's name. Defaults to virt-export.
	NamePrefix string
	// Server, if set, completes the Pod to one that serves the export. Without it the Pod is the bare exporter.
	Server *ExportServer
}

// ExportServer is what the exporter needs to serve.
type ExportServer struct {
	// Claims are served, in this order.
	Claims []*corev1.PersistentVolumeClaim
	// CertificateSecret names the Secret with the server's key pair. Required.
	CertificateSecret string
	// TokenSecret names the Secret with the token that clients must show. Required.
	TokenSecret string
	// ManifestConfigMap names the ConfigMap with the manifests of the exported machine. Optional.
	ManifestConfigMap string
	// Deadline is when the server ends by itself. The zero time means never.
	Deadline metav1.Time
	// CertificateParameters say how long the key pair lives, in the form that the controller compares to know a Pod whose
	// certificate is outdated (annotation kubevirt.io/export.certParameters). Optional.
	CertificateParameters string
}

// Config is the configuration of the cluster. The zero value of every field but LauncherImage means KubeVirt's default.
type Config struct {
	// LauncherImage is the image of virt-launcher. Required except for an exporter.
	LauncherImage string
	// ImagePullPolicy of launcher containers. Defaults to IfNotPresent.
	ImagePullPolicy corev1.PullPolicy
	// ImagePullSecret names the pull secret of the launcher image. Defaults to none.
	ImagePullSecret string
	// AllowEmulation lets guests run without /dev/kvm (developerConfiguration.useEmulation): no kvm and vhost-net
	// device is asked for. Defaults to false.
	AllowEmulation bool
	// CPUAllocationRatio is the number of virtual CPUs per requested CPU. Defaults to 10.
	CPUAllocationRatio int
	// MemoryOvercommit is the guest's memory in percent of the requested memory. Defaults to 100.
	MemoryOvercommit int
	// NodeSelectors are added to every Pod; a VMI's own selectors win.
	NodeSelectors map[string]string
	// SELinuxLauncherType is the SELinux type of the Pod. Defaults to none.
	SELinuxLauncherType string
	// DefaultRuntimeClass is the Pod's runtimeClassName. Defaults to none.
	DefaultRuntimeClass string
	// OVMFPath replaces the firmware folder of the VMI's architecture.
	OVMFPath string
	// OVMFPaths replaces it for single architectures, such as amd64, and wins over OVMFPath.
	OVMFPaths map[string]string
	// Hypervisor is the name of the nodes' hypervisor, kvm or hyperv-direct. It counts only with feature gate
	// ConfigurableHypervisor. Defaults to kvm.
	Hypervisor string
	// NetworkBindings are the registered network binding plugins by name.
	NetworkBindings map[string]v1.InterfaceBindingPlugin
	// SidecarShimImage is the image of hook sidecars that name none. Without it such a sidecar is an error. [ConfigFrom] sets it
	// to the one beside LauncherImage.
	SidecarShimImage string
	// ExporterImage is the image of exporter Pods. Required by Exporter.
	ExporterImage string
	// DiskMemoryLimit bounds the memory of image inspection, in bytes. Defaults to 2097152000.
	DiskMemoryLimit int64
	// LauncherVerbosity is the log level of virt-launcher. nil means 2.
	LauncherVerbosity *uint
	// DisableSerialConsoleLog turns the guest-console-log container off unless a VMI asks for it.
	DisableSerialConsoleLog bool
	// ContainerResources replace the resources of support containers.
	ContainerResources []v1.SupportContainerResources
	// Seccomp is the seccomp profile of the Pod. Defaults to none.
	Seccomp *v1.CustomProfile
	// PermittedHostDevices, when set, lists the only device resources a VMI may ask for.
	PermittedHostDevices *v1.PermittedHostDevices
	// AdditionalGuestMemoryOverheadRatio scales the memory overhead, as "1.5". Text that is no number is ignored.
	AdditionalGuestMemoryOverheadRatio string
	// AutoCPULimitNamespaceLabelSelector selects namespaces whose Pods get a CPU limit.
	AutoCPULimitNamespaceLabelSelector *metav1.LabelSelector
	// ClusterArchitecture stands in for that of a VMI without one in the memory overhead and in the folder of the firmware.
	ClusterArchitecture string
	// IgnoreSELinuxLevel lets a migration target have another SELinux level than its source
	// (migrations.matchSELinuxLevelOnMigration: false).
	IgnoreSELinuxLevel bool
	// SkipBackupHooks leaves the Velero annotations out unless a VMI decides otherwise. It follows the annotation
	// kubevirt.io/skip-backup-hooks of the KubeVirt object.
	SkipBackupHooks bool
	// FeatureGates and DisabledFeatureGates are those of developerConfiguration.
	FeatureGates, DisabledFeatureGates []string
	// QEMUTimeout is the base of the launcher's --qemu-timeout. Defaults to 240 s; up to 2 minutes are added.
	QEMUTimeout time.Duration
}

const (
	defaultCPUAllocationRatio = 10
	defaultMemoryOvercommit   = 100
	defaultDiskMemoryLimit    = 2097152000
	defaultVerbosity          = 2
	defaultQEMUTimeout        = 240 * time.Second
	qemuUser                  = int64(107) // the user id of qemu in the launcher image
)

func (c Config) withDefaults() Config {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = corev1.PullIfNotPresent
	}
	if c.CPUAllocationRatio <= 0 {
		c.CPUAllocationRatio = defaultCPUAllocationRatio
	}
	if c.MemoryOvercommit <= 0 {
		c.MemoryOvercommit = defaultMemoryOvercommit
	}
	if c.DiskMemoryLimit <= 0 {
		c.DiskMemoryLimit = defaultDiskMemoryLimit
	}
	if c.LauncherVerbosity == nil {
		v := uint(defaultVerbosity)
		c.LauncherVerbosity = &v
	}
	if c.Hypervisor == "" || !c.GateEnabled(gateHypervisor) {
		c.Hypervisor = v1.KvmHypervisorName
	}
	if c.QEMUTimeout <= 0 {
		c.QEMUTimeout = defaultQEMUTimeout
	}
	return c
}
