// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
)

// ReservedPrefix begins labels and annotations that belong to the control plane, on whatever object of a guest.
const ReservedPrefix = "virtloom.dev/"

// Reserved are the keys and finalizers of an object that belong to the control plane, besides labels and annotations that
// begin with [ReservedPrefix]: users neither set, change nor remove them. Webhooks refuse that by this list, and the API
// server by the policies in refdaemon/config/rbac, which have to say the same.
type Reserved struct {
	Labels, Annotations, Finalizers []string
}

// ReservedOfGuests says where a guest is, whose Pods are its own, and what controllers do with it.
func ReservedOfGuests() Reserved {
	return Reserved{
		Labels: []string{
			v1.NodeNameLabel, v1.MigrationTargetNodeNameLabel, v1.OutdatedLauncherImageLabel, v1.CreatedByLabel, v1.MigrationJobLabel,
			v1.NodeSchedulable, v1.InstallStrategyLabel, v1.VirtualMachinePodCPULimitsLabel, v1.VirtualMachinePodMemoryRequestsLabel,
		},
		Annotations: []string{v1.CreateMigrationTarget, v1.EvictionSourceAnnotation},
		Finalizers:  []string{v1.VirtualMachineInstanceFinalizer, v1.DeprecatedVirtualMachineInstanceFinalizer},
	}
}

// ReservedOfPods makes a Pod that of a guest. The label kubevirt.io is reserved besides, where its value is one of
// [ReservedApps]: Pods of KubeVirt itself have it as well.
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

// ReservedApps are the values of the label kubevirt.io on Pods of guests: launchers, and what attaches volumes to them.
func ReservedApps() []string { return []string{"virt-launcher", "hotplug-disk"} }

// ReservedOfMigrations says which controller made a migration, and why.
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

// reserves reports whether a key is on a list of reserved ones, or begins as they do.
func reserves(list []string, key string) bool {
	return strings.HasPrefix(key, ReservedPrefix) || slices.Contains(list, key)
}
