// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"

	k8sv1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain/convert"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
)

// allowBridgeMigration is KubeVirt's annotation by which the owner of a VMI allows its
// migration with a bridged Pod network, whose addresses may change.
const allowBridgeMigration = "kubevirt.io/allow-pod-bridge-network-live-migration"

// blocker is a reason against live migration; the empty value is none.
type blocker struct{ reason, message string }

// migratableCheck is one precondition of live migration, or of storage live migration.
type migratableCheck struct {
	ask func(*v1.VirtualMachineInstance, convert.Facts) blocker
	// live and storage say for which of the two it is a precondition.
	live, storage bool
}

// migratableChecks are in KubeVirt's order; for live migration the first obstacle counts.
var migratableChecks = []migratableCheck{
	{networkMigratable, true, true},
	{cpuMigratable, true, true},
	{hostDevicesMigratable, true, true},
	{launchMigratable, true, true},
	{secureExecutionMigratable, true, false}, // as in KubeVirt
	{hypervMigratable, true, true},
	{reservationMigratable, false, true},
	{disksMigratable, true, false}, // storage migration copies the disks
}

// LiveMigratable returns the condition LiveMigratable, without times, and the migration
// method: BlockMigration if local disks have to be copied.
func LiveMigratable(vmi *v1.VirtualMachineInstance, f convert.Facts) (v1.VirtualMachineInstanceCondition, v1.VirtualMachineInstanceMigrationMethod) {
	cond := v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstanceIsMigratable, Status: k8sv1.ConditionTrue}
	for _, check := range migratableChecks {
		if !check.live {
			continue
		}
		if o := check.ask(vmi, f); o.reason != "" {
			cond.Status, cond.Reason, cond.Message = k8sv1.ConditionFalse, o.reason, o.message
			break
		}
	}
	return cond, migrationMethod(vmi, f)
}

// storageLiveMigratable returns the condition StorageLiveMigratable, without times: whether a
// migration can replace the VMI's volumes. Its message has all obstacles.
func storageLiveMigratable(vmi *v1.VirtualMachineInstance, f convert.Facts) v1.VirtualMachineInstanceCondition {
	cond := v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstanceIsStorageLiveMigratable, Status: k8sv1.ConditionTrue}
	var all []string
	for _, check := range migratableChecks {
		if !check.storage {
			continue
		}
		if o := check.ask(vmi, f); o.reason != "" {
			all = append(all, o.message)
		}
	}
	if len(all) > 0 {
		cond.Status, cond.Reason = k8sv1.ConditionFalse, v1.VirtualMachineInstanceReasonNotMigratable
		cond.Message = strings.Join(all, "; ")
	}
	return cond
}

// migrationMethod returns BlockMigration if any disk is local to the node or about to be
// replaced, else LiveMigration.
func migrationMethod(vmi *v1.VirtualMachineInstance, f convert.Facts) v1.VirtualMachineInstanceMigrationMethod {
	if len(vmi.Status.MigratedVolumes) > 0 {
		return v1.BlockMigration
	}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if !persistent(v) && !readOnlyCDROM(vmi, v.Name) && !sharedDirectory(vmi, v.Name) && !f.Disks[v.Name].Shared {
			return v1.BlockMigration
		}
	}
	return v1.LiveMigration
}

// networkMigratable checks the Pod network alone: only its addresses may change with the
// migration.
func networkMigratable(vmi *v1.VirtualMachineInstance, f convert.Facts) blocker {
	pod := slices.IndexFunc(vmi.Spec.Networks, func(n v1.Network) bool { return n.Pod != nil })
	if pod < 0 {
		return blocker{}
	}
	for _, in := range vmi.Spec.Domain.Devices.Interfaces {
		if in.Name != vmi.Spec.Networks[pod].Name || in.Masquerade != nil || in.PasstBinding != nil {
			continue
		}
		if _, ok := vmi.Annotations[allowBridgeMigration]; ok && in.Bridge != nil {
			continue
		}
		if in.Binding != nil && slices.Contains(f.Cluster.MigratableBindings, in.Binding.Name) {
			continue
		}
		return blocker{v1.VirtualMachineInstanceReasonInterfaceNotMigratable,
			fmt.Sprintf("interface %s: cannot migrate VMI which does not use masquerade, bridge with %s VM annotation or a migratable plugin to connect to the pod network",
				in.Name, allowBridgeMigration)}
	}
	return blocker{}
}

