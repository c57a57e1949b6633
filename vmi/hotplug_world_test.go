// SPDX-License-Identifier: Apache-2.0

package vmi

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// plugNow is the time of all single decisions.
var plugNow = time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)

// plugWorld is a VMI running on node-a, with its hotplugged volumes.
type plugWorld struct {
	s        Snapshot
	launcher *corev1.Pod
}

func newPlugWorld(change ...func(*plugWorld)) *plugWorld {
	w := &plugWorld{s: Snapshot{
		VMI: &v1.VirtualMachineInstance{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "uid-1", Labels: map[string]string{v1.NodeNameLabel: "node-a"}},
			Status:     v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "node-a", SelinuxContext: "none"},
		},
		Storage: Storage{
			Claims:      map[string]*corev1.PersistentVolumeClaim{},
			DataVolumes: map[string]*cdiv1.DataVolume{},
			Classes: map[string]*storagev1.StorageClass{
				"now":   {ObjectMeta: metav1.ObjectMeta{Name: "now"}},
				"later": {ObjectMeta: metav1.ObjectMeta{Name: "later"}, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)},
			},
		},
	}}
	w.launcher = plugPod("launcher", w.s.VMI, v1.SchemeGroupVersion.WithKind("VirtualMachineInstance").Kind, plugNow.Add(-time.Hour))
	w.launcher.Labels = map[string]string{v1.AppLabel: "virt-launcher"}
	w.s.Pods = []*corev1.Pod{w.launcher}
	for _, c := range change {
		c(w)
	}
	return w
}

func plugPod(name string, owner metav1.Object, kind string, created time.Time) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(created),
			OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: ptr.To(true)}},
		},
		Spec:   corev1.PodSpec{NodeName: "node-a"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func (w *plugWorld) decide() hotplugPlan { return hotplug(w.s, w.launcher, plugNow, 0) }

// brings adds volumes to a Pod, each with the claim c-<volume> unless given as
// volume=claim.
func brings(p *corev1.Pod, volumes ...string) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "hotplug-disks"})
	for _, v := range volumes {
		name, claim, found := strings.Cut(v, "=")
		if !found {
			claim = "c-" + name
		}
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
}

// wants adds volumes of bound claims to the spec.
func wants(volumes ...string) func(*plugWorld) {
	return func(w *plugWorld) {
		for _, v := range volumes {
			w.s.VMI.Spec.Volumes = append(w.s.VMI.Spec.Volumes, claimVolume(v, "c-"+v))
			w.s.Storage.Claims["c-"+v] = boundClaim("c-" + v)
		}
	}
}

func claimVolume(name, claim string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}, Hotpluggable: true,
	}}}
}

func boundClaim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(plugNow.Add(-time.Hour))},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
}

// has adds a running attachment that is a minute old, modified by change.
func has(name, volumes string, change ...func(*corev1.Pod)) func(*plugWorld) {
	return func(w *plugWorld) {
		p := plugPod(name, w.launcher, "Pod", plugNow.Add(-time.Minute))
		p.Labels = map[string]string{v1.AppLabel: attachmentApp}
		brings(p, strings.Fields(volumes)...)
		for _, c := range change {
			c(p)
		}
		w.s.Attachments = append(w.s.Attachments, p)
	}
}

func aged(age time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(plugNow.Add(-age)) }
}

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func onItsWayOut(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(plugNow)) }

func temporary(p *corev1.Pod) {
	p.Annotations = map[string]string{v1.EphemeralProvisioningObject: "true"}
}

// token adds the volumes that the API server and webhooks add to a Pod.
func token(p *corev1.Pod) {
	p.Spec.Volumes = append(p.Spec.Volumes,
		corev1.Volume{Name: "kube-api-access", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
		corev1.Volume{Name: "injected", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
}

// uses sets the phase of volumes as reported by the node.
func uses(phase v1.VolumePhase, volumes ...string) func(*plugWorld) {
	return func(w *plugWorld) {
		for _, v := range volumes {
			w.s.VMI.Status.VolumeStatus = append(w.s.VMI.Status.VolumeStatus,
				v1.VolumeStatus{Name: v, Phase: phase, HotplugVolume: &v1.HotplugVolumeStatus{}})
		}
	}
}

// populatedBy makes a DataVolume in a phase the owner of a volume's claim.
func populatedBy(phase cdiv1.DataVolumePhase, volumes ...string) func(*plugWorld) {
	return func(w *plugWorld) {
		for _, v := range volumes {
			name := "c-" + v
			w.s.Storage.DataVolumes[name] = &cdiv1.DataVolume{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("dv-" + name)},
				Status:     cdiv1.DataVolumeStatus{Phase: phase},
			}
			w.s.Storage.Claims[name].OwnerReferences = []metav1.OwnerReference{{
				APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume", Name: name, UID: types.UID("dv-" + name), Controller: ptr.To(true)}}
		}
	}
}

// verbs prints actions without their reasons.
func verbs(actions []Action) string {
	out := make([]string, len(actions))
	for i, a := range actions {
		out[i], _, _ = strings.Cut(a.String(), " (")
	}
	return strings.Join(out, "; ")
}

func reasons(waits []Wait) string {
	out := make([]string, len(waits))
	for i, w := range waits {
		out[i] = fmt.Sprintf("%s %s by %s", w.Reason, w.Object, w.Responsible)
	}
	return strings.Join(out, "; ")
}

// carriers prints which Pod carries each volume; an unwanted volume has a dash.
func carriers(plugged map[string]pluggedState) string {
	out := make([]string, 0, len(plugged))
	for _, name := range slices.Sorted(maps.Keys(plugged)) {
		p, pod := plugged[name], ""
		if p.Pod != nil {
			pod = p.Pod.Name
		}
		if !p.Wanted {
			name = "-" + name
		}
		out = append(out, name+"="+pod)
	}
	return strings.Join(out, " ")
}
