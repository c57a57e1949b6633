// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/internal/volumeclaim"
)

const (
	// reasonSuccessfulCreate: a Pod was created. Both reasons are used in events and in
	// the status of the volume that the Pod carries.
	reasonSuccessfulCreate = "SuccessfulCreate"
	// reasonSuccessfulDelete: the Pod of a volume is being deleted.
	reasonSuccessfulDelete = "SuccessfulDelete"

	// stateVolume is the name of the backend storage claim in status.volumeStatus.
	stateVolume = "persistent-state-for-this-vm"
)

// troubled are the reasons by which the node reports a temporary problem of a volume. It sets
// them again whenever they are removed.
var troubled = []string{"VolumeDetaching", "HotplugFailed", "ResizeFailed"}

// pluggedState is the hotplug state of one volume. It is computed once for plan and status, so
// that both name the same Pod.
type pluggedState struct {
	// Pod is the attachment Pod that carries the volume; nil if there is none.
	Pod *corev1.Pod
	// Wanted is true if the volume is to be hotplugged: the spec has it, and the launcher
	// Pod does not.
	Wanted bool
	// Reason and Message explain why a wanted volume has no Pod, where more is known than
	// the phase of its claim; both may be empty.
	Reason, Message string
}

// volumeStatus returns the new status.volumeStatus, sorted by name, and the events for its
// changes. plugged contains, by name, the volumes to be hotplugged and those that an
// attachment Pod still carries. Nothing changes before the VMI has a Pod.
//
// The status has two writers. The controller writes the claim and the Pod that carries a
// volume; the node agent owns the target and the phases MountedToPod, Ready and
// UnMountedFromPod, with their reason and message.
func volumeStatus(s Snapshot, launcher *corev1.Pod, plugged map[string]pluggedState) ([]v1.VolumeStatus, []Event) {
	w := volumeWriter{Snapshot: s, plugged: plugged, old: map[string]*v1.VolumeStatus{}}
	for i := range s.VMI.Status.VolumeStatus {
		entry := s.VMI.Status.VolumeStatus[i].DeepCopy()
		if launcher == nil {
			w.out = append(w.out, *entry)
		} else if w.old[entry.Name] == nil {
			w.old[entry.Name] = entry
		}
	}
	if launcher == nil {
		return w.out, nil
	}
	w.state()
	for i := range s.VMI.Spec.Volumes {
		w.volume(&s.VMI.Spec.Volumes[i])
	}
	for i := range s.VMI.Spec.UtilityVolumes {
		w.utility(&s.VMI.Spec.UtilityVolumes[i])
	}
	for _, name := range w.rest() {
		w.removed(w.old[name])
	}
	slices.SortStableFunc(w.out, func(a, b v1.VolumeStatus) int { return strings.Compare(a.Name, b.Name) })
	return w.out, w.events
}

// volumeWriter is the working state of one volumeStatus.
type volumeWriter struct {
	Snapshot
	plugged map[string]pluggedState
	// old are copies of the entries that have not been processed yet, by name.
	old    map[string]*v1.VolumeStatus
	out    []v1.VolumeStatus
	events []Event
}

// take returns the entry of a volume, a new one if it has none. first is false for a repeated
// name: names are the keys of the list.
func (w *volumeWriter) take(name string) (entry *v1.VolumeStatus, first bool) {
	if slices.ContainsFunc(w.out, func(s v1.VolumeStatus) bool { return s.Name == name }) {
		return nil, false
	}
	entry = w.old[name]
	delete(w.old, name)
	if entry == nil {
		entry = &v1.VolumeStatus{Name: name}
	}
	return entry, true
}

