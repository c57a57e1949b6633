// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// How long a Pod that failed stays before another is tried in its place: as long as
// its volumes had been waited for when it was made, within these bounds. So the
// time between attempts doubles, and nothing but the Pod and what it is for need be
// known for it. One that had lived longer is replaced at once.
const (
	minHotplugRetry = 10 * time.Second
	maxHotplugRetry = 5 * time.Minute
)

// clear gets a Pod out of the way that has the name of the one to be made, and says
// what is waited for.
func (h *plugging) clear(p *corev1.Pod) Wait {
	w := Wait{
		Reason: "PodInTheWay", Message: podObject(p) + " is on its way out; another like it can be made when it is gone",
		Object: podObject(p), Until: "the Pod is gone", By: ByKubelet,
	}
	if p.DeletionTimestamp != nil {
		return w
	}
	at := h.due(p, h.retryAge(p))
	if at == nil {
		h.do(takeAway(p, "it has ended and another takes its place"))
		return w
	}
	return Wait{
		Reason: "PodFailed",
		Message: fmt.Sprintf("%s has ended%s; another is tried at %s, or when it is deleted",
			podObject(p), endOf(p), at.UTC().Format(time.RFC3339)),
		Object: podObject(p), Until: "the next attempt", By: ByController, Deadline: at,
	}
}

// endOf tells how a Pod ended, as far as it is known.
func endOf(p *corev1.Pod) string {
	switch {
	case p.Status.Message != "":
		return ": " + p.Status.Message
	case p.Status.Reason != "":
		return ": " + p.Status.Reason
	}
	return ""
}

// retryAge is the age at which a Pod that ended may be replaced.
func (h *plugging) retryAge(p *corev1.Pod) time.Duration {
	since := h.launcher.CreationTimestamp.Time
	for _, claim := range claimsOf(p) {
		if c := h.Storage.Claims[claim]; c != nil && c.CreationTimestamp.After(since) {
			since = c.CreationTimestamp.Time
		}
	}
	return min(max(p.CreationTimestamp.Sub(since), minHotplugRetry), maxHotplugRetry)
}

// cleanUp deletes the attachments that others have taken the place of.
func (h *plugging) cleanUp() {
	h.leaving()
	keep := h.bridge()
	if h.current != nil {
		keep = append(keep, h.current)
	}
	for _, a := range h.attachments {
		switch {
		case a.DeletionTimestamp != nil || slices.Contains(keep, a):
		case podFinished(a):
			if !slices.Contains(h.obstacles, a) {
				h.do(takeAway(a, "it has ended"))
			}
		case h.vital(a, keep):
			keep = append(keep, a)
		default:
			h.do(takeAway(a, "it brings nothing that is needed"))
		}
	}
}

// bridge returns the attachments that serve until one that fits does: the newest
// that runs, and as long as the one to come is not made, the one whose age it waits
// for.
func (h *plugging) bridge() []*corev1.Pod {
	if len(h.ready()) == 0 || h.current != nil && podRunning(h.current) {
		return nil
	}
	var bridge []*corev1.Pod
	for _, a := range h.attachments {
		if a != h.current && podRunning(a) && h.wants(a) {
			bridge = append(bridge, a)
			break
		}
	}
	if newest := h.newest(); newest != nil && h.current == nil && !h.created {
		bridge = append(bridge, newest)
	}
	return bridge
}

// serves tells whether the guest uses a volume that the Pod carries.
func (h *plugging) serves(a *corev1.Pod) bool {
	for volume := range claimsOf(a) {
		if using(h.VMI, volume) {
			return true
		}
	}
	return false
}

// vital tells whether the guest would lose a volume it uses with the Pod: one that
// no Pod in keep brings while it runs. A volume that was removed holds all Pods that
// carry it, until its node has unmounted it.
func (h *plugging) vital(a *corev1.Pod, keep []*corev1.Pod) bool {
	if a.Status.Phase == corev1.PodPending || a.Status.Phase == "" {
		return false // it has never brought anything
	}
	for volume, claim := range claimsOf(a) {
		if using(h.VMI, volume) && (h.removed(volume, claim) || !slices.ContainsFunc(keep, func(k *corev1.Pod) bool {
			return podRunning(k) && claimsOf(k)[volume] == claim
		})) {
			return true
		}
	}
	return false
}

// leaving tells which removed volumes their node has yet to unmount.
func (h *plugging) leaving() {
	for _, a := range h.attachments {
		if !podRunning(a) {
			continue
		}
		carried := claimsOf(a)
		for _, volume := range slices.Sorted(maps.Keys(carried)) {
			claim := carried[volume]
			if !using(h.VMI, volume) || !h.removed(volume, claim) {
				continue
			}
			h.out.Waits = append(h.out.Waits, Wait{
				Reason: "VolumeInUse",
				Message: fmt.Sprintf("volume %s of claim %s is to be unplugged; %s stays until node %s has unmounted it",
					volume, claim, podObject(a), h.launcher.Spec.NodeName),
				Object: podObject(a), Until: "the volume is unmounted", By: ByNode,
			})
		}
	}
}

// removed tells whether a volume of that claim is wanted no more.
func (h *plugging) removed(volume, claim string) bool {
	return !slices.ContainsFunc(h.plugs, func(p plug) bool { return p.volume == volume && p.claim == claim })
}

// unplugAll deletes the attachments and triggers of a guest that is being deleted or
// has ended. While the guest may still run, a Pod that brings what it uses stays: it
// shuts down with its disks, and the Pod goes when it has.
func unplugAll(s Snapshot) []Action {
	return s.unplug("the guest has ended or is being deleted", func(*corev1.Pod) bool { return true })
}

// unplugFinished deletes the attachments and triggers beside Pods of the guest that
// have ended, as a migration's source.
func unplugFinished(s Snapshot) []Action {
	return s.unplug("the Pod it is made for has ended", podFinished)
}

// unplug deletes what serves plugging beside Pods of the guest.
func (s Snapshot) unplug(why string, beside func(owner *corev1.Pod) bool) []Action {
	var actions []Action
	for _, owner := range s.Pods {
		if owner == nil || !beside(owner) {
			continue
		}
		attachments, triggers := hotplugPods(s.Attachments, owner)
		h := &plugging{Snapshot: s, launcher: owner}
		for _, p := range slices.Concat(attachments, triggers) {
			if p.DeletionTimestamp != nil || !isTemporary(p) && !podFinished(p) && h.serves(p) && s.mayRunIn(owner) {
				continue
			}
			actions = append(actions, takeAway(p, why))
		}
	}
	return actions
}

// mayRunIn tells whether the guest may run on the node of its Pod.
func (s Snapshot) mayRunIn(owner *corev1.Pod) bool {
	if s.Config.PodHoldsGuest && PodDown(owner) {
		return false
	}
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return true
	}
	node := owner.Spec.NodeName
	// A stock node agent may be starting what it was offered.
	return lease.MayRun(node) || lease.State == handoff.Offered && lease.Holder == node
}
