// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// plugReady starts a VMI up to where volumes can be hotplugged.
func (w *world) plugReady() *v1.VirtualMachineInstance {
	w.t.Helper()
	g := w.running("guest")
	w.change(g, func(g *v1.VirtualMachineInstance) {
		g.Status.SelinuxContext = "system_u:object_r:container_file_t:s0:c1,c2"
	})
	w.await(g, "Ready", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Status == corev1.ConditionTrue })
	return g
}

// plug adds volumes to the spec, named after their claims.
func (w *world) plug(g *v1.VirtualMachineInstance, claims ...string) {
	w.t.Helper()
	w.change(g, func(g *v1.VirtualMachineInstance) {
		for _, name := range claims {
			withClaim(name)(g)
			g.Spec.Volumes[len(g.Spec.Volumes)-1].PersistentVolumeClaim.Hotpluggable = true
		}
	})
}

// unplug removes a volume from the spec.
func (w *world) unplug(g *v1.VirtualMachineInstance, name string) {
	w.t.Helper()
	w.change(g, func(g *v1.VirtualMachineInstance) {
		g.Spec.Volumes = slices.DeleteFunc(g.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
		g.Spec.Domain.Devices.Disks = slices.DeleteFunc(g.Spec.Domain.Devices.Disks, func(d v1.Disk) bool { return d.Name == name })
	})
}

// nodeSays writes the phase of a volume as the node agent does.
func (w *world) nodeSays(g *v1.VirtualMachineInstance, name string, p v1.VolumePhase) {
	w.t.Helper()
	w.change(g, func(g *v1.VirtualMachineInstance) {
		for i := range g.Status.VolumeStatus {
			if s := &g.Status.VolumeStatus[i]; s.Name == name {
				s.Phase, s.Reason, s.Message = p, "", ""
			}
		}
	})
}

// attached returns what is missing until the volumes are on the node, or "".
func attached(g *v1.VirtualMachineInstance, pod string, names ...string) string {
	for _, name := range names {
		s := volumeOf(g, name)
		if s.Phase != v1.HotplugVolumeAttachedToNode || s.HotplugVolume == nil || s.HotplugVolume.AttachPodUID == "" || s.HotplugVolume.AttachPodName != pod {
			return fmt.Sprintf("volume %s by Pod %s: %+v", name, pod, s)
		}
	}
	return ""
}

func (w *world) awaitAttached(g *v1.VirtualMachineInstance, pod string, names ...string) {
	w.t.Helper()
	w.await(g, fmt.Sprintf("%v by Pod %s", names, pod), func() bool { return attached(g, pod, names...) == "" })
}

// attachmentName returns the name of the attachment of the claims.
func (w *world) attachmentName(launcher *corev1.Pod, claims ...*corev1.PersistentVolumeClaim) string {
	uids := map[string]types.UID{}
	for _, c := range claims {
		uids[c.Name] = c.UID
	}
	return template.AttachmentName(launcher, uids)
}

func (w *world) boundClaim(name string) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	c := w.claim(name)
	w.awaitClaim(c, corev1.ClaimBound)
	return c
}

// plugged hotplugs a volume and unplugs it again.
func plugged(w *world) {
	w.start(onlyWatches)
	claim := w.boundClaim("disk")
	g := w.plugReady()
	launcher := w.awaitPods(1)[0]
	w.plug(g, "disk")
	name := w.attachmentName(&launcher, claim)
	w.awaitAttached(g, name, "disk")
	pods := w.awaitPods(2)
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == name })
	if i < 0 || !metav1.IsControlledBy(&pods[i], &launcher) || pods[i].Spec.NodeName != launcher.Spec.NodeName {
		w.t.Fatalf("Pods %+v", pods)
	}
	if w.missingEvent("SuccessfulCreate") != "" {
		w.t.Error("no event of the attachment")
	}

	w.nodeSays(g, "disk", v1.VolumeReady)
	w.unplug(g, "disk")
	// One pass later the Pod exists, and the node has the volume.
	w.change(g, func(g *v1.VirtualMachineInstance) { g.Status.Conditions = nil })
	w.await(g, "a pass", func() bool { return condition(g, v1.VirtualMachineInstanceReady).Type != "" })
	if w.awaitPods(2); volumeOf(g, "disk").Phase != v1.VolumeReady {
		w.t.Errorf("the guest uses the volume, its status is %+v", volumeOf(g, "disk"))
	}
	w.nodeSays(g, "disk", v1.HotplugVolumeUnMounted)
	w.await(g, "the volume to be forgotten", func() bool { return volumeOf(g, "disk").Name == "" })
	if pod := w.awaitPods(1)[0]; pod.UID != launcher.UID {
		w.t.Errorf("Pod %s is left", pod.Name)
	}
	if n := w.writes(false)["delete pods"]; n != 1 {
		w.t.Errorf("%d deletions", n)
	}
	w.onePodEach(2)
}