// cpuMigratable rejects a VMI that requests the host model on a node whose host model is
// unknown.
func cpuMigratable(vmi *v1.VirtualMachineInstance, f convert.Facts) blocker {
	if c := vmi.Spec.Domain.CPU; f.NoHostModel && c != nil && c.Model == v1.CPUModeHostModel {
		return blocker{v1.VirtualMachineInstanceReasonCPUModeNotMigratable, "VMI uses CPU model host-model, and the host model of its node is unknown"}
	}
	return blocker{}
}

// hostDevicesMigratable allows no host device but one vGPU, if the cluster enables its
// migration.
func hostDevicesMigratable(vmi *v1.VirtualMachineInstance, f convert.Facts) blocker {
	d := vmi.Spec.Domain.Devices
	refuse := func(why string) blocker {
		return blocker{v1.VirtualMachineInstanceReasonHostDeviceNotMigratable, why}
	}
	switch {
	case len(d.HostDevices) > 0:
		return refuse("VMI uses host devices")
	case len(d.GPUs) > 1:
		return refuse("VMI uses more than one GPU")
	case len(d.GPUs) == 0:
		return blocker{}
	case !f.Cluster.MigratableVGPU:
		return refuse("VMI uses a GPU, and live migration of vGPUs is not enabled in the cluster")
	case !slices.ContainsFunc(f.Devices[gpuResource(d.GPUs[0])], func(h convert.HostDevice) bool { return h.MDev != "" }):
		return refuse("VMI uses a GPU that is not a mediated device")
	}
	return blocker{}
}

// gpuResource returns the name by which the node knows the device.
func gpuResource(g v1.GPU) string {
	if g.ClaimRequest != nil && g.ClaimRequest.RequestName != "" {
		return g.ClaimRequest.RequestName
	}
	return g.DeviceName
}

func launchMigratable(vmi *v1.VirtualMachineInstance, _ convert.Facts) blocker {
	l := vmi.Spec.Domain.LaunchSecurity
	switch {
	case l == nil:
	case l.TDX != nil:
		return blocker{v1.VirtualMachineInstanceReasonTDXNotMigratable, "VMI uses TDX"}
	case l.SEV != nil || l.SNP != nil:
		return blocker{v1.VirtualMachineInstanceReasonSEVNotMigratable, "VMI uses SEV"}
	}
	return blocker{}
}

// secureExecutionMigratable rejects launch security without a method, which is that of s390x.
func secureExecutionMigratable(vmi *v1.VirtualMachineInstance, _ convert.Facts) blocker {
	if l := vmi.Spec.Domain.LaunchSecurity; l != nil && l.TDX == nil && l.SEV == nil && l.SNP == nil {
		return blocker{v1.VirtualMachineInstanceReasonSecureExecutionNotMigratable, "VMI uses Secure Execution"}
	}
	return blocker{}
}

func hypervMigratable(vmi *v1.VirtualMachineInstance, _ convert.Facts) blocker {
	f := vmi.Spec.Domain.Features
	switch {
	case f == nil:
	case f.Hyperv != nil && f.Hyperv.Reenlightenment != nil && ptr.Deref(f.Hyperv.Reenlightenment.Enabled, true) &&
		(vmi.Status.TopologyHints == nil || vmi.Status.TopologyHints.TSCFrequency == nil):
		return blocker{v1.VirtualMachineInstanceReasonNoTSCFrequencyMigratable, "HyperV Reenlightenment VMIs cannot migrate when TSC Frequency is not exposed on the cluster: guest timers might be inaccurate"}
	case f.HypervPassthrough != nil && ptr.Deref(f.HypervPassthrough.Enabled, true):
		return blocker{v1.VirtualMachineInstanceReasonHypervPassthroughNotMigratable, "VMI uses hyperv passthrough"}
	}
	return blocker{}
}

