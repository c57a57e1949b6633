// SPDX-License-Identifier: Apache-2.0

package status

import (
	"maps"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/internal/xmlspec"
	"github.com/virtloom/virtloom/internal/vmistatus"
)

// Reasons of a volume's status, next to a message. The first three are KubeVirt's.
const (
	// reasonVolumeMounted: the volume is mounted on the node.
	reasonVolumeMounted = "VolumeMountedToPod"
	// reasonVolumeReady: the volume is a disk of the domain.
	reasonVolumeReady = "VolumeReady"
	// reasonVolumeUnmounted: the volume is neither a disk of the domain nor mounted.
	reasonVolumeUnmounted = "VolumeUnMountedFromPod"
	// ReasonVolumeDetaching: the guest has not yet released the disk as requested.
	ReasonVolumeDetaching = "VolumeDetaching"
	// ReasonHotplugFailed: the disk could not be hotplugged, unplugged or changed. KubeVirt
	// has it as the reason of an event.
	ReasonHotplugFailed = "HotplugFailed"
	// ReasonResizeFailed: the disk could not be grown to the size of its volume.
	ReasonResizeFailed = "ResizeFailed"
)

// passing are the temporary reasons, which are removed again.
var passing = []string{ReasonVolumeDetaching, ReasonHotplugFailed, ReasonResizeFailed}

// VolumeStatus returns the volume statuses, sorted by name, with the target of each disk in
// the running domain, the phases of hotplugged volumes, and the failures. All else stays as
// it is.
func VolumeStatus(vmi *v1.VirtualMachineInstance, o Observation) []v1.VolumeStatus {
	targets := diskTargets(o.live())
	failed := volumeFailures(o)
	var out []v1.VolumeStatus
	known := map[string]bool{}
	for i := range vmi.Status.VolumeStatus {
		s := *vmi.Status.VolumeStatus[i].DeepCopy()
		known[s.Name] = true
		if t := targets[s.Name]; t != "" {
			s.Target = t
		}
		if Hotplugged(vmi, &s) {
			hotplugPhase(vmi, o, &s, targets[s.Name] != "")
		}
		if f, ok := failed[s.Name]; ok {
			if s.Reason == f.reason {
				f.message = vmistatus.Steady(s.Message, f.message)
			}
			s.Reason, s.Message = f.reason, f.message
		} else if slices.Contains(passing[1:], s.Reason) {
			s.Reason, s.Message = "", ""
		}
		out = append(out, s)
	}
	for name, target := range targets {
		if !known[name] {
			out = append(out, v1.VolumeStatus{Name: name, Target: target, Reason: failed[name].reason, Message: failed[name].message})
			known[name] = true
		}
	}
	for name, f := range failed {
		if !known[name] && InSpec(vmi, name) {
			out = append(out, v1.VolumeStatus{Name: name, Reason: f.reason, Message: f.message})
		}
	}
	slices.SortFunc(out, func(a, b v1.VolumeStatus) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// diskTargets returns the targets of the disks that have a medium, by the name of the volume.
// An empty drive may have a source element all the same.
func diskTargets(live *libvirtxml.Domain) map[string]string {
	out := map[string]string{}
	if live == nil || live.Devices == nil {
		return out
	}
	for i := range live.Devices.Disks {
		d := &live.Devices.Disks[i]
		if name := xmlspec.NameOf(d.Alias); name != "" && xmlspec.PathOf(d.Source) != "" && d.Target != nil {
			out[name] = d.Target.Dev
		}
	}
	return out
}

// VolumesOf returns the names of the volumes that are disks of the domain, in no particular
// order; none for nil.
func VolumesOf(d *libvirtxml.Domain) []string { return slices.Collect(maps.Keys(diskTargets(d))) }

// Hotplugged reports whether the volume is a hotplugged one that becomes a disk. Memory dumps
// and utility volumes do not.
func Hotplugged(vmi *v1.VirtualMachineInstance, s *v1.VolumeStatus) bool {
	return s.HotplugVolume != nil && s.MemoryDumpVolume == nil &&
		!slices.ContainsFunc(vmi.Spec.UtilityVolumes, func(v v1.UtilityVolume) bool { return v.Name == s.Name })
}

// InSpec reports whether the spec has the volume.
func InSpec(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Volumes, func(v v1.Volume) bool { return v.Name == volume })
}

// hotplugPhase sets the phase of a hotplugged volume, as far as it is the node's to set. While
// the volume is a disk of the domain it stays Ready, in the spec or not: its attachment Pod
// must not be removed before.
func hotplugPhase(vmi *v1.VirtualMachineInstance, o Observation, s *v1.VolumeStatus, plugged bool) {
	_, here := o.Facts.Disks[s.Name]
	switch wanted := InSpec(vmi, s.Name); {
	case plugged && wanted:
		enter(s, v1.VolumeReady, reasonVolumeReady, "Successfully attach hotplugged volume "+s.Name+" to VM")
	case plugged:
		s.Reason, s.Message = ReasonVolumeDetaching, "Waiting for the guest to release volume "+s.Name
	case wanted && here && arriving(s.Phase, o):
		enter(s, v1.HotplugVolumeMounted, reasonVolumeMounted, "Volume "+s.Name+" has been mounted in virt-launcher pod")
	case !wanted && o.live() != nil && InUse(s.Phase):
		enter(s, v1.HotplugVolumeUnMounted, reasonVolumeUnmounted, "Volume "+s.Name+" has been unmounted from virt-launcher pod")
	}
}

// enter sets the phase of a volume, and replaces a temporary reason.
func enter(s *v1.VolumeStatus, p v1.VolumePhase, reason, message string) {
	if s.Phase != p || slices.Contains(passing, s.Reason) {
		s.Phase, s.Reason, s.Message = p, reason, message
	}
}

// InUse reports whether a volume in that phase is mounted on the node.
func InUse(p v1.VolumePhase) bool { return p == v1.VolumeReady || p == v1.HotplugVolumeMounted }

// arriving reports whether a volume in that phase, which is mounted and not a disk of the
// domain, becomes MountedToPod.
func arriving(p v1.VolumePhase, o Observation) bool {
	switch p {
	case v1.VolumeBound, v1.VolumePending, v1.HotplugVolumeAttachedToNode:
		return true
	}
	return InUse(p) && o.live() != nil // it was unplugged, or could not be hotplugged
}

// diskFailure is the reason and message of a failed action in a volume's status.
type diskFailure struct{ reason, message string }

// volumeFailures returns the failures of disks, and why volumes to be hotplugged are not found.
func volumeFailures(o Observation) map[string]diskFailure {
	out := diskFailures(o.Failures)
	for name, why := range o.Facts.Missing {
		if _, found := out[name]; !found {
			out[name] = diskFailure{ReasonHotplugFailed, why}
		}
	}
	return out
}

// diskFailures returns the first failure of each disk, by the name of the volume.
func diskFailures(all []action.Failure) map[string]diskFailure {
	out := map[string]diskFailure{}
	for _, t := range all {
		op := t.Action.Operation
		reason := ReasonHotplugFailed
		if _, ok := op.Device.(*libvirtxml.DomainDisk); !ok {
			if op.Verb != domain.ResizeDisk {
				continue
			}
			reason = ReasonResizeFailed
		}
		name := strings.TrimPrefix(op.DeviceAlias(), xmlspec.AliasPrefix)
		if _, found := out[name]; name != "" && !found {
			out[name] = diskFailure{reason, t.String()}
		}
	}
	return out
}
