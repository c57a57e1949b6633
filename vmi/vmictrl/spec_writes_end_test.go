// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"context"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// endRows cover the end of VMIs.
var endRows = map[string]row{
	"74 a guest that has ended": {scene: scene{phase: v1.Succeeded, guest: func(g *v1.VirtualMachineInstance) {
		g.Finalizers = []string{v1.VirtualMachineInstanceFinalizer, "foregroundDeleteVirtualMachine"}
		g.Labels[v1.OutdatedLauncherImageLabel] = ""
		g.Status.LauncherContainerImageVersion = image
	}}},
	"76 a guest that has ended, and nothing is left to be done": {scene: scene{phase: v1.Succeeded, guest: finalizers()}},
	"77 deleted in phase Pending":                               deleted(v1.Pending),
	"77 deleted in phase Scheduling":                            deleted(v1.Scheduling),
	"77 deleted in phase Scheduled":                             deleted(v1.Scheduled),
	"77 deleted in phase Running":                               deleted(v1.Running),
	"77 deleted in phase Succeeded":                             deleted(v1.Succeeded),
	"77 deleted in phase Failed":                                deleted(v1.Failed),
	"77 deleted in phase WaitingForSync":                        deleted(v1.WaitingForSync),
	"79 a Pod that cannot be deleted": {scene: scene{phase: v1.Scheduling, more: deleteIt}, edit: (*vmictrl.Reconciler).NeverRetry,
		wrap: answer(http.MethodDelete, http.StatusForbidden, "admission webhook denied the request")},
	"80 the VirtualMachine is gone": {scene: scene{phase: v1.Succeeded, guest: finalizers(v1.VirtualMachineInstanceFinalizer, v1.VirtualMachineControllerFinalizer)}},
	"80 the VirtualMachine is there": {scene: scene{phase: v1.Succeeded,
		guest: finalizers(v1.VirtualMachineInstanceFinalizer, v1.VirtualMachineControllerFinalizer), more: ownedByMachine}},
	"82 a Pod that is gone when it is to be deleted": {scene: scene{phase: v1.Scheduling, more: deleteIt}, wrap: deletedFirst},
}

// deleted is a deleted VMI with two Pods, beside a foreign Pod.
func deleted(p v1.VirtualMachineInstancePhase) row {
	return row{scene: scene{phase: p, noPod: true, more: func(w *world, g *v1.VirtualMachineInstance, _ *corev1.Pod) {
		owned(w, g, "owned-a", "owned-b")
		w.createPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "foreign", Labels: map[string]string{v1.CreatedByLabel: string(g.UID)}},
			Spec: corev1.PodSpec{NodeName: nodeOf(w), Containers: []corev1.Container{{Name: "compute", Image: image}}}})
		w.delete(g)
	}}}
}

// ownedByMachine creates the VirtualMachine that controls the VMI.
func ownedByMachine(w *world, g *v1.VirtualMachineInstance, _ *corev1.Pod) {
	m := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: vmiName},
		Spec: v1.VirtualMachineSpec{Template: &v1.VirtualMachineInstanceTemplateSpec{}}}
	w.create(m)
	w.change(g, func(g *v1.VirtualMachineInstance) {
		g.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(m, v1.VirtualMachineGroupVersionKind)}
	})
}

// deletedFirst deletes a Pod right before the controller's delete request arrives.
func deletedFirst(w *world, _ *v1.VirtualMachineInstance, next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodDelete {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]}}
			if err := w.Delete(context.WithoutCancel(req.Context()), p, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
				return nil, err
			}
		}
		return next.RoundTrip(req)
	})
}
