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

// Bounds of the time that a failed Pod stays before it is replaced: as long as its volumes
// had been waiting when it was created. So the time between attempts doubles, and is
// derived from the Pod and its volumes alone. A Pod that had lived longer is replaced at
// once.
const (
	minHotplugRetry = 10 * time.Second
	maxHotplugRetry = 5 * time.Minute
)

// clear deletes a Pod with the name of the one to be created, and returns the wait for
// that.
func (h *plugging) clear(p *corev1.Pod) Wait {
	w := Wait{
		Reason: "PodInTheWay", Message: podObject(p) + " is terminating; its replacement is created once it is deleted",
		Object: podObject(p), Until: "the Pod is deleted", Responsible: handoff.ByKubelet,
	}
	if p.DeletionTimestamp != nil {
		return w
	}
	at := h.due(p, h.retryAge(p))
	if at == nil {
		h.do(takeAway(p, "the Pod has ended and is being replaced"))
		return w
	}
	return Wait{
		Reason: "PodFailed",
		Message: fmt.Sprintf("%s has ended%s; next attempt at %s, or when it is deleted",
			podObject(p), endOf(p), at.UTC().Format(time.RFC3339)),
		Object: podObject(p), Until: "the next attempt", Responsible: handoff.ByController, Deadline: at,
	}
}

// endOf describes why a Pod ended, as far as known.
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
	// Nothing is counted or stored: the wait is derived from times that the objects have anyway, so a
	// restarted controller, and another replica, come to the same time.
	since := h.launcher.CreationTimestamp.Time
	for _, claim := range claimsOf(p) {
		if c := h.Storage.Claims[claim]; c != nil && c.CreationTimestamp.After(since) {
			since = c.CreationTimestamp.Time
		}
	}
	return min(max(p.CreationTimestamp.Sub(since), minHotplugRetry), maxHotplugRetry)
}

// cleanUp deletes replaced attachments.
func (h *plugging) cleanUp() {
	h.leaving()
	// The order matters: what vital finds depends on which Pods are kept already, newest first. Of two
	// Pods that carry the same volume in use, the older one is superfluous.
	keep := h.bridge()
	if h.current != nil {
		keep = append(keep, h.current)
	}
	for _, a := range h.attachments {
		switch {
		case a.DeletionTimestamp != nil || slices.Contains(keep, a):
		case podFinished(a):
			if !slices.Contains(h.obstacles, a) {
				h.do(takeAway(a, "the Pod has ended"))
			}
		case h.vital(a, keep):
			keep = append(keep, a)
		default:
			h.do(takeAway(a, "no volume of the Pod is needed"))
		}
	}
}

// bridge returns the attachments that serve until the current one runs: the newest running
// one, and while the next one is not created yet, the one whose age it waits for.
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

// serves reports whether the domain uses a volume that the Pod carries.
func (h *plugging) serves(a *corev1.Pod) bool {
	for volume := range claimsOf(a) {
		if using(h.VMI, volume) {
			return true
		}
	}
	return false
}

// vital reports whether the domain would lose a volume in use with the Pod: one that no
// running Pod in keep carries. A removed volume holds all Pods that carry it, until its
// node has unmounted it.
func (h *plugging) vital(a *corev1.Pod, keep []*corev1.Pod) bool {
	if a.Status.Phase == corev1.PodPending || a.Status.Phase == "" {
		return false // it never ran
	}
	for volume, claim := range claimsOf(a) {
		// A volume that is being unplugged is the dangerous one: the domain still writes to it. If its
		// Pods went, the kubelet would unmount, or detach, a disk in use.
		if using(h.VMI, volume) && (h.removed(volume, claim) || !slices.ContainsFunc(keep, func(k *corev1.Pod) bool {
			return podRunning(k) && claimsOf(k)[volume] == claim
		})) {
			return true
		}
	}
	return false
}

// leaving records the waits for removed volumes that their node has yet to unmount.
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
				Message: fmt.Sprintf("volume %s of claim %s is being unplugged; %s is kept until node %s has unmounted it",
					volume, claim, podObject(a), h.launcher.Spec.NodeName),
				Object: podObject(a), Until: "the volume is unmounted", Responsible: handoff.ByNode,
			})
		}
	}
}

// removed reports whether no volume with that claim is wanted anymore.
func (h *plugging) removed(volume, claim string) bool {
	return !slices.ContainsFunc(h.plugs, func(p plug) bool { return p.volume == volume && p.claim == claim })
}

// unplugAll deletes the attachments and triggers of a VMI that is being deleted or is in a
// final phase. While the domain may still run, a Pod whose volumes it uses stays: the domain
// shuts down with its disks, and the Pod is deleted afterwards.
func unplugAll(s Snapshot) []Action {
	return unplug(s, "the VirtualMachineInstance has ended or is being deleted", func(*corev1.Pod) bool { return true })
}

// unplugFinished deletes the attachments and triggers beside launcher Pods that have ended,
// such as a migration's source.
func unplugFinished(s Snapshot) []Action {
	return unplug(s, "its launcher Pod has ended", podFinished)
}

// unplug deletes the attachments and triggers beside the selected launcher Pods.
func unplug(s Snapshot, why string, beside func(owner *corev1.Pod) bool) []Action {
	var actions []Action
	for _, owner := range s.Pods {
		if owner == nil || !beside(owner) {
			continue
		}
		attachments, triggers := hotplugPods(s.Attachments, owner)
		h := &plugging{Snapshot: s, launcher: owner}
		for _, p := range slices.Concat(attachments, triggers) {
			if p.DeletionTimestamp != nil || !isTemporary(p) && !podFinished(p) && h.serves(p) && mayRunIn(s, owner) {
				continue
			}
			actions = append(actions, takeAway(p, why))
		}
	}
	return actions
}

// mayRunIn reports whether the domain may run on the node of the Pod.
func mayRunIn(s Snapshot, owner *corev1.Pod) bool {
	if s.Config.PodHoldsDomain && PodDown(owner) {
		return false
	}
	// PodDown alone is not enough where the hypervisor is the node's: the domain is not in the Pod, and
	// may outlive it. An unreadable lease proves nothing, so the Pods stay.
	lease, err := handoff.Of(s.VMI)
	if err != nil {
		return true
	}
	// The lease and not the phase of the VMI: a phase may be overwritten by every user who can update the
	// object, and a detached disk under a running domain is lost data.
	node := owner.Spec.NodeName
	// A stock node agent may be starting the offered VMI.
	return lease.MayRun(node) || lease.State == handoff.Offered && lease.Holder == node
}
