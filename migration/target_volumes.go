// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/launcherpod"
	"github.com/virtloom/virtloom/internal/volumeclaim"
)

// Attachments returns the Pods among pods that attach hotplugged volumes beside the owner, a
// target Pod: those that it controls.
func Attachments(pods []*corev1.Pod, owner *corev1.Pod) []*corev1.Pod {
	var found []*corev1.Pod
	for _, p := range pods {
		if owner != nil && metav1.IsControlledBy(p, owner) && p.Labels[v1.AppLabel] == launcherpod.AttachmentApp {
			found = append(found, p)
		}
	}
	return found
}

// plugged returns the volumes that the VMI has and its target Pod has not, with their claims:
// they were hotplugged, so an attachment Pod at the target must attach them before the VMI
// arrives.
func (s Snapshot) plugged() (volumes []string, claims map[string]string) {
	claims = map[string]string{}
	for i := range s.VMI.Spec.Volumes {
		v := &s.VMI.Spec.Volumes[i]
		claim := volumeclaim.Written(v)
		if claim == "" || podHas(s.TargetPod, v.Name) || !plugPhase(s.VMI, v.Name) {
			continue
		}
		volumes, claims[v.Name] = append(volumes, v.Name), claim
	}
	return volumes, claims
}

func podHas(p *corev1.Pod, volume string) bool {
	return p != nil && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume })
}

// plugPhase reports whether the node has hotplugged the volume, or is about to.
func plugPhase(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Status.VolumeStatus, func(st v1.VolumeStatus) bool {
		return st.Name == volume && st.HotplugVolume != nil && onNode(st.Phase)
	})
}

func onNode(p v1.VolumePhase) bool {
	return p == v1.VolumeReady || p == v1.HotplugVolumeMounted || p == v1.HotplugVolumeAttachedToNode
}

// checkPlugging waits until no volume of the VMI is being unplugged, as it is still in use and
// no Pod can be rendered with it any more, and no memory dump runs, as its volume cannot be
// migrated.
func checkPlugging(s Snapshot, _ time.Time) Finding {
	if s.VMI == nil {
		return Finding{}
	}
	for _, st := range s.VMI.Status.VolumeStatus {
		if st.Phase == v1.MemoryDumpVolumeInProgress {
			return later(reasonPlugging, fmt.Sprintf("the guest memory is being dumped into volume %q", st.Name), "the dump must end")
		}
		if st.HotplugVolume == nil || st.Phase != v1.HotplugVolumeDetaching && !onNode(st.Phase) {
			continue
		}
		listed := slices.ContainsFunc(s.VMI.Spec.Volumes, func(v v1.Volume) bool { return v.Name == st.Name }) ||
			slices.ContainsFunc(s.VMI.Spec.UtilityVolumes, func(v v1.UtilityVolume) bool { return v.Name == st.Name })
		if !listed {
			return later(reasonPlugging, fmt.Sprintf("volume %q is being unplugged", st.Name), "its node must detach it")
		}
	}
	return Finding{}
}

// carrier returns the attachment Pod that attaches all the claims; a running one before a
// starting one, that before one that has ended.
func (s Snapshot) carrier(claims map[string]string) *corev1.Pod {
	var best *corev1.Pod
	for _, p := range s.Attachments {
		if carries(p, claims) && (best == nil || standingOf(p) > standingOf(best)) {
			best = p
		}
	}
	return best
}

func standingOf(p *corev1.Pod) int {
	switch {
	case launcherpod.Terminal(p) || p.DeletionTimestamp != nil:
		return 0
	case p.Status.Phase == corev1.PodRunning:
		return 2
	}
	return 1
}

func carries(p *corev1.Pod, claims map[string]string) bool {
	found := 0
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if claim, wanted := claims[v.Name]; wanted && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim {
			found++
		}
	}
	return found == len(claims)
}

// follow ensures that the VMI's hotplugged volumes are attached at the target too, and reports
// whether they are. It runs in every phase before the handoff, as volumes may come and go
// until then. Pods of an earlier set of volumes are deleted with the target Pod, or with the
// first decision about hotplug once the VMI has arrived.
func (d targetObjects) follow() bool {
	volumes, claims := d.s.plugged()
	if len(volumes) == 0 {
		return true
	}
	p := d.s.carrier(claims)
	switch {
	case p == nil && d.s.Failures[CreateAttachment] != nil:
		refusal(d).failing(ReasonCreateFailed, "the attachment Pod for hotplugged volumes at the target cannot be created", d.s.Failures[CreateAttachment])
	case p == nil:
		d.act(Action{Verb: CreateAttachment, Why: "the VMI has hotplugged volumes", Volumes: volumes})
		d.explain(handoff.ByController, reasonWaitingForAttachment, "creating an attachment Pod for hotplugged volumes "+strings.Join(volumes, ", "))
	case standingOf(p) == 2:
		return true
	default:
		message := fmt.Sprintf("attachment Pod %q for hotplugged volumes %s is not running yet", p.Name, strings.Join(volumes, ", "))
		if why, stuck := unschedulable(p); stuck {
			message += ": " + why
		}
		d.explain(handoff.ByScheduler, reasonWaitingForAttachment, message)
	}
	return false
}

// attachmentLost: the Pod that attaches the hotplugged volumes at the target has ended, so the
// VMI's disks would be missing there.
func (d interrupt) attachmentLost(row) (cause, bool) {
	if d.s.VMI == nil || d.s.TargetPod == nil || position(d).standing() == arrived {
		return cause{}, false
	}
	if err := d.s.Failures[CreateAttachment]; errors.Is(err, ErrRender) {
		return cause{ReasonRender, err.Error()}, true
	}
	var p *corev1.Pod
	if d.ms != nil && d.ms.TargetAttachmentPodUID != "" {
		p = podOfUID(d.s.Attachments, d.ms.TargetAttachmentPodUID)
		if p == nil {
			return cause{reasonAttachmentLost, "the attachment Pod for hotplugged volumes at the target no longer exists"}, true
		}
	} else if volumes, claims := d.s.plugged(); len(volumes) > 0 && !position(d).handedOff() {
		p = d.s.carrier(claims)
	}
	return attachmentEnd(p)
}

// attachmentEnd returns how an attachment Pod has ended, if it has.
func attachmentEnd(p *corev1.Pod) (cause, bool) {
	switch {
	case p == nil || standingOf(p) > 0:
		return cause{}, false
	case launcherpod.Terminal(p):
		return cause{reasonAttachmentLost, fmt.Sprintf("attachment Pod %q has ended in phase %s: %s", p.Name, p.Status.Phase, p.Status.Message)}, true
	}
	return cause{reasonAttachmentLost, fmt.Sprintf("attachment Pod %q is being deleted", p.Name)}, true
}

func podOfUID(pods []*corev1.Pod, uid types.UID) *corev1.Pod {
	for _, p := range pods {
		if p.UID == uid {
			return p
		}
	}
	return nil
}

// attachmentUID returns the UID of the attachment Pod, which the target node reads.
func (s Snapshot) attachmentUID() types.UID {
	volumes, claims := s.plugged()
	if len(volumes) == 0 {
		return ""
	}
	if p := s.carrier(claims); p != nil {
		return p.UID
	}
	return ""
}
