// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// plugBytes derives choices from fuzzer input.
type plugBytes []byte

func (b *plugBytes) next(n int) int {
	if len(*b) == 0 {
		return 0
	}
	c := int((*b)[0])
	*b = (*b)[1:]
	return c % n
}

func (b *plugBytes) volume() string { return []string{"v1", "v2", "v3", "", "injected"}[b.next(5)] }

// pod adds a Pod of any kind, state and owner.
func (b *plugBytes) pod(w *plugWorld) {
	if b.next(12) == 0 {
		w.s.Attachments = append(w.s.Attachments, nil)
		return
	}
	volumes := strings.Join([]string{b.volume(), b.volume() + "=c-v" + string(rune('0'+b.next(4)))}, " ")
	phases := []corev1.PodPhase{corev1.PodRunning, corev1.PodPending, corev1.PodFailed, corev1.PodSucceeded, corev1.PodUnknown, ""}
	has("p"+string(rune('a'+b.next(26))), volumes, aged(time.Duration(b.next(200)-20)*time.Second), inPhase(phases[b.next(6)]))(w)
	p := w.s.Attachments[len(w.s.Attachments)-1]
	for _, change := range []func(*corev1.Pod){onItsWayOut, temporary, token, func(p *corev1.Pod) { p.OwnerReferences = nil },
		func(p *corev1.Pod) { p.OwnerReferences[0].UID = types.UID("uid-target") }, func(p *corev1.Pod) { p.Labels = nil }} {
		if len(p.OwnerReferences) > 0 && b.next(4) == 0 {
			change(p)
		}
	}
}

// world derives a VMI and its environment from the input.
func (b *plugBytes) world() *plugWorld {
	w := newPlugWorld()
	for range b.next(5) {
		v := b.volume()
		claim := "c-" + v
		if b.next(4) > 0 {
			w.s.Storage.Claims[claim] = boundClaim(claim)
			if b.next(3) == 0 {
				populatedBy([]cdiv1.DataVolumePhase{cdiv1.WaitForFirstConsumer, cdiv1.Succeeded, cdiv1.Failed, cdiv1.Pending, "odd"}[b.next(5)], v)(w)
			}
			w.s.Storage.Claims[claim].Status.Phase = []corev1.PersistentVolumeClaimPhase{corev1.ClaimBound, corev1.ClaimPending, corev1.ClaimLost, ""}[b.next(4)]
		}
		if b.next(4) == 0 {
			w.s.VMI.Spec.UtilityVolumes = append(w.s.VMI.Spec.UtilityVolumes, v1.UtilityVolume{Name: v,
				PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}})
		} else {
			w.s.VMI.Spec.Volumes = append(w.s.VMI.Spec.Volumes, claimVolume(v, claim))
		}
		w.s.VMI.Status.VolumeStatus = append(w.s.VMI.Status.VolumeStatus, v1.VolumeStatus{Name: b.volume(),
			Phase: []v1.VolumePhase{v1.VolumeReady, v1.HotplugVolumeMounted, v1.HotplugVolumeAttachedToNode, "", v1.VolumeBound}[b.next(5)]})
	}
	for range b.next(7) {
		b.pod(w)
	}
	for _, change := range []func(*plugWorld){moved, noDataVolumes, func(w *plugWorld) { w.s.VMI.Status.Phase = v1.Failed },
		func(w *plugWorld) { w.s.VMI.Status.SelinuxContext = "" }, func(w *plugWorld) { w.s.Storage = Storage{} },
		func(w *plugWorld) { w.launcher.Status.Phase = corev1.PodFailed }, func(w *plugWorld) { w.s.Pods = nil }} {
		if b.next(8) == 0 {
			change(w)
		}
	}
	return w
}

func FuzzHotplug(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x04\x01\x02\x00\x01\x02\x03\x00\x01\x02\x03\x04\x05\x06\x07\x01\x01\x01\x02\x02\x02"))
	f.Add([]byte("\x03\x00\x01\x00\x00\x00\x01\x01\x01\x01\x01\x01\x01\x02\x02\x02\x02\x06\x01\x00\x01\x01\x05\x30\x00\x01\x02\x03"))
	f.Fuzz(func(t *testing.T, data []byte) {
		b := plugBytes(data)
		w := b.world()
		before := plugCopy(w.s)
		plan := hotplug(w.s, w.s.Launcher(), plugNow, 0)
		if diff := cmp.Diff(before.Attachments, w.s.Attachments); diff != "" {
			t.Errorf("changes Pods:\n%s", diff)
		}
		if diff := cmp.Diff(before.VMI, w.s.VMI); diff != "" {
			t.Errorf("changes the guest:\n%s", diff)
		}
		if diff := cmp.Diff(verbs(plan.Actions), verbs(hotplug(w.s, w.s.Launcher(), plugNow, 0).Actions)); diff != "" {
			t.Errorf("decides differently the second time:\n%s", diff)
		}
		seen := map[*corev1.Pod]bool{}
		for _, a := range plan.Actions {
			switch a.Verb {
			case DeletePod:
				if a.Pod.DeletionTimestamp != nil || seen[a.Pod] || !isHotplug(a.Pod) {
					t.Errorf("%s: it is none of ours, or is going already", a)
				}
				seen[a.Pod] = true
			default:
				if len(a.Volumes) == 0 || len(a.Volumes) > 1 && a.Verb == CreateTrigger || a.Pod != w.s.Launcher() {
					t.Errorf("%s: not beside the guest's Pod, or of nothing", a)
				}
			}
		}
		for _, wait := range plan.Waits {
			if wait.Reason == "" || wait.Message == "" || wait.Object == "" || wait.Until == "" || wait.Responsible == "" {
				t.Errorf("incomplete wait: %+v", wait)
			}
		}
		if at := plan.RequeueAt; at != nil && !at.After(plugNow) {
			t.Errorf("looks again in the past, at %s", at)
		}
	})
}

func plugCopy(s Snapshot) Snapshot {
	out := Snapshot{VMI: s.VMI.DeepCopy()}
	for _, p := range s.Attachments {
		out.Attachments = append(out.Attachments, p.DeepCopy())
	}
	return out
}
