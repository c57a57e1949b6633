// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
)

// ReservedPrefix is the prefix of the control plane's labels and annotations, on any object of a VMI.
const ReservedPrefix = "virtloom.dev/"

// Reserved lists the keys and finalizers of an object that belong to the control plane, in addition to labels and
// annotations with [ReservedPrefix]: users must not set, change or remove them. Webhooks enforce this list, and the API
// server enforces it by the policies in refdaemon/config/rbac, which must be consistent with it.
type Reserved struct {
	Labels, Annotations, Finalizers []string
}

// ReservedOfVMIs returns the reserved keys of VMIs: the node, the owned Pods, and the state of the controllers.
func ReservedOfVMIs() Reserved {
	return Reserved{
		Labels: []string{
			v1.NodeNameLabel, v1.MigrationTargetNodeNameLabel, v1.OutdatedLauncherImageLabel, v1.CreatedByLabel, v1.MigrationJobLabel,
			v1.NodeSchedulable, v1.InstallStrategyLabel, v1.VirtualMachinePodCPULimitsLabel, v1.VirtualMachinePodMemoryRequestsLabel,
		},
		Annotations: []string{v1.CreateMigrationTarget, v1.EvictionSourceAnnotation},
		Finalizers:  []string{v1.VirtualMachineInstanceFinalizer, v1.DeprecatedVirtualMachineInstanceFinalizer},
	}
}

// ReservedOfPods returns the reserved keys that make a Pod that of a VMI. The label kubevirt.io is also reserved for the
// values in [ReservedApps], since KubeVirt's own Pods have that label.
func ReservedOfPods() Reserved {
	return Reserved{
		Labels: []string{
			v1.CreatedByLabel, v1.MigrationJobLabel, v1.VirtualMachineInstanceIDLabel, v1.DomainAnnotation, v1.NodeNameLabel,
			v1.OutdatedLauncherImageLabel,
		},
		Annotations: []string{
			v1.DomainAnnotation, v1.MigrationJobNameAnnotation, v1.MigrationTransportUnixAnnotation, v1.MigrationTargetReadyTimestamp,
			v1.EphemeralProvisioningObject, v1.MemoryOverheadAnnotationBytes, ownerNameAnnotation, ownerUIDAnnotation, networkInfoAnnotation,
		},
	}
}

// ReservedApps returns the values of the label kubevirt.io on Pods of VMIs: launchers, and Pods that attach volumes to
// them.
func ReservedApps() []string { return []string{"virt-launcher", "hotplug-disk"} }

// ReservedOfMigrations returns the reserved keys of migrations: which controller created one, and why.
func ReservedOfMigrations() Reserved {
	return Reserved{
		Annotations: []string{v1.EvacuationMigrationAnnotation, v1.WorkloadUpdateMigrationAnnotation},
		Finalizers:  []string{v1.VirtualMachineInstanceMigrationFinalizer},
	}
}

// Of attachment Pods, and of launchers with networks.
const (
	ownerNameAnnotation   = "kubevirt.io/owner-vmi-name"
	ownerUIDAnnotation    = "kubevirt.io/owner-vmi-uid"
	networkInfoAnnotation = "kubevirt.io/network-info"
)

// reserves reports whether a key is in the list of reserved keys, or has the reserved prefix.
func reserves(list []string, key string) bool {
	return strings.HasPrefix(key, ReservedPrefix) || slices.Contains(list, key)
}
