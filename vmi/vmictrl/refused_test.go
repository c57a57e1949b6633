// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// onlyWatches is a controller without retries.
var onlyWatches = setup{edit: (*vmictrl.Reconciler).NeverRetry}

// awaitTrouble waits for the condition that reports a problem.
func (w *world) awaitTrouble(g *v1.VirtualMachineInstance, reason string, words ...string) {
	w.t.Helper()
	w.await(g, reason, func() bool {
		c := condition(g, v1.VirtualMachineInstanceSynchronized)
		for _, word := range words {
			if !strings.Contains(c.Message, word) {
				return false
			}
		}
		return c.Status == corev1.ConditionFalse && c.Reason == reason
	})
}

// awaitRefusals waits until the Pod was rejected twice: the second attempt follows the event of
// the first condition, and there is no further event.
func (w *world) awaitRefusals() {
	w.t.Helper()
	w.eventually(func() string {
		if n := w.writes(true)["create pods"]; n < 2 {
			return fmt.Sprintf("the Pod was refused %d times", n)
		}
		return ""
	})
}

// awaitAfter repeats the change that must wake the controller until the VMI is on its node. It
// is repeated because admission may observe it later than the controller.
func (w *world) awaitAfter(g *v1.VirtualMachineInstance, wake func(try int) error) {
	w.t.Helper()
	try := 0
	w.await(g, "phase Scheduled", func() bool {
		try++
		if g.Status.Phase == v1.Pending {
			if err := wake(try); err != nil {
				w.t.Log(err)
			}
		}
		return g.Status.Phase == v1.Scheduled
	})
	if c := condition(g, v1.VirtualMachineInstanceSynchronized); c.Type != "" {
		w.t.Errorf("the problem is resolved and still reported: %+v", c)
	}
	w.onePodEach(1)
}

func (w *world) quota(pods int) *corev1.ResourceQuota {
	w.t.Helper()
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "quota"}}
	q.Spec.Hard = corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(int64(pods), resource.DecimalSI)}
	w.create(q)
	w.eventually(func() string {
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(q), q); err != nil || len(q.Status.Hard) == 0 {
			return fmt.Sprintf("the quota is not in force: %v", err)
		}
		return ""
	})
	return q
}

func quotaRefused(w *world) {
	q := w.quota(0)
	w.start(onlyWatches)
	g := w.guest("guest")
	w.awaitTrouble(g, vmi.ReasonFailedCreate, "exceeded quota", "raise the ResourceQuota")
	w.awaitRefusals()
	w.awaitAfter(g, func(try int) error {
		patch := fmt.Sprintf(`{"spec":{"hard":{"pods":"%d"}}}`, try)
		return w.Patch(w.t.Context(), q, client.RawPatch("application/merge-patch+json", []byte(patch)))
	})
}

func securityRefused(w *world) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}
	label := func(key, value string) error {
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
		return w.Patch(w.t.Context(), ns, client.RawPatch("application/merge-patch+json", []byte(patch)))
	}
	const enforce = "pod-security.kubernetes.io/enforce"
	if err := label(enforce, "restricted"); err != nil {
		w.t.Fatal(err)
	}
	// Admission observes the label asynchronously.
	w.eventually(func() string {
		probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "probe"},
			Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "probe", Image: image}}}}
		if w.Create(w.t.Context(), probe, client.DryRunAll) == nil {
			return "Pod security is not in force"
		}
		return ""
	})
	// A cluster that wants no seccomp profile.
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "kubevirt"}}
	kv.Spec.Configuration.SeccompConfiguration = &v1.SeccompConfiguration{}
	w.create(kv)
	w.start(onlyWatches)
	g := w.guest("guest")
	w.awaitTrouble(g, vmi.ReasonFailedCreate, "violates PodSecurity", enforce+"=privileged")
	w.awaitRefusals()
	w.awaitAfter(g, func(try int) error {
		return errors.Join(label(enforce, "privileged"), label("example.test/try", fmt.Sprint(try)))
	})
}

