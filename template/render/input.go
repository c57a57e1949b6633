// SPDX-License-Identifier: Apache-2.0

package render

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	exportv1 "kubevirt.io/api/export/v1"

	"github.com/virtloom/virtloom/vmi/validate"
)

// Input is everything a Pod is rendered from.
type Input struct {
	// VMI is the VMI, with name, namespace and UID. Required except for an exporter. Fields that KubeVirt's webhooks default
	// are used as they are, except for status.runtimeUser: root requires feature gate Root.
	VMI *v1.VirtualMachineInstance
	// Config is the cluster's configuration. Config.LauncherImage is required.
	Config Config
	// Facts are the objects of the cluster that the VMI refers to.
	Facts Facts
	// Migration is required by MigrationTarget. HotplugAttachment uses it for a Pod of the target; others ignore it.
	Migration *Migration
	// Hotplug is required by HotplugAttachment and HotplugTrigger.
	Hotplug *Hotplug
	// Export is required by Exporter.
	Export *Export
}

// Facts are objects of the cluster, gathered by the caller before rendering.
type Facts struct {
	// Claims are the PersistentVolumeClaims of the VMI's namespace by name: at least those of its volumes and those labelled
	// persistent-state-for with its name or, for a target, kubevirt.io/migrationName with that of the migration. Of several
	// with one label the newest is used. A missing claim is an Error wrapping ErrMissingFact.
	Claims map[string]*corev1.PersistentVolumeClaim
	// ConfigMaps are the names of the existing ConfigMaps in the VMI's namespace: at least those of its hook sidecars.
	ConfigMaps map[string]bool
	// NetworkAttachmentDefinitions are those of the VMI's networks, by namespace/name. Only their annotations are read, and
	// only if feature gate ExternalNetResourceInjection is disabled.
	NetworkAttachmentDefinitions map[string]*metav1.PartialObjectMetadata
	// Quotas are the ResourceQuotas of the VMI's namespace. A quota on CPU or memory limits requires limits on the Pod.
	Quotas []*corev1.ResourceQuota
	// NamespaceLabels are the labels of the VMI's namespace.
	NamespaceLabels map[string]string
}

// Migration is the input of a migration's Pods.
type Migration struct {
	// UID and Name are those of the VirtualMachineInstanceMigration. Both are required.
	UID  types.UID
	Name string
	// AddedNodeSelector is the migration's spec.addedNodeSelector. Selectors of the VMI take precedence.
	AddedNodeSelector map[string]string
	// SourcePod is the Pod that the domain runs in. Required by MigrationTarget unless Receives is set: the source of image
	// digests, CPU selectors and the naming of network interfaces.
	SourcePod *corev1.Pod
	// Receives marks a migration from another cluster or namespace (spec.receive). The state of its source is in the VMI's
	// status.migrationState.sourceState.
	Receives bool
	// StateClaim is the name of the claim for TPM, firmware variables and changed blocks on the target: the migration's
	// status.migrationState.targetPersistentStatePVCName. Defaults to the claim in the VMI's status, if that is about this
	// migration, otherwise to the claim labelled kubevirt.io/migrationName with the migration's name.
	StateClaim string
	// SourceNode is the node that the domain runs on; nil if unknown. Its labels restrict the target's CPU.
	SourceNode *corev1.Node
}

// Hotplug is the input of hotplug Pods.
type Hotplug struct {
	// Owner is the VMI's Pod, which owns the hotplug Pod. Required, with name, UID and, for an attachment, node.
	Owner *corev1.Pod
	// Volumes are the names of volumes in spec.volumes or spec.utilityVolumes, in the order of the Pod. A trigger takes
	// exactly one.
	Volumes []string
	// KeepRunning lets a trigger hold its volume until it is deleted. By default it ends at once, after the claim has been
	// provisioned.
	KeepRunning bool
}

// Export is the input of an exporter.
type Export struct {
	// Object is the export. Required, with name, namespace and UID.
	Object *exportv1.VirtualMachineExport
	// NamePrefix is the prefix of the Pod's name. Defaults to virt-export.
	NamePrefix string
	// Server, if set, completes the Pod to one that serves the export. Otherwise the Pod is the bare exporter.
	Server *ExportServer
}

// ExportServer is the configuration of the export server.
type ExportServer struct {
	// Claims are the served claims, in order.
	Claims []*corev1.PersistentVolumeClaim
	// CertificateSecret is the name of the Secret with the server's key pair. Required.
	CertificateSecret string
	// TokenSecret is the name of the Secret with the clients' token. Required.
	TokenSecret string
	// ManifestConfigMap is the name of the ConfigMap with the manifests of the exported machine. Optional.
	ManifestConfigMap string
	// Deadline is the time at which the server exits. Defaults to never.
	Deadline metav1.Time
	// CertificateParameters is the lifetime of the key pair, in the form that the controller compares to detect a Pod with an
	// outdated certificate (annotation kubevirt.io/export.certParameters). Optional.
	CertificateParameters string
}

