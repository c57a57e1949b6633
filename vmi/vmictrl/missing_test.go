// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

// demanding renders nothing while a fact is missing.
type demanding struct {
	vmictrl.Renderer
	field   string
	missing func(render.Facts) bool
}

func (d demanding) Launcher(in template.Input) (*corev1.Pod, error) {
	if d.missing(in.Facts) {
		return nil, &render.Error{Stage: "test", Object: in.VMI.Namespace + "/" + in.VMI.Name, Field: d.field, Err: render.ErrMissingFact}
	}
	in.VMI = in.VMI.DeepCopy()
	in.VMI.Annotations = nil // the fact is the subject, not the annotation
	return d.Renderer.Launcher(in)
}

// configMapMissing lets a VMI refer to an object that is not watched.
func configMapMissing(w *world) {
	w.configure(gates("Sidecar"))
	w.start(setup{edit: func(r *vmictrl.Reconciler) {
		r.Renderer = demanding{template.Default(), "hooks", func(f render.Facts) bool { return !f.ConfigMaps["hook"] }}
	}})
	g := w.guest("guest", func(g *v1.VirtualMachineInstance) {
		g.Annotations = map[string]string{"hooks.kubevirt.io/hookSidecars": `[{"configMap":{"name":"hook"}}]`}
	})
	w.awaitTrouble(g, vmi.ReasonFailedCreate, "hooks", render.ErrMissingFact.Error())
	w.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "hook"}})
	w.awaitPhase(g, v1.Scheduled)
	w.onePodEach(1)
}

// stateMissing lets a VMI wait for a claim that only its label identifies.
func stateMissing(w *world) {
	w.start(setup{edit: func(r *vmictrl.Reconciler) {
		r.NeverRetry()
		r.Renderer = demanding{template.Default(), "state", func(f render.Facts) bool { return f.Claims["some-name"] == nil }}
	}})
	g := w.guest("guest")
	w.awaitTrouble(g, vmi.ReasonFailedCreate, "state", render.ErrMissingFact.Error())
	w.create(&corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "some-name", Labels: map[string]string{"persistent-state-for": g.Name}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	})
	w.awaitPhase(g, v1.Scheduled)
	w.onePodEach(1)
}