func nameTaken(w *world) {
	g := w.guest("guest")
	// It gets no node: kwok, which deletes Pods of nodes by name, must not delete the one that takes its place.
	foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: template.LauncherName(g)},
		Spec: corev1.PodSpec{SchedulerName: "none", Containers: []corev1.Container{{Name: "compute", Image: image}}}}
	w.create(foreign)
	w.start(onlyWatches)
	w.awaitTrouble(g, vmi.ReasonFailedCreate, foreign.Name, "delete it")
	// One more pass, upon an event.
	w.change(g, func(g *v1.VirtualMachineInstance) { g.Status.Conditions = nil })
	w.awaitTrouble(g, vmi.ReasonFailedCreate, foreign.Name, "delete it")
	if tried := w.writes(true); len(tried) > 0 {
		w.t.Errorf("what cannot be is tried: %v", tried)
	}
	if len(w.awaitPods(1)[0].OwnerReferences) != 0 {
		w.t.Error("a Pod that is not the guest's was taken for it")
	}
	w.delete(foreign, client.GracePeriodSeconds(0))
	w.awaitPhase(g, v1.Scheduled)
	if pod := w.awaitPods(1)[0]; pod.UID == foreign.UID || !metav1.IsControlledBy(&pod, g) {
		w.t.Errorf("the guest is in Pod %s of %v", pod.UID, pod.OwnerReferences)
	}
}

func claimMissing(w *world) {
	w.start(onlyWatches)
	g := w.guest("guest", func(g *v1.VirtualMachineInstance) {
		g.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "disk"}}
		g.Spec.Volumes = []v1.Volume{{Name: "disk", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}
	})
	w.awaitTrouble(g, vmi.ReasonPvcNotFound, "spec.volumes[0].persistentVolumeClaim.claimName", w.ns+"/data", "create it")
	// Further passes emit nothing.
	for i := range 3 {
		w.change(g, func(g *v1.VirtualMachineInstance) {
			metav1.SetMetaDataAnnotation(&g.ObjectMeta, "example.test/poke", fmt.Sprint(i))
		})
	}
	class := ""
	w.create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		}})
	w.await(g, "the Pod, which waits for the claim to be bound", func() bool {
		return g.Status.Phase == v1.Scheduling && condition(g, v1.VirtualMachineInstanceConditionType(corev1.PodScheduled)).Status == corev1.ConditionFalse
	})
	w.onePodEach(1)
	// One for the missing claim, one for the created Pod.
	w.eventually(func() string {
		if n := w.writes(false)["create events"]; n != 2 {
			return fmt.Sprintf("%d events, want 2", n)
		}
		return ""
	})
	if n := w.writes(false)["patch events"]; n != 0 {
		w.t.Errorf("events were repeated %d times", n)
	}
}

// switchable renders only while switched on, and counts the calls.
type switchable struct {
	vmictrl.Renderer
	on    *atomic.Bool
	asked *atomic.Int64
}

func (s switchable) Launcher(in template.Input) (*corev1.Pod, error) {
	s.asked.Add(1)
	if !s.on.Load() {
		return nil, &render.Error{Stage: "cpu", Object: in.VMI.Namespace + "/" + in.VMI.Name,
			Field: "spec.domain.cpu", Reason: "is not allowed", Remedy: "allow it in the KubeVirt object", Err: render.ErrInvalid}
	}
	return s.Renderer.Launcher(in)
}

func unrenderable(w *world) {
	var on atomic.Bool
	var asked atomic.Int64
	w.start(setup{edit: func(r *vmictrl.Reconciler) {
		r.Renderer = switchable{template.Default(), &on, &asked}
		r.NeverRetry()
	}})
	g := w.guest("guest")
	w.awaitTrouble(g, vmi.ReasonFailedCreate, "spec.domain.cpu", "allow it in the KubeVirt object")
	w.eventually(func() string {
		if asked.Load() < 2 {
			return "the condition has not woken the controller yet"
		}
		return ""
	})
	on.Store(true)
	w.create(&v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "kubevirt"}})
	w.awaitPhase(g, v1.Scheduled)
	w.onePodEach(1)
}