// Config is the configuration of the cluster. The zero value of every field but LauncherImage means KubeVirt's default.
type Config struct {
	// LauncherImage is the image of virt-launcher. Required except for an exporter.
	LauncherImage string
	// ImagePullPolicy of launcher containers. Defaults to IfNotPresent.
	ImagePullPolicy corev1.PullPolicy
	// ImagePullSecret is the name of the launcher image's pull secret. Defaults to none.
	ImagePullSecret string
	// AllowEmulation lets domains run without /dev/kvm (developerConfiguration.useEmulation): the Pod requests no kvm and
	// vhost-net devices. Defaults to false.
	AllowEmulation bool
	// CPUAllocationRatio is the number of virtual CPUs per requested CPU. Defaults to 10.
	CPUAllocationRatio int
	// MemoryOvercommit is the guest memory in percent of the requested memory. Defaults to 100.
	MemoryOvercommit int
	// NodeSelectors are added to every Pod; a VMI's own selectors take precedence.
	NodeSelectors map[string]string
	// SELinuxLauncherType is the SELinux type of the Pod. Defaults to none.
	SELinuxLauncherType string
	// DefaultRuntimeClass is the Pod's runtimeClassName. Defaults to none.
	DefaultRuntimeClass string
	// OVMFPath replaces the firmware folder of the VMI's architecture.
	OVMFPath string
	// OVMFPaths replaces it by architecture, such as amd64, and takes precedence over OVMFPath.
	OVMFPaths map[string]string
	// Hypervisor is the name of the nodes' hypervisor, kvm or hyperv-direct. It requires feature gate ConfigurableHypervisor.
	// Defaults to kvm.
	Hypervisor string
	// NetworkBindings are the registered network binding plugins by name.
	NetworkBindings map[string]v1.InterfaceBindingPlugin
	// SidecarShimImage is the default image of hook sidecars. If it is empty, a sidecar without an image is an error.
	// template.ConfigFrom sets it to the image next to LauncherImage.
	SidecarShimImage string
	// ExporterImage is the image of exporter Pods. Required by Exporter.
	ExporterImage string
	// DiskMemoryLimit limits the memory of image inspection, in bytes. Defaults to 2097152000.
	DiskMemoryLimit int64
	// LauncherVerbosity is the log level of virt-launcher. nil means 2.
	LauncherVerbosity *uint
	// DisableSerialConsoleLog disables the guest-console-log container unless a VMI enables it.
	DisableSerialConsoleLog bool
	// ContainerResources override the resources of support containers.
	ContainerResources []v1.SupportContainerResources
	// Seccomp is the seccomp profile of the Pod. Defaults to none.
	Seccomp *v1.CustomProfile
	// PermittedHostDevices, if set, lists the only device resources that VMIs may request.
	PermittedHostDevices *v1.PermittedHostDevices
	// AdditionalGuestMemoryOverheadRatio scales the memory overhead, as "1.5". Invalid numbers are ignored.
	AdditionalGuestMemoryOverheadRatio string
	// AutoCPULimitNamespaceLabelSelector selects namespaces whose Pods get a CPU limit.
	AutoCPULimitNamespaceLabelSelector *metav1.LabelSelector
	// ClusterArchitecture is the default architecture in the memory overhead and in the folder of the firmware.
	ClusterArchitecture string
	// IgnoreSELinuxLevel allows a migration target to have another SELinux level than its source
	// (migrations.matchSELinuxLevelOnMigration: false).
	IgnoreSELinuxLevel bool
	// SkipBackupHooks omits the Velero annotations unless a VMI decides otherwise. It is set by the annotation
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
	gateHypervisor            = "ConfigurableHypervisor"
)

// QEMUUser is the user ID of QEMU in the launcher image, as which launchers run unless they run as root.
const QEMUUser = int64(107)

// WithDefaults returns the configuration with the defaults of its fields.
func (c Config) WithDefaults() Config {
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

// GateEnabled reports whether a feature gate is enabled: listed in FeatureGates, otherwise not listed in
// DisabledFeatureGates and enabled by default.
func (c Config) GateEnabled(name string) bool {
	return validate.Gates{On: c.FeatureGates, Off: c.DisabledFeatureGates}.Enabled(name)
}
