// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
)

// claimsOf returns the claims that a Pod carries, by volume name.
func claimsOf(p *corev1.Pod) map[string]string {
	claims := map[string]string{}
	for i := range p.Spec.Volumes {
		if c := p.Spec.Volumes[i].PersistentVolumeClaim; c != nil {
			claims[p.Spec.Volumes[i].Name] = c.ClaimName
		}
	}
	return claims
}

// hotplugPods returns the owner's attachments and triggers, newest first.
func hotplugPods(pods []*corev1.Pod, owner *corev1.Pod) (attachments, triggers []*corev1.Pod) {
	for _, p := range pods {
		switch {
		case p == nil || !metav1.IsControlledBy(p, owner) || !isHotplug(p):
		case isTemporary(p):
			triggers = append(triggers, p)
		default:
			attachments = append(attachments, p)
		}
	}
	for _, list := range [][]*corev1.Pod{attachments, triggers} {
		slices.SortStableFunc(list, func(a, b *corev1.Pod) int {
			switch {
			case newer(a, b):
				return -1
			case newer(b, a):
				return 1
			}
			return 0
		})
	}
	return attachments, triggers
}

// choose returns the newest attachment that fits; a running one is preferred to one that may
// never run.
//
// A Pod that was created later, by a pass with a stale cache or another replica, may carry the same
// volumes: then one of them is surplus, and cleanUp deletes it.
func (h *plugging) choose() *corev1.Pod {
	var best *corev1.Pod
	for _, a := range h.attachments {
		if podLive(a) && h.fits(a) && (best == nil || podRunning(a) && !podRunning(best)) {
			best = a
		}
	}
	return best
}

// fits reports whether a Pod carries every ready volume and no unwanted one. A wanted volume
// that is no longer ready stays: the domain may use it.
func (h *plugging) fits(a *corev1.Pod) bool {
	carried := claimsOf(a)
	left := len(carried)
	for i := range h.plugs {
		p := &h.plugs[i]
		claim, found := carried[p.volume]
		// By claim and not by volume alone: a volume that names another claim now is another disk, and the
		// Pod with the former one must not be taken for it.
		if found && claim == p.claim {
			left--
		} else if p.state == plugReady {
			return false
		}
	}
	return left == 0 && len(carried) > 0
}

// attach creates the attachment Pod if none fits and nothing blocks it.
func (h *plugging) attach() {
	ready := h.ready()
	if h.current != nil {
		h.arriving(h.current)
		return
	}
	if len(ready) == 0 || h.obstructed(ready) || h.unlabelled() {
		return
	}
	// Volumes of a Pod are immutable, so each further volume takes a new Pod with all of them, and
	// then the former one is deleted. A user who adds ten volumes in a row would cause ten Pods of
	// growing size; instead the newest one gets some time, and its successor brings all.
	if newest := h.newest(); newest != nil {
		if at := h.due(newest, h.batch); at != nil {
			h.stalled(Wait{
				Reason:  "CollectingVolumes",
				Message: fmt.Sprintf("%s will be replaced at %s, with all volumes that are ready by then", podObject(newest), at.UTC().Format(time.RFC3339)),
				Object:  podObject(newest), Until: "the Pod is old enough to be replaced", Responsible: handoff.ByController, Deadline: at,
			})
			return
		}
	}
	names := make([]string, len(ready))
	for i, p := range ready {
		names[i] = p.volume
	}
	h.do(Action{Verb: CreateAttachment, Pod: h.launcher, Volumes: names, Fault: ReasonFailedCreate,
		Why: "no attachment Pod brings exactly these volumes"})
	h.created = true
}

// newest returns the newest attachment with a wanted volume; nil if there is none.
func (h *plugging) newest() *corev1.Pod {
	for _, a := range h.attachments {
		if podLive(a) && h.wants(a) {
			return a
		}
	}
	return nil
}

// wants reports whether the Pod carries a volume that is still to be hotplugged.
func (h *plugging) wants(a *corev1.Pod) bool {
	carried := claimsOf(a)
	return slices.ContainsFunc(h.plugs, func(p plug) bool {
		claim, found := carried[p.volume]
		return found && claim == p.claim
	})
}

// obstructed reports whether Pods that have ended or are terminating have the name of the
// next one: the name is derived from the set of volumes.
func (h *plugging) obstructed(ready []*plug) bool {
	// Equal names follow from equal sets, which is what makes the creation safe to repeat: a second
	// create with the same volumes conflicts instead of attaching them twice. The price is that a Pod
	// that has ended has to be deleted before the next one.
	set := make(map[string]string, len(ready))
	for _, p := range ready {
		set[p.volume] = p.claim
	}
	for _, a := range h.attachments {
		if !podLive(a) && maps.Equal(claimsOf(a), set) {
			h.stalled(h.clear(a))
			h.obstacles = append(h.obstacles, a)
		}
	}
	return len(h.obstacles) > 0
}

// unlabelled reports whether the node has not reported the VMI's SELinux context: without it
// no Pod can be rendered whose volumes QEMU may open.
func (h *plugging) unlabelled() bool {
	vmi := h.VMI
	if m := vmi.Status.MigrationState; vmi.Status.SelinuxContext != "" ||
		m != nil && m.SourceState != nil && m.SourceState.SelinuxContext != "" {
		return false
	}
	h.stalled(Wait{
		Reason:  "SELinuxContextUnknown",
		Message: fmt.Sprintf("status.selinuxContext is empty; volumes are hotplugged once node %s has reported it", h.launcher.Spec.NodeName),
		Object:  fmt.Sprintf("VirtualMachineInstance %s/%s", vmi.Namespace, vmi.Name),
		Until:   "status.selinuxContext is set", Responsible: handoff.ByNode,
	})
	return true
}

// arriving records what the current attachment waits for before it runs.
func (h *plugging) arriving(a *corev1.Pod) {
	if podRunning(a) {
		return
	}
	w := Wait{
		Reason:  "AttachmentPodPending",
		Message: podObject(a) + " is not running yet; it carries volumes " + strings.Join(slices.Sorted(maps.Keys(claimsOf(a))), ", "),
		Object:  podObject(a), Until: "the Pod runs", Responsible: handoff.ByKubelet,
	}
	// Whoever reads the wait should look at the scheduler or the image, not at this controller.
	if c := podCondition(a, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		w.Responsible, w.Message = handoff.ByScheduler, w.Message+": "+c.Message
	} else if reason, message := pullFailure(a); reason != "" {
		w.Message += ": " + reason + ": " + message
	}
	h.out.Waits = append(h.out.Waits, w)
}

// takeAway deletes an attachment or trigger, which has nothing to shut down.
func takeAway(p *corev1.Pod, why string) Action {
	return Action{Verb: DeletePod, Pod: p, GraceSeconds: ptr.To[int64](0), Fault: ReasonFailedHotplugSync, Why: why}
}

func isHotplug(p *corev1.Pod) bool { return p.Labels[v1.AppLabel] == attachmentApp }

// podLive reports whether the Pod runs or may start.
func podLive(p *corev1.Pod) bool { return p.DeletionTimestamp == nil && !podFinished(p) }

// podRunning reports whether the Pod runs and is not being deleted.
func podRunning(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning
}
