// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"fmt"
	"slices"
	"strings"

	k8sv1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// allowBridgeMigration is KubeVirt's annotation by which the owner of a guest
// says that its bridged Pod network may change under it.
const allowBridgeMigration = "kubevirt.io/allow-pod-bridge-network-live-migration"

// obstacle is a reason against live migration; an empty one means none.
type obstacle struct{ reason, message string }

// migratableCheck is one question that live migration, or that of the storage
// alone, depends on.
type migratableCheck struct {
	ask func(*v1.VirtualMachineInstance, Facts) obstacle
	// live and storage say which of the two it is asked for.
	live, storage bool
}

// migratableChecks are in KubeVirt's order; the first obstacle counts.
var migratableChecks = []migratableCheck{
	{networkMigratable, true, true},
	{cpuMigratable, true, true},
	{hostDevicesMigratable, true, true},
	{launchMigratable, true, true},
	{secureExecutionMigratable, true, false}, // as in KubeVirt
	{hypervMigratable, true, true},
	{reservationMigratable, false, true},
	{disksMigratable, true, false}, // it is the disks that move
}

// LiveMigratable tells whether the guest can be migrated live, as the condition
// of that name without times, and by which method: BlockMigration if local disks
// have to be copied along.
func LiveMigratable(vmi *v1.VirtualMachineInstance, f Facts) (v1.VirtualMachineInstanceCondition, v1.VirtualMachineInstanceMigrationMethod) {
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
	return cond, MigrationMethod(vmi, f)
}

// StorageLiveMigratable tells whether the volumes of the guest can be replaced by
// others while it moves, as the condition of that name without times. Its message
// has every obstacle.
func StorageLiveMigratable(vmi *v1.VirtualMachineInstance, f Facts) v1.VirtualMachineInstanceCondition {
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

// MigrationMethod returns BlockMigration if any disk lives on the node alone or
// is about to change its volume, else LiveMigration.
func MigrationMethod(vmi *v1.VirtualMachineInstance, f Facts) v1.VirtualMachineInstanceMigrationMethod {
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

// networkMigratable looks at the Pod network alone: only there the address the
// guest uses may be lost.
func networkMigratable(vmi *v1.VirtualMachineInstance, f Facts) obstacle {
	pod := slices.IndexFunc(vmi.Spec.Networks, func(n v1.Network) bool { return n.Pod != nil })
	if pod < 0 {
		return obstacle{}
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
		return obstacle{v1.VirtualMachineInstanceReasonInterfaceNotMigratable,
			fmt.Sprintf("interface %s is bound to the Pod network without masquerade", in.Name)}
	}
	return obstacle{}
}

// cpuMigratable refuses a guest that asks for the host's model where nobody knows
// which one that is. One that asks for nothing gets what is there.
func cpuMigratable(vmi *v1.VirtualMachineInstance, f Facts) obstacle {
	if c := vmi.Spec.Domain.CPU; f.NoHostModel && c != nil && c.Model == v1.CPUModeHostModel {
		return obstacle{v1.VirtualMachineInstanceReasonCPUModeNotMigratable, "the guest uses the CPU model of its host, which is not known"}
	}
	return obstacle{}
}

// hostDevicesMigratable allows no device of the host but one mediated GPU, where
// the cluster lets that migrate.
func hostDevicesMigratable(vmi *v1.VirtualMachineInstance, f Facts) obstacle {
	d := vmi.Spec.Domain.Devices
	refuse := func(why string) obstacle {
		return obstacle{v1.VirtualMachineInstanceReasonHostDeviceNotMigratable, why}
	}
	switch {
	case len(d.HostDevices) > 0:
		return refuse("the guest uses devices of its host")
	case len(d.GPUs) > 1:
		return refuse("the guest uses more than one GPU")
	case len(d.GPUs) == 0:
		return obstacle{}
	case !f.Cluster.MigratableVGPU:
		return refuse("the guest uses a GPU, and the cluster does not let mediated ones migrate")
	case !slices.ContainsFunc(f.Devices[gpuResource(d.GPUs[0])], func(h HostDevice) bool { return h.MDev != "" }):
		return refuse("the guest uses a GPU that is not a mediated device")
	}
	return obstacle{}
}

// gpuResource is the name under which the node knows the device.
func gpuResource(g v1.GPU) string {
	if g.ClaimRequest != nil && g.ClaimRequest.RequestName != "" {
		return g.ClaimRequest.RequestName
	}
	return g.DeviceName
}

func launchMigratable(vmi *v1.VirtualMachineInstance, _ Facts) obstacle {
	l := vmi.Spec.Domain.LaunchSecurity
	switch {
	case l == nil:
	case l.TDX != nil:
		return obstacle{v1.VirtualMachineInstanceReasonTDXNotMigratable, "the guest uses TDX"}
	case l.SEV != nil || l.SNP != nil:
		return obstacle{v1.VirtualMachineInstanceReasonSEVNotMigratable, "the guest uses SEV"}
	}
	return obstacle{}
}

// secureExecutionMigratable: launch security without a method is that of s390x.
func secureExecutionMigratable(vmi *v1.VirtualMachineInstance, _ Facts) obstacle {
	if l := vmi.Spec.Domain.LaunchSecurity; l != nil && l.TDX == nil && l.SEV == nil && l.SNP == nil {
		return obstacle{v1.VirtualMachineInstanceReasonSecureExecutionNotMigratable, "the guest uses secure execution"}
	}
	return obstacle{}
}

func hypervMigratable(vmi *v1.VirtualMachineInstance, _ Facts) obstacle {
	f := vmi.Spec.Domain.Features
	switch {
	case f == nil:
	case f.Hyperv != nil && enabled(f.Hyperv.Reenlightenment) &&
		(vmi.Status.TopologyHints == nil || vmi.Status.TopologyHints.TSCFrequency == nil):
		return obstacle{v1.VirtualMachineInstanceReasonNoTSCFrequencyMigratable, "Hyper-V re-enlightenment without a known TSC frequency"}
	case f.HypervPassthrough != nil && !isFalse(f.HypervPassthrough.Enabled):
		return obstacle{v1.VirtualMachineInstanceReasonHypervPassthroughNotMigratable, "the guest uses Hyper-V passthrough"}
	}
	return obstacle{}
}

// reservationMigratable: a reservation is held by the host that took it.
func reservationMigratable(vmi *v1.VirtualMachineInstance, _ Facts) obstacle {
	for _, d := range vmi.Spec.Domain.Devices.Disks {
		if d.LUN != nil && d.LUN.Reservation {
			return obstacle{v1.VirtualMachineInstanceReasonPRNotMigratable, "disk " + d.Name + " may hold a SCSI persistent reservation"}
		}
	}
	return obstacle{}
}

// disksMigratable refuses persistent volumes that the other node cannot see and
// that nothing copies.
func disksMigratable(vmi *v1.VirtualMachineInstance, f Facts) obstacle {
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if !persistent(v) || migrates(vmi, v.Name) || readOnlyCDROM(vmi, v.Name) || sharedByAll(vmi, f, v.Name) {
			continue
		}
		return obstacle{v1.VirtualMachineInstanceReasonDisksNotMigratable,
			fmt.Sprintf("volume %s is on this node only; it has to be shared by all nodes (ReadWriteMany)", v.Name)}
	}
	return obstacle{}
}

// sharedByAll tells whether every node sees the volume. Of one that is no disk
// only its claim is known.
func sharedByAll(vmi *v1.VirtualMachineInstance, f Facts, volume string) bool {
	if src, disk := f.Disks[volume]; disk || !sharedDirectory(vmi, volume) {
		return src.Shared
	}
	return slices.ContainsFunc(vmi.Status.VolumeStatus, func(s v1.VolumeStatus) bool {
		return s.Name == volume && s.PersistentVolumeClaimInfo != nil &&
			slices.Contains(s.PersistentVolumeClaimInfo.AccessModes, k8sv1.ReadWriteMany)
	})
}

// sharedDirectory tells whether the guest has the volume as a directory (virtiofs).
func sharedDirectory(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Filesystems, func(fs v1.Filesystem) bool { return fs.Name == volume })
}