// pluggedInARow: volumes added in a row are carried by one Pod.
func pluggedInARow(w *world) {
	w.start(setup{edit: func(r *vmictrl.Reconciler) {
		r.Config = vmi.Config{HotplugBatch: 4 * time.Second}
		r.NeverRetry()
	}})
	a, b, c := w.boundClaim("a"), w.boundClaim("b"), w.boundClaim("c")
	g := w.plugReady()
	launcher := w.awaitPods(1)[0]
	w.plug(g, "a")
	first := w.attachmentName(&launcher, a)
	w.awaitAttached(g, first, "a")
	w.plug(g, "b")
	w.plug(g, "c")
	all := w.attachmentName(&launcher, a, b, c)
	w.awaitAttached(g, all, "a", "b", "c")
	w.awaitGone(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: first}})
	w.onePodEach(3)
}

// unbound: a volume whose claim is not bound yet blocks no other, and follows when it is.
func unbound(w *world) {
	w.start(setup{edit: func(r *vmictrl.Reconciler) {
		r.Config = vmi.Config{HotplugBatch: time.Millisecond}
		r.NeverRetry()
	}})
	class := w.class(storagev1.VolumeBindingImmediate)
	a := w.boundClaim("a")
	b := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "b"}, Spec: *a.Spec.DeepCopy()}
	b.Spec.StorageClassName, b.Spec.VolumeName = &class, ""
	w.create(b)
	g := w.plugReady()
	launcher := w.awaitPods(1)[0]
	w.plug(g, "a", "b", "c")
	w.awaitAttached(g, w.attachmentName(&launcher, a), "a")
	if s := volumeOf(g, "b"); s.Phase != v1.VolumePending || s.Reason != vmi.ReasonPVCNotReady {
		w.t.Errorf("the volume that is not bound is %+v", s)
	}
	if s := volumeOf(g, "c"); s.Phase != v1.VolumePending || s.Reason != vmi.ReasonPvcNotFound {
		w.t.Errorf("the volume without a claim is %+v", s)
	}
	w.volume(class, "b")
	w.awaitAttached(g, w.attachmentName(&launcher, a, b), "a", "b")
	c := w.claim("c")
	w.awaitAttached(g, w.attachmentName(&launcher, a, b, c), "a", "b", "c")
}

// triggered: a hotplugged volume is provisioned on the VMI's node.
func triggered(w *world) {
	w.start(setup{edit: func(r *vmictrl.Reconciler) { r.NeverRetry() }})
	class := w.class(storagev1.VolumeBindingWaitForFirstConsumer)
	dv := w.importing("disk", cdiv1.WaitForFirstConsumer, func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class })
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "disk"}}
	g := w.plugReady()
	launcher := w.awaitPods(1)[0]
	w.change(g, withDataVolume("disk"))
	w.awaitClaim(claim, corev1.ClaimBound)
	trigger := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: template.TriggerName(&launcher, "disk", claim.UID)}}
	i := slices.IndexFunc(w.awaitPods(2), func(p corev1.Pod) bool { return p.Name == trigger.Name })
	if i < 0 {
		w.t.Fatalf("no Pod %s", trigger.Name)
	}
	w.filled(dv)
	w.awaitAttached(g, w.attachmentName(&launcher, claim), "disk")
	w.awaitGone(trigger)
	w.onePodEach(3)
}
