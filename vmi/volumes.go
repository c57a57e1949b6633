// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

const (
	// ReasonSuccessfulCreate and ReasonSuccessfulDelete: a Pod was created or deleted.
	// They are reasons of events, and of the status of the volume that the Pod carries.
	ReasonSuccessfulCreate = "SuccessfulCreate"
	// ReasonSuccessfulDelete is told when the Pod of a volume is being deleted.
	ReasonSuccessfulDelete = "SuccessfulDelete"

	// stateVolume is the name under which the claim with the guest's state is told.
	stateVolume = "persistent-state-for-this-vm"
)

// troubled are the reasons with which the node says for a while what is wrong with a
// volume. It writes them again as often as they are taken away.
var troubled = []string{"VolumeDetaching", "HotplugFailed", "ResizeFailed"}

// pluggedState is what plugging comes to for one volume. It is computed once for
// all, so that the status never tells of a Pod other than the one that is kept.
type pluggedState struct {
	// Pod is the attachment Pod that carries the volume; nil if there is none.
	Pod *corev1.Pod
	// Wanted says that the volume is to be plugged: the guest's spec has it, and the
	// guest's Pod does not.
	Wanted bool
	// Reason and Message say what keeps a wanted volume from having a Pod, where more
	// is known than the phase of its claim; both may be empty.
	Reason, Message string
}

// volumeStatus is what the object shall say of its volumes, sorted by name, and what
// people should read of what has become new. plugged is about volumes by name: those
// to be plugged, and those that an attachment Pod still carries. Nothing becomes new
// before the guest has a Pod.
//
// The status has two writers. The claim and the Pod that carries a volume are told
// here; the target, and the phases MountedToPod, Ready and UnMountedFromPod, with what
// they were entered for, are the node's word and stay.
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
	// old are copies of the entries that have not been dealt with yet, by name.
	old    map[string]*v1.VolumeStatus
	out    []v1.VolumeStatus
	events []Event
}

// take returns the entry of a volume, a new one if it has none. It is not to be taken
// twice: names are the keys of the list.
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

// rest are the names of the entries that were not taken, sorted.
func (w *volumeWriter) rest() []string {
	var names []string
	for name := range w.old {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// state tells of the claim with the guest's state, by which a migration finds it. Its
// entry had the name of the claim once.
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
	if old := w.old[claim.Name]; old != nil && !w.mounts(claim.Name) {
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

// volume tells of a volume of the spec.
func (w *volumeWriter) volume(v *v1.Volume) {
	entry, first := w.take(v.Name)
	if !first {
		return
	}
	if v.MemoryDump != nil && entry.MemoryDumpVolume == nil {
		// The name of the volume, not of the claim: so KubeVirt has it.
		entry.MemoryDumpVolume = &v1.DomainMemoryDumpInfo{ClaimName: v.Name}
	}
	if v.PersistentVolumeClaim != nil || v.DataVolume != nil || v.MemoryDump != nil {
		claim := sourceClaim(v)
		if p := w.plugged[v.Name]; p.Wanted {
			w.plug(entry, p, claim)
		}
		w.claimInfo(entry, claim)
	}
	w.out = append(w.out, *entry)
}

// utility tells of a utility volume: it is always plugged, and needs folders.
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
			"utility volume "+v.Name+": "+w.claimObject(v.ClaimName)+" is a block device and has no folders; name one with spec.volumeMode Filesystem")
	} else {
		w.plug(entry, w.plugged[v.Name], v.ClaimName)
		w.claimInfo(entry, v.ClaimName)
	}
	w.out = append(w.out, *entry)
}

// plug takes a volume that is to be plugged through the phases up to the node. One that
// was taken from the guest and is wanted again begins anew.
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
		entry.HotplugVolume.AttachPodUID = "" // nothing is to be mounted from a Pod that is gone
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

// attached says that a Pod carries the volume to the node.
func (w *volumeWriter) attached(entry *v1.VolumeStatus, pod *corev1.Pod) {
	message := fmt.Sprintf("attachment Pod %s was created for volume %s", pod.Name, entry.Name)
	if entry.Phase != v1.HotplugVolumeAttachedToNode {
		w.tell(ReasonSuccessfulCreate, message)
	}
	say(entry, v1.HotplugVolumeAttachedToNode, ReasonSuccessfulCreate, message)
}

// removed tells of a volume that the spec has no more, until nobody has it. What the
// guest still has is not detached: the node says when it has let go.
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
		if pod.DeletionTimestamp != nil && entry.Reason != ReasonSuccessfulDelete && !slices.Contains(troubled, entry.Reason) {
			entry.Reason = ReasonSuccessfulDelete
			entry.Message = fmt.Sprintf("attachment Pod %s of volume %s was deleted", pod.Name, entry.Name)
			w.tell(entry.Reason, entry.Message)
		}
	}
	w.out = append(w.out, *entry)
}

func (w *volumeWriter) tell(reason, message string) {
	w.events = append(w.events, Event{Reason: reason, Message: message})
}

// say enters a phase. As long as the volume stays in it, what the node says is wrong
// stays as well.
func say(entry *v1.VolumeStatus, phase v1.VolumePhase, reason, message string) {
	if entry.Phase == phase && slices.Contains(troubled, entry.Reason) {
		return
	}
	entry.Phase, entry.Reason, entry.Message = phase, reason, message
}

// onNode tells whether the phase says that the node has the volume: only it can tell
// when it has not any more.
func onNode(p v1.VolumePhase) bool { return p == v1.VolumeReady || p == v1.HotplugVolumeMounted }

// dumps tells whether the phase is about a dump of the guest's memory, of which only the
// node knows.
func dumps(p v1.VolumePhase) bool {
	return p == v1.MemoryDumpVolumeInProgress || p == v1.MemoryDumpVolumeCompleted || p == v1.MemoryDumpVolumeFailed
}

// inUse tells whether the node still has a volume that nothing else is known of. An
// entry that it made itself, for a disk that the guest has, it would make again.
func inUse(entry *v1.VolumeStatus) bool {
	if entry.HotplugVolume == nil {
		return entry.Target != ""
	}
	return onNode(entry.Phase)
}

// podServes tells whether a node can take volumes from an attachment Pod.
func podServes(p *corev1.Pod) bool {
	return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready
}
