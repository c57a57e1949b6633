// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// allowBridgeMigration is KubeVirt's annotation by which the owner of a VMI accepts that its
// bridged Pod network may change during a migration.
const allowBridgeMigration = "kubevirt.io/allow-pod-bridge-network-live-migration"

// checkMigratable follows the VMI's condition LiveMigratable. While the node has not reported
// it, the spec and status are judged instead; conditions that only the node knows do not block
// then. Local disks do not block a migration to another cluster.
func checkMigratable(s Snapshot, _ time.Time) Finding {
	if s.VMI == nil {
		return Finding{}
	}
	reason, message := "", ""
	for i := range s.VMI.Status.Conditions {
		c := &s.VMI.Status.Conditions[i]
		if c.Type != v1.VirtualMachineInstanceIsMigratable {
			continue
		}
		if c.Status != corev1.ConditionFalse {
			return Finding{}
		}
		if reason, message = c.Reason, c.Message; reason == "" {
			reason = "the node reported no reason"
		}
	}
	if reason == "" {
		reason, message = blocker(s.VMI)
	}
	if reason == "" || reason == v1.VirtualMachineInstanceReasonDisksNotMigratable && betweenClusters(s.Migration) {
		return Finding{}
	}
	f := never(ReasonNotMigratable, fmt.Sprintf("the VMI is not live migratable: %s: %s", reason, message), "")
	f.Object = "VirtualMachineInstance " + s.VMI.Name
	return f
}

// betweenClusters reports whether the VMI leaves or enters this cluster or namespace.
func betweenClusters(m *v1.VirtualMachineInstanceMigration) bool {
	return (m.Spec.SendTo == nil) != (m.Spec.Receive == nil)
}

// blocker returns the first reason against live migration that the VMI shows, in
// KubeVirt's order.
func blocker(vmi *v1.VirtualMachineInstance) (reason, message string) {
	for _, look := range []func(*v1.VirtualMachineInstance) (string, string){
		networkBlocker, deviceBlocker, launchBlocker, hypervBlocker, diskBlocker,
	} {
		if reason, message = look(vmi); reason != "" {
			return reason, message
		}
	}
	return "", ""
}

// networkObstacle: a VMI bridged to the Pod network would lose its address.
func networkBlocker(vmi *v1.VirtualMachineInstance) (string, string) {
	if _, allowed := vmi.Annotations[allowBridgeMigration]; allowed {
		return "", ""
	}
	for _, n := range vmi.Spec.Networks {
		for _, in := range vmi.Spec.Domain.Devices.Interfaces {
			if n.Pod != nil && in.Name == n.Name && in.Bridge != nil {
				return v1.VirtualMachineInstanceReasonInterfaceNotMigratable, fmt.Sprintf("interface %s is bridged to the Pod network", in.Name)
			}
		}
	}
	return "", ""
}

// deviceObstacle: a single GPU may be a mediated device, which only the node knows.
func deviceBlocker(vmi *v1.VirtualMachineInstance) (string, string) {
	switch d := vmi.Spec.Domain.Devices; {
	case len(d.HostDevices) > 0:
		return v1.VirtualMachineInstanceReasonHostDeviceNotMigratable, "the VMI uses host devices"
	case len(d.GPUs) > 1:
		return v1.VirtualMachineInstanceReasonHostDeviceNotMigratable, "the VMI uses more than one GPU"
	}
	return "", ""
}

func launchBlocker(vmi *v1.VirtualMachineInstance) (string, string) {
	switch l := vmi.Spec.Domain.LaunchSecurity; {
	case l == nil:
		return "", ""
	case l.TDX != nil:
		return v1.VirtualMachineInstanceReasonTDXNotMigratable, "the VMI uses TDX"
	case l.SEV != nil || l.SNP != nil:
		return v1.VirtualMachineInstanceReasonSEVNotMigratable, "the VMI uses SEV"
	}
	return v1.VirtualMachineInstanceReasonSecureExecutionNotMigratable, "the VMI uses secure execution"
}

func hypervBlocker(vmi *v1.VirtualMachineInstance) (string, string) {
	f := vmi.Spec.Domain.Features
	if f == nil {
		return "", ""
	}
	hints := vmi.Status.TopologyHints
	if f.Hyperv != nil && on(f.Hyperv.Reenlightenment) && (hints == nil || hints.TSCFrequency == nil) {
		return v1.VirtualMachineInstanceReasonNoTSCFrequencyMigratable, "Hyper-V re-enlightenment without a known TSC frequency"
	}
	if p := f.HypervPassthrough; p != nil && (p.Enabled == nil || *p.Enabled) {
		return v1.VirtualMachineInstanceReasonHypervPassthroughNotMigratable, "the VMI uses Hyper-V passthrough"
	}
	return "", ""
}

func on(f *v1.FeatureState) bool { return f != nil && (f.Enabled == nil || *f.Enabled) }

// diskObstacle looks for a volume known to be on one node only that no migration copies.
// A claim missing in the VMI's status is not judged.
func diskBlocker(vmi *v1.VirtualMachineInstance) (string, string) {
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if local(vmi, v) && !migratesWith(vmi, v.Name) && !readOnly(vmi, v.Name) {
			return v1.VirtualMachineInstanceReasonDisksNotMigratable,
				fmt.Sprintf("volume %s is not shared between nodes (access mode ReadWriteMany is required)", v.Name)
		}
	}
	return "", ""
}

func local(vmi *v1.VirtualMachineInstance, v *v1.Volume) bool {
	if v.HostDisk != nil {
		return v.HostDisk.Shared == nil || !*v.HostDisk.Shared
	}
	if v.PersistentVolumeClaim == nil && v.DataVolume == nil {
		return false
	}
	for i := range vmi.Status.VolumeStatus {
		if st := &vmi.Status.VolumeStatus[i]; st.Name == v.Name && st.PersistentVolumeClaimInfo != nil {
			return !slices.Contains(st.PersistentVolumeClaimInfo.AccessModes, corev1.ReadWriteMany)
		}
	}
	return false
}

func migratesWith(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Status.MigratedVolumes, func(m v1.StorageMigratedVolumeInfo) bool { return m.VolumeName == volume })
}

func readOnly(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Disks, func(d v1.Disk) bool {
		return d.Name == volume && d.CDRom != nil && (d.CDRom.ReadOnly == nil || *d.CDRom.ReadOnly)
	})
}
