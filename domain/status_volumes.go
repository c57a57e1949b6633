// SPDX-License-Identifier: Apache-2.0

package domain

import (
	"maps"
	"slices"
	"strings"

	v1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// Reasons of a volume's status, next to a message. The first three are KubeVirt's.
const (
	// ReasonVolumeMounted: the volume has arrived on the node.
	ReasonVolumeMounted = "VolumeMountedToPod"
	// ReasonVolumeReady: the guest has it as a disk.
	ReasonVolumeReady = "VolumeReady"
	// ReasonVolumeUnmounted: neither the guest nor the node has it any more.
	ReasonVolumeUnmounted = "VolumeUnMountedFromPod"
	// ReasonVolumeDetaching: the guest was asked to release it and has not yet.
	ReasonVolumeDetaching = "VolumeDetaching"
	// ReasonHotplugFailed: the disk could not be plugged, unplugged or changed.
	// KubeVirt has it as the reason of an event.
	ReasonHotplugFailed = "HotplugFailed"
	// ReasonResizeFailed: the disk could not be made as large as its volume.
	ReasonResizeFailed = "ResizeFailed"
)

// passing are the reasons that hold for a while only, and are taken back.
var passing = []string{ReasonVolumeDetaching, ReasonHotplugFailed, ReasonResizeFailed}

// VolumeStatus returns the volume statuses, sorted by name, with the target of
// each disk as the running domain has it, the phase that hotplugged volumes have
// come to, and what went wrong. All else stays as it is.
func VolumeStatus(vmi *v1.VirtualMachineInstance, o Observation) []v1.VolumeStatus {
	targets := diskTargets(o.live())
	failed := diskTroubles(o.Troubles)
	var out []v1.VolumeStatus
	known := map[string]bool{}
	for i := range vmi.Status.VolumeStatus {
		s := *vmi.Status.VolumeStatus[i].DeepCopy()
		known[s.Name] = true
		if t := targets[s.Name]; t != "" {
			s.Target = t
		}
		if hotplugged(vmi, &s) {
			hotplugPhase(vmi, o, &s, targets[s.Name] != "")
		}
		if f, ok := failed[s.Name]; ok {
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
		if !known[name] && inSpec(vmi, name) {
			out = append(out, v1.VolumeStatus{Name: name, Reason: f.reason, Message: f.message})
		}
	}
	slices.SortFunc(out, func(a, b v1.VolumeStatus) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// diskTargets are the targets of the disks with something in them, which an empty
// drive may have a source element without, by the name of
// the volume.
func diskTargets(live *libvirtxml.Domain) map[string]string {
	out := map[string]string{}
	if live == nil || live.Devices == nil {
		return out
	}
	for i := range live.Devices.Disks {
		d := &live.Devices.Disks[i]
		if name := nameOf(d.Alias); name != "" && pathOf(d.Source) != "" && d.Target != nil {
			out[name] = d.Target.Dev
		}
	}
	return out
}

// VolumesOf are the names of the volumes that the domain has as disks, in no order; nil
// has none.
func VolumesOf(d *libvirtxml.Domain) []string { return slices.Collect(maps.Keys(diskTargets(d))) }

// hotplugged tells whether the volume was plugged into a guest that ran and becomes
// a disk of it. Dumps of the memory and utility volumes do not.
func hotplugged(vmi *v1.VirtualMachineInstance, s *v1.VolumeStatus) bool {
	return s.HotplugVolume != nil && s.MemoryDumpVolume == nil &&
		!slices.ContainsFunc(vmi.Spec.UtilityVolumes, func(v v1.UtilityVolume) bool { return v.Name == s.Name })
}

func inSpec(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Volumes, func(v v1.Volume) bool { return v.Name == volume })
}

// hotplugPhase takes a hotplugged volume through the phases that are the node's. As
// long as the guest has it as a disk it stays Ready, wanted or not: what carries it
// to the node must not go before.
func hotplugPhase(vmi *v1.VirtualMachineInstance, o Observation, s *v1.VolumeStatus, plugged bool) {
	_, here := o.Facts.Disks[s.Name]
	switch wanted := inSpec(vmi, s.Name); {
	case plugged && wanted:
		enter(s, v1.VolumeReady, ReasonVolumeReady, "the guest has volume "+s.Name+" as disk "+s.Target)
	case plugged:
		s.Reason, s.Message = ReasonVolumeDetaching, "the guest was asked to release volume "+s.Name
	case wanted && here && arriving(s.Phase, o):
		enter(s, v1.HotplugVolumeMounted, ReasonVolumeMounted, "volume "+s.Name+" has arrived on node "+o.Node)
	case !wanted && o.live() != nil && inUse(s.Phase):
		enter(s, v1.HotplugVolumeUnMounted, ReasonVolumeUnmounted, "volume "+s.Name+" is not used on node "+o.Node+" any more")
	}
}

// enter says that the volume has come to a phase; what holds for a while only is
// over then.
func enter(s *v1.VolumeStatus, p v1.VolumePhase, reason, message string) {
	if s.Phase != p || slices.Contains(passing, s.Reason) {
		s.Phase, s.Reason, s.Message = p, reason, message
	}
}

// inUse tells whether a volume of that phase is on the node.
func inUse(p v1.VolumePhase) bool { return p == v1.VolumeReady || p == v1.HotplugVolumeMounted }

// arriving tells whether a volume that has arrived, and that the guest does not
// have, is to be said to have arrived.
func arriving(p v1.VolumePhase, o Observation) bool {
	switch p {
	case v1.VolumeBound, v1.VolumePending, v1.HotplugVolumeAttachedToNode:
		return true
	}
	return inUse(p) && o.live() != nil // it was taken from the guest, or could not be given to it
}

// diskTrouble is what a volume's status says of a task that failed.
type diskTrouble struct{ reason, message string }

// diskTroubles are those about disks, by the name of the volume; of several the
// first.
func diskTroubles(all []Trouble) map[string]diskTrouble {
	out := map[string]diskTrouble{}
	for _, t := range all {
		op := t.Task.Operation
		reason := ReasonHotplugFailed
		if _, ok := op.Device.(*libvirtxml.DomainDisk); !ok {
			if op.Verb != ResizeDisk {
				continue
			}
			reason = ReasonResizeFailed
		}
		name := strings.TrimPrefix(op.device(), AliasPrefix)
		if _, told := out[name]; name != "" && !told {
			out[name] = diskTrouble{reason, t.String()}
		}
	}
	return out
}