// persistent tells whether a volume holds data that outlives the guest, so that
// it must not be left behind in a copy.
func persistent(v *v1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.DataVolume != nil || v.HostDisk != nil
}

func readOnlyCDROM(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Domain.Devices.Disks, func(d v1.Disk) bool {
		return d.Name == volume && d.CDRom != nil && !isFalse(d.CDRom.ReadOnly)
	})
}

// CopyDisks returns the targets (vda) of the disks whose content has to travel
// with a live migration: those the guest may write that are not shared, and those whose
// volume the migration replaces (status.migratedVolumes), shared or not. What is
// read-only has to be there already: every node makes generated disks itself, of the
// same objects. d may be the wanted or the live domain; vmi may be nil.
func CopyDisks(vmi *v1.VirtualMachineInstance, d *libvirtxml.Domain, f Facts) []string {
	var out []string
	for _, disk := range copied(vmi, d, f) {
		out = append(out, disk.Target.Dev)
	}
	return out
}

// CopySources returns where the content of the disks lies that [CopyDisks] names,
// as far as it is known.
func CopySources(vmi *v1.VirtualMachineInstance, d *libvirtxml.Domain, f Facts) []DiskSource {
	var out []DiskSource
	for _, disk := range copied(vmi, d, f) {
		if src, known := f.Disks[nameOf(disk.Alias)]; known {
			out = append(out, src)
		}
	}
	return out
}

func copied(vmi *v1.VirtualMachineInstance, d *libvirtxml.Domain, f Facts) []*libvirtxml.DomainDisk {
	var out []*libvirtxml.DomainDisk
	if d == nil || d.Devices == nil {
		return nil
	}
	for i := range d.Devices.Disks {
		disk := &d.Devices.Disks[i]
		if disk.ReadOnly != nil || disk.Source == nil || disk.Target == nil || disk.Device == "cdrom" {
			continue
		}
		if src, ok := f.Disks[nameOf(disk.Alias)]; !ok || !src.Shared || migrates(vmi, nameOf(disk.Alias)) {
			out = append(out, disk)
		}
	}
	return out
}
