// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "kubevirt.io/api/core/v1"
)

// defaultHotplugBatch is the minimum age of the newest attachment Pod before it is replaced
// because volumes were hotplugged or unplugged, so that one Pod serves a series of changes.
// The first attachment Pod is created at once.
const defaultHotplugBatch = 3 * time.Second

// hotplugPlan is the hotplug part of one decision.
type hotplugPlan struct {
	// Actions create and delete attachment and trigger Pods.
	Actions []Action
	// Plugged maps every volume that is to be hotplugged, or that a Pod still carries, to
	// that Pod.
	Plugged map[string]pluggedState
	// Waits lists what must happen before all volumes are hotplugged or unplugged.
	Waits []Wait
	// RequeueAt is when to requeue without an event; nil means never.
	RequeueAt *time.Time
}

// hotplug computes the attachment Pod that belongs beside the launcher Pod, and derives
// actions and status from it. A batch of zero means defaultHotplugBatch.
//
// Pods are immutable, so one Pod carries all ready volumes, and another replaces it when
// they change. Only the volumes with their claims are compared: a service account token or
// additions of a webhook are no difference. The old Pod stays until its replacement runs,
// and in any case while the domain uses a volume that no other running Pod carries.
//
// A Pod's name is derived from its volumes and its owner, so a Pod that has ended or is
// terminating blocks the next one with the same set.
//
// During a live migration each launcher Pod has attachments of its own, because they are
// found by their controller. Those of the target belong to the migration: they are not
// touched until the VMI has arrived. Then the target Pod is the launcher, and existing
// attachments of the same volumes are reused, whoever created them. Those of the source are
// deleted when its Pod has ended, and are garbage-collected with it at the latest.
func hotplug(s Snapshot, launcher *corev1.Pod, now time.Time, batch time.Duration) hotplugPlan {
	if batch <= 0 {
		batch = defaultHotplugBatch
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
	case len(s.Pending) > 0:
	case s.VMI.DeletionTimestamp != nil || s.VMI.IsFinal():
		h.out.Actions = unplugAll(s)
	default:
		h.out.Actions = unplugFinished(s)
		// A Pod that is not ready or is terminating gets no volumes.
		if launcher != nil && PodReady(launcher) && launcher.Spec.NodeName != "" {
			h.provision()
			h.attach()
			h.cleanUp()
		}
	}
	return h.out
}

// plugging is the working state of one hotplug decision.
type plugging struct {
	Snapshot
	launcher *corev1.Pod
	now      time.Time
	batch    time.Duration
	// plugs are the volumes to be hotplugged, in the order of the spec.
	plugs []plug
	// attachments and triggers are those of the launcher, newest first.
	attachments, triggers []*corev1.Pod
	// current is the attachment with the wanted volumes; nil if there is none.
	current *corev1.Pod
	// obstacles are attachments with the name of the one to be created.
	obstacles []*corev1.Pod
	// created is true if this pass creates an attachment.
	created bool
	out     hotplugPlan
}

// report records for every volume which Pod carries it.
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
			// A removed volume is on its node until the last Pod is gone. A Pod that
			// stays takes precedence over a terminating one.
			if !found || !known.Wanted && !podLive(known.Pod) && podLive(a) {
				h.out.Plugged[volume] = pluggedState{Pod: a}
			}
		}
	}
}

// carrier returns the Pod from which the node must mount the volume: the current one as
// soon as it runs, until then an older running one. A volume in use stays available even if
// the spec names another claim for it by now.
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

// stalled records for all ready volumes without a Pod what they wait for.
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

// due returns nil if a Pod has reached an age; otherwise it returns that time and requeues at
// it. A Pod that seems to come from the future, by clock skew, counts as old.
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

// using reports whether the domain has a volume according to its node, or the node is
// dumping memory to it.
func using(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Status.VolumeStatus, func(s v1.VolumeStatus) bool {
		return s.Name == volume && (onNode(s.Phase) || s.Phase == v1.MemoryDumpVolumeInProgress)
	})
}