// rest returns the sorted names of the entries that were not taken.
func (w *volumeWriter) rest() []string {
	var names []string
	for name := range w.old {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// state reports the backend storage claim, which migrations read. Old releases named the entry
// after the claim.
func (w *volumeWriter) state() {
	if _, needed := needsState(w.VMI); !needed {
		return
	}
	claims := stateClaims(w.Snapshot)
	if len(claims) == 0 {
		if w.old[stateVolume] != nil {
			w.keep(stateVolume)
		}
		return
	}
	claim := claims[0]
	if old := w.old[claim.Name]; old != nil && !usesClaim(w.VMI, claim.Name) {
		delete(w.old, claim.Name)
		if w.old[stateVolume] == nil {
			old.Name = stateVolume
			w.old[stateVolume] = old
		}
	}
	entry, _ := w.take(stateVolume)
	if entry.PersistentVolumeClaimInfo == nil {
		entry.PersistentVolumeClaimInfo = &v1.PersistentVolumeClaimInfo{}
	}
	entry.PersistentVolumeClaimInfo.ClaimName = claim.Name
	entry.PersistentVolumeClaimInfo.AccessModes = slices.Clone(claim.Spec.AccessModes)
	w.out = append(w.out, *entry)
}

func (w *volumeWriter) keep(name string) {
	if entry, first := w.take(name); first {
		w.out = append(w.out, *entry)
	}
}

// volume reports a volume of the spec.
func (w *volumeWriter) volume(v *v1.Volume) {
	entry, first := w.take(v.Name)
	if !first {
		return
	}
	if v.MemoryDump != nil && entry.MemoryDumpVolume == nil {
		// The name of the volume, not of the claim, as in KubeVirt.
		entry.MemoryDumpVolume = &v1.DomainMemoryDumpInfo{ClaimName: v.Name}
	}
	if v.PersistentVolumeClaim != nil || v.DataVolume != nil || v.MemoryDump != nil {
		claim := volumeclaim.Read(v)
		if p := w.plugged[v.Name]; p.Wanted {
			w.plug(entry, p, claim)
		}
		w.claimInfo(entry, claim)
	}
	w.out = append(w.out, *entry)
}

// utility reports a utility volume: it is always hotplugged, and needs a file system.
func (w *volumeWriter) utility(v *v1.UtilityVolume) {
	entry, first := w.take(v.Name)
	if !first {
		return
	}
	if claim := w.Storage.Claims[v.ClaimName]; claim != nil && isBlock(claim) {
		if entry.HotplugVolume == nil {
			entry.HotplugVolume = &v1.HotplugVolumeStatus{}
		}
		entry.HotplugVolume.AttachPodUID = ""
		say(entry, v1.VolumePending, ReasonPVCNotReady,
			"utility volume "+v.Name+": "+claimObject(w.VMI, v.ClaimName)+" is a block device, which is not supported; name one with spec.volumeMode Filesystem")
	} else {
		w.plug(entry, w.plugged[v.Name], v.ClaimName)
		w.claimInfo(entry, v.ClaimName)
	}
	w.out = append(w.out, *entry)
}

// plug advances a hotplugged volume through the phases up to AttachedToNode. A volume that was
// unplugged and is wanted again starts over.
func (w *volumeWriter) plug(entry *v1.VolumeStatus, p pluggedState, claim string) {
	if entry.HotplugVolume == nil {
		entry.HotplugVolume = &v1.HotplugVolumeStatus{}
	}
	carried := p.Pod != nil && p.Pod.DeletionTimestamp == nil
	switch {
	case carried:
		entry.HotplugVolume.AttachPodName = p.Pod.Name
		entry.HotplugVolume.AttachPodUID = ""
		if podServes(p.Pod) {
			entry.HotplugVolume.AttachPodUID = p.Pod.UID
		}
	case entry.Phase != v1.VolumeReady:
		entry.HotplugVolume.AttachPodUID = "" // nothing can be mounted from a deleted Pod
	}
	switch {
	case onNode(entry.Phase) || dumps(entry.Phase):
	case !carried:
		phase, reason, message := w.claimPhase(claim)
		if p.Reason != "" {
			reason, message = p.Reason, p.Message
		}
		say(entry, phase, reason, message)
	default:
		w.attached(entry, p.Pod)
	}
}

// attached records that a Pod carries the volume to the node.
func (w *volumeWriter) attached(entry *v1.VolumeStatus, pod *corev1.Pod) {
	message := fmt.Sprintf("attachment Pod %s was created for volume %s", pod.Name, entry.Name)
	if entry.Phase != v1.HotplugVolumeAttachedToNode {
		w.emit(reasonSuccessfulCreate, message)
	}
	say(entry, v1.HotplugVolumeAttachedToNode, reasonSuccessfulCreate, message)
}

// removed reports a volume that is no longer in the spec, until no Pod carries it and the domain
// does not use it. A volume in use is not Detaching: the node reports when it is unmounted.
func (w *volumeWriter) removed(entry *v1.VolumeStatus) {
	pod := w.plugged[entry.Name].Pod
	if pod == nil {
		if inUse(entry) {
			w.out = append(w.out, *entry)
		}
		return
	}
	if entry.HotplugVolume == nil {
		entry.HotplugVolume = &v1.HotplugVolumeStatus{}
	}
	entry.HotplugVolume.AttachPodName, entry.HotplugVolume.AttachPodUID = pod.Name, pod.UID
	if !onNode(entry.Phase) {
		entry.Phase = v1.HotplugVolumeDetaching
		if pod.DeletionTimestamp != nil && entry.Reason != reasonSuccessfulDelete && !slices.Contains(troubled, entry.Reason) {
			entry.Reason = reasonSuccessfulDelete
			entry.Message = fmt.Sprintf("attachment Pod %s of volume %s was deleted", pod.Name, entry.Name)
			w.emit(entry.Reason, entry.Message)
		}
	}
	w.out = append(w.out, *entry)
}

func (w *volumeWriter) emit(reason, message string) {
	w.events = append(w.events, Event{Reason: reason, Message: message})
}

// say sets the phase. While the phase is unchanged, a problem reported by the node is kept.
func say(entry *v1.VolumeStatus, phase v1.VolumePhase, reason, message string) {
	if entry.Phase == phase && slices.Contains(troubled, entry.Reason) {
		return
	}
	entry.Phase, entry.Reason, entry.Message = phase, reason, message
}

// onNode reports whether the phase belongs to the node agent: only it knows when the volume is
// unmounted.
func onNode(p v1.VolumePhase) bool { return p == v1.VolumeReady || p == v1.HotplugVolumeMounted }

// dumps reports whether the phase is about a memory dump, which only the node knows about.
func dumps(p v1.VolumePhase) bool {
	return p == v1.MemoryDumpVolumeInProgress || p == v1.MemoryDumpVolumeCompleted || p == v1.MemoryDumpVolumeFailed
}

// inUse reports whether the node still uses a volume that is otherwise unknown. The node would
// recreate an entry of its own for a disk of the domain.
func inUse(entry *v1.VolumeStatus) bool {
	if entry.HotplugVolume == nil {
		return entry.Target != ""
	}
	return onNode(entry.Phase)
}

// podServes reports whether a node can mount volumes from an attachment Pod.
func podServes(p *corev1.Pod) bool {
	return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready
}
