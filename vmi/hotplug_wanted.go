// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/handoff"
)

// plugState is the progress of a volume to be hotplugged.
type plugState int

const (
	// plugUnready: its claim is not usable yet.
	plugUnready plugState = iota
	// plugUnplaced: its claim waits for a first consumer on the node.
	plugUnplaced
	// plugReady: an attachment Pod can carry it.
	plugReady
)

// plug is a volume to be hotplugged.
type plug struct {
	volume, claim string
	// field is the field of the spec that names the claim.
	field string
	state plugState
	// reason and message explain in the volume's status why it is not ready, wait does so
	// as a wait.
	reason, message string
	wait            *Wait
}

// plugsOf returns the volumes with a claim that the launcher Pod does not have by name,
// utility volumes last.
func plugsOf(s Snapshot, launcher *corev1.Pod) []plug {
	// By name, as what the launcher Pod has under a name cannot be replaced while it runs. A changed
	// claim of such a volume is a migration of volumes, and not a hotplug.
	seen := map[string]bool{}
	for i := range launcher.Spec.Volumes {
		seen[launcher.Spec.Volumes[i].Name] = true
	}
	var plugs []plug
	add := func(p plug, utility bool) {
		if !seen[p.volume] {
			seen[p.volume] = true
			p.admit(s, utility)
			plugs = append(plugs, p)
		}
	}
	for i := range s.VMI.Spec.Volumes {
		v := &s.VMI.Spec.Volumes[i]
		p := plug{volume: v.Name, field: fmt.Sprintf("spec.volumes[%d]", i)}
		switch {
		case v.PersistentVolumeClaim != nil:
			p.claim, p.field = v.PersistentVolumeClaim.ClaimName, p.field+".persistentVolumeClaim.claimName"
		case v.DataVolume != nil:
			p.claim, p.field = v.DataVolume.Name, p.field+".dataVolume.name"
		case v.MemoryDump != nil:
			p.claim, p.field = v.MemoryDump.ClaimName, p.field+".memoryDump.claimName"
		default:
			continue
		}
		add(p, false)
	}
	for i := range s.VMI.Spec.UtilityVolumes {
		v := &s.VMI.Spec.UtilityVolumes[i]
		add(plug{volume: v.Name, claim: v.ClaimName, field: fmt.Sprintf("spec.utilityVolumes[%d].claimName", i)}, true)
	}
	return plugs
}

// admit computes the state of a volume. A volume that is not ready blocks no other.
func (p *plug) admit(s Snapshot, utility bool) {
	claim := s.Storage.Claims[p.claim]
	switch {
	case claim == nil:
		p.claimMissing(s)
	case utility && isBlock(claim):
		p.hold(s.VMI, handoff.ByUser, "is a block device, which is not supported for a utility volume; name one with volumeMode Filesystem", "the volume names another claim")
	case claim.DeletionTimestamp != nil:
		p.hold(s.VMI, handoff.ByUser, "is being deleted; recreate it or correct the name", "the claim is deleted")
	case claim.Status.Phase == corev1.ClaimLost:
		p.hold(s.VMI, handoff.ByUser, "has lost its PersistentVolume; restore that, or delete and create the claim", "the claim is bound")
	default:
		// The claim of a DataVolume exists, and may even be bound, before it has its content. A domain that
		// got it now would see an empty disk.
		if dv, name := s.Storage.importer(claim); name != "" {
			p.admitFilled(s.VMI, dv, name)
		} else if s.Storage.unbound(claim) {
			// No Pod would bind it. Added to a Pod, it would block all other volumes.
			p.hold(s.VMI, handoff.ByStorage, "is not bound yet", "the claim is bound")
		} else {
			p.state = plugReady
		}
	}
}

// admitFilled computes the state of a volume whose claim a DataVolume populates.
func (p *plug) admitFilled(vmi *v1.VirtualMachineInstance, dv *cdiv1.DataVolume, name string) {
	object := dataVolumeObject(vmi, name)
	if dv == nil {
		p.unready(ReasonFailedDataVolumeImport, *noDataVolume(vmi, p.claim, name, p.field))
		return
	}
	w := Wait{
		Message: fmt.Sprintf("%s: %s is in phase %s%s", p.field, object, stage(dv), trouble(dv)),
		Object:  object, Until: "the claim is populated", Responsible: handoff.ByStorage,
	}
	switch {
	case imported(dv):
		p.state = plugReady
	case dv.Status.Phase == cdiv1.WaitForFirstConsumer:
		p.state = plugUnplaced
		p.reason, p.message = ReasonPVCNotReady, w.Message
	default:
		var remedy string
		if remedy, w.Responsible = finisher(dv.Status.Phase); w.Responsible == handoff.ByUser {
			w.Message += "; " + remedy
		}
		p.unready(ReasonPVCNotReady, w)
	}
}

// claimMissing records who must create the claim.
func (p *plug) claimMissing(s Snapshot) {
	object := claimObject(s.VMI, p.claim)
	w := Wait{
		Message: fmt.Sprintf("%s: %s does not exist; create it or correct the name", p.field, object),
		Object:  object, Until: "the claim is created", Responsible: handoff.ByUser,
	}
	// A DataVolume creates its claim under its own name; until then the user has nothing to correct.
	if dv := s.Storage.DataVolumes[p.claim]; dv != nil && dv.Status.Phase != cdiv1.Failed {
		w.Responsible, w.Message = handoff.ByStorage, fmt.Sprintf("%s: DataVolume %s has not created its claim yet", p.field, p.claim)
	}
	p.unready(ReasonPVCNotReady, w)
	p.reason = ReasonPvcNotFound
}

// unbound reports whether a claim is still to be bound without a Pod that uses it.
func (s Storage) unbound(claim *corev1.PersistentVolumeClaim) bool {
	if claim.Status.Phase != corev1.ClaimPending || s.Classes == nil {
		return false
	}
	// A class that is unknown here is taken for one with immediate binding: then a claim that stays
	// unbound waits alone. Taken for the other, it would hold up all volumes of the attachment Pod.
	class := s.Classes[ptr.Deref(claim.Spec.StorageClassName, "")]
	return class == nil || ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingImmediate
}

// hold makes a volume wait for a change of its claim.
func (p *plug) hold(vmi *v1.VirtualMachineInstance, by handoff.Responsible, what, until string) {
	object := claimObject(vmi, p.claim)
	p.unready(ReasonPVCNotReady, Wait{
		Message: fmt.Sprintf("%s: %s %s", p.field, object, what), Object: object, Until: until, Responsible: by,
	})
}

func (p *plug) unready(reason string, w Wait) {
	w.Reason = reason
	p.state, p.reason, p.message, p.wait = plugUnready, reason, w.Message, &w
}

// unmounted returns the wait for a volume that is attached to the node but not to the domain.
func (h *plugging) unmounted(p *plug, carrier *corev1.Pod) *Wait {
	if carrier == nil || !podRunning(carrier) {
		return nil
	}
	for i := range h.VMI.Status.VolumeStatus {
		switch s := &h.VMI.Status.VolumeStatus[i]; {
		case s.Name != p.volume:
		case s.Phase == v1.VolumePending, s.Phase == v1.VolumeBound, s.Phase == v1.HotplugVolumeAttachedToNode:
			return &Wait{
				Reason:  "VolumeNotMounted",
				Message: fmt.Sprintf("volume %s is attached to node %s by %s; waiting for the node to hotplug it", p.volume, h.launcher.Spec.NodeName, podObject(carrier)),
				Object:  podObject(h.launcher), Until: "the volume is mounted", Responsible: handoff.ByNode,
			}
		}
	}
	return nil
}