// reservationMigratable rejects persistent reservations, which belong to the host.
func reservationMigratable(vmi *v1.VirtualMachineInstance, _ convert.Facts) blocker {
	for _, d := range vmi.Spec.Domain.Devices.Disks {
		if d.LUN != nil && d.LUN.Reservation {
			return blocker{v1.VirtualMachineInstanceReasonPRNotMigratable, "disk " + d.Name + ": VMI uses SCSI persistent reservation"}
		}
	}
	return blocker{}
}

// disksMigratable rejects persistent volumes that are neither shared nor copied.
func disksMigratable(vmi *v1.VirtualMachineInstance, f convert.Facts) blocker {
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if !persistent(v) || migrates(vmi, v.Name) || readOnlyCDROM(vmi, v.Name) || sharedByAll(vmi, f, v.Name) {
			continue
		}
		return blocker{v1.VirtualMachineInstanceReasonDisksNotMigratable,
			fmt.Sprintf("cannot migrate VMI: volume %s is not shared, live migration requires that all PVCs must be shared (using ReadWriteMany access mode)", v.Name)}
	}
	return blocker{}
}

// sharedByAll reports whether all nodes share the volume. Of a volume that is no disk only
// the claim is known.
func sharedByAll(vmi *v1.VirtualMachineInstance, f convert.Facts, volume string) bool {
	if src, disk := f.Disks[volume]; disk || !sharedDirectory(vmi, volume) {
		return src.Shared
	}
	return slices.ContainsFunc(vmi.Status.VolumeStatus, func(s v1.VolumeStatus) bool {
		return s.Name == volume && s.PersistentVolumeClaimInfo != nil &&
			slices.Contains(s.PersistentVolumeClaimInfo.AccessModes, k8sv1.ReadWriteMany)
	})
}

// sharedDirectory reports whether the volume is a virtiofs directory.
func sharedDirectory(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Filesystems, func(fs v1.Filesystem) bool { return fs.Name == volume })
}

// persistent reports whether a volume holds data that outlives the VMI, so that a copy of it
// must not be left behind.
func persistent(v *v1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.DataVolume != nil || v.HostDisk != nil
}

func readOnlyCDROM(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Disks, func(d v1.Disk) bool {
		return d.Name == volume && d.CDRom != nil && ptr.Deref(d.CDRom.ReadOnly, true)
	})
}

// CopyDisks returns the targets (vda) of the disks whose content a live migration has to
// copy: writable disks that are not shared, and those whose volume the migration replaces
// (status.migratedVolumes), shared or not. Read-only disks have to exist at the target: each
// node generates them from the same objects. d may be the wanted or the live domain; vmi may
// be nil.
func CopyDisks(vmi *v1.VirtualMachineInstance, d *libvirtxml.Domain, f convert.Facts) []string {
	var out []string
	for _, disk := range copied(vmi, d, f) {
		out = append(out, disk.Target.Dev)
	}
	return out
}

// CopySources returns the sources of the disks that [CopyDisks] names, as far as they are
// known.
func CopySources(vmi *v1.VirtualMachineInstance, d *libvirtxml.Domain, f convert.Facts) []convert.DiskSource {
	var out []convert.DiskSource
	for _, disk := range copied(vmi, d, f) {
		if src, known := f.Disks[xmlspec.NameOf(disk.Alias)]; known {
			out = append(out, src)
		}
	}
	return out
}

func copied(vmi *v1.VirtualMachineInstance, d *libvirtxml.Domain, f convert.Facts) []*libvirtxml.DomainDisk {
	var out []*libvirtxml.DomainDisk
	if d == nil || d.Devices == nil {
		return nil
	}
	for i := range d.Devices.Disks {
		disk := &d.Devices.Disks[i]
		if disk.ReadOnly != nil || disk.Source == nil || disk.Target == nil || disk.Device == "cdrom" {
			continue
		}
		if src, ok := f.Disks[xmlspec.NameOf(disk.Alias)]; !ok || !src.Shared || migrates(vmi, xmlspec.NameOf(disk.Alias)) {
			out = append(out, disk)
		}
	}
	return out
}
