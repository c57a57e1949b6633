// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// DefaultHotplugBatch is how old the newest attachment Pod must be before another
// takes its place because volumes were added or removed, so that several that come
// in a row are brought by one Pod. The first is created at once.
const DefaultHotplugBatch = 3 * time.Second

// hotplugPlan is what plugging comes to in one decision.
type hotplugPlan struct {
	// Actions create and delete attachment and trigger Pods.
	Actions []Action
	// Plugged tells by the name of every volume that is to be plugged, or that a Pod
	// still carries, which Pod that is.
	Plugged map[string]pluggedState
	// Waits are what has to happen before all volumes are plugged or unplugged.
	Waits []Wait
	// RequeueAt is when to look again without an event; nil means never.
	RequeueAt *time.Time
}

// hotplug computes once which attachment Pod the guest shall have beside its own Pod
// launcher, and takes actions and status from that. Without batch it is
// DefaultHotplugBatch.
//
// A Pod cannot be changed, so one Pod brings all volumes that are ready, and another
// takes its place when they change. Only the volumes with their claims are compared:
// a token or what a webhook adds is no difference. Until the other runs, the one
// before it stays, and a Pod stays in any case while the guest uses a volume that no
// other running one brings.
//
// A Pod's name says its volumes and whose they are, so one that ended or is on its
// way out is in the way of the next of the same set.
//
// During a live migration each of the guest's Pods has attachments of its own, for
// they are found by their controller. Those of the target are the migration's: they
// are left alone until the guest is there. Then its Pod is the launcher, and what
// was made for the same volumes fits, whoever made it. Those of the source are
// deleted when its Pod has ended, and go with it at the latest. (Package migration
// does not move guests with plugged volumes yet, so it makes none.)
func hotplug(s Snapshot, launcher *corev1.Pod, now time.Time, batch time.Duration) hotplugPlan {
	if batch <= 0 {
		batch = DefaultHotplugBatch
	}
	h := &plugging{Snapshot: s, launcher: launcher, now: now, batch: batch}
	h.out.Plugged = map[string]pluggedState{}
	if launcher != nil {
		h.plugs = plugsOf(s, launcher)
		h.attachments, h.triggers = hotplugPods(s.Attachments, launcher)
		h.current = h.choose()
		h.report()
	}
	switch {
	case len(s.Unseen) > 0:
	case s.VMI.DeletionTimestamp != nil || s.VMI.IsFinal():
		h.out.Actions = unplugAll(s)
	default:
		h.out.Actions = unplugFinished(s)
		// A Pod that is not there to stay, or not there yet, gets no volumes.
		if launcher != nil && PodReady(launcher) && launcher.Spec.NodeName != "" {
			h.provision()
			h.attach()
			h.cleanUp()
		}
	}
	return h.out
}

// plugging is the working state of one hotplug.
type plugging struct {
	Snapshot
	launcher *corev1.Pod
	now      time.Time
	batch    time.Duration
	// plugs are the volumes that are to be plugged, in the order of the spec.
	plugs []plug
	// attachments and triggers are the launcher's, newest first.
	attachments, triggers []*corev1.Pod
	// current is the attachment that brings what it should; nil if there is none.
	current *corev1.Pod
	// obstacles are attachments that have the name of the one to be made.
	obstacles []*corev1.Pod
	// created says that this pass creates an attachment.
	created bool
	out     hotplugPlan
}

// report tells of every volume which Pod carries it.
func (h *plugging) report() {
	for i := range h.plugs {
		p := &h.plugs[i]
		state := pluggedState{Pod: h.carrier(p), Wanted: true}
		if state.Pod == nil {
			state.Reason, state.Message = p.reason, p.message
		}
		h.out.Plugged[p.volume] = state
		if w := p.wait; w != nil {
			h.out.Waits = append(h.out.Waits, *w)
		} else if w := h.unmounted(p, state.Pod); w != nil {
			h.out.Waits = append(h.out.Waits, *w)
		}
	}
	for _, a := range h.attachments {
		for volume := range claimsOf(a) {
			known, found := h.out.Plugged[volume]
			// A removed volume is on its node until the last Pod is gone. One that
			// stays tells more than one that is going.
			if !found || !known.Wanted && !podLive(known.Pod) && podLive(a) {
				h.out.Plugged[volume] = pluggedState{Pod: a}
			}
		}
	}
}

// carrier returns the Pod that the node shall take the volume from: the current one
// as soon as it runs, until then a running one from before. What the guest uses is
// not denied, though the spec may name another claim for it by now.
func (h *plugging) carrier(p *plug) *corev1.Pod {
	var best, other *corev1.Pod
	for _, a := range h.attachments {
		claim, found := claimsOf(a)[p.volume]
		switch {
		case !found || !podLive(a):
		case claim != p.claim:
			if other == nil && podRunning(a) && using(h.VMI, p.volume) {
				other = a
			}
		case best == nil, podRunning(a) && !podRunning(best), a == h.current && podRunning(a) == podRunning(best):
			best = a
		}
	}
	if best == nil {
		return other
	}
	return best
}

// stalled tells of all volumes that could be brought, and are by no Pod, why not.
func (h *plugging) stalled(w Wait) {
	if !slices.ContainsFunc(h.out.Waits, func(o Wait) bool { return o.Reason == w.Reason && o.Object == w.Object }) {
		h.out.Waits = append(h.out.Waits, w)
	}
	for _, p := range h.ready() {
		if state := h.out.Plugged[p.volume]; state.Pod == nil {
			state.Reason, state.Message = w.Reason, w.Message
			h.out.Plugged[p.volume] = state
		}
	}
}

func (h *plugging) ready() []*plug {
	var ready []*plug
	for i := range h.plugs {
		if h.plugs[i].state == plugReady {
			ready = append(ready, &h.plugs[i])
		}
	}
	return ready
}

// due tells whether a Pod is at least of an age, and asks to be called again then.
// A Pod that a clock before ours seems to have made counts as old.
func (h *plugging) due(p *corev1.Pod, age time.Duration) (at *time.Time) {
	created := p.CreationTimestamp.Time
	when := created.Add(age)
	if !when.After(h.now) || created.Sub(h.now) > age {
		return nil
	}
	if r := h.out.RequeueAt; r == nil || when.Before(*r) {
		h.out.RequeueAt = &when
	}
	return &when
}

func (h *plugging) do(a Action) { h.out.Actions = append(h.out.Actions, a) }

// using tells whether the guest has a volume by the word of its node, or the node
// just writes to it.
func using(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Status.VolumeStatus, func(s v1.VolumeStatus) bool {
		return s.Name == volume && (onNode(s.Phase) || s.Phase == v1.MemoryDumpVolumeInProgress)
	})
}
