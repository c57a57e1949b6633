// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi"
)

// atRest starts a VMI up to where volumes can be hotplugged, and further, by a controller that
// has stopped when atRest returns.
func (w *world) atRest(further func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	w.t.Helper()
	stop := w.start(setup{})
	g := w.plugReady()
	w.eventually(func() string {
		return w.ungated() + w.missingEvent("SuccessfulCreate", "virtual machine pod virt-launcher")
	})
	if further != nil {
		further(g)
	}
	stop()
	return g
}

// pluggedIn hotplugs a volume and awaits its events.
func (w *world) pluggedIn(g *v1.VirtualMachineInstance) {
	w.t.Helper()
	w.plug(g, "disk")
	w.eventually(func() string { return onItsNode(w, g) + attachmentReported(w, g) })
}

// onItsNode returns what is missing until volume disk is on the VMI's node, or "".
func onItsNode(w *world, g *v1.VirtualMachineInstance) string {
	if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(g), g); err != nil {
		return err.Error()
	}
	for _, p := range w.pods() {
		if p.Name != template.LauncherName(g) {
			return attached(g, p.Name, "disk")
		}
	}
	return "the attachment Pod"
}

func attachmentReported(w *world, _ *v1.VirtualMachineInstance) string {
	return w.missingEvent("SuccessfulCreate", "virtual machine pod hp-volume") + w.missingEvent("SuccessfulCreate", "for volume disk")
}

func killedPlugging(w *world) {
	killedAtEachWrite(w, path{
		pods: 2,
		begin: func(w *world) *v1.VirtualMachineInstance {
			w.boundClaim("disk")
			g := w.atRest(nil)
			w.plug(g, "disk")
			return g
		},
		arrived:  onItsNode,
		reported: attachmentReported,
		check: func(w *world, g *v1.VirtualMachineInstance) {
			if w.awaitPods(2); len(g.Status.VolumeStatus) != 1 || g.Status.Phase != v1.Running {
				w.t.Errorf("phase %s, volumes %+v", g.Status.Phase, g.Status.VolumeStatus)
			}
		},
	})
}

func killedUnplugging(w *world) {
	killedAtEachWrite(w, path{
		pods: 2,
		begin: func(w *world) *v1.VirtualMachineInstance {
			w.boundClaim("disk")
			g := w.atRest(w.pluggedIn)
			w.mark(g)
			w.unplug(g, "disk")
			w.nodeSays(g, "disk", v1.HotplugVolumeUnMounted)
			return g
		},
		arrived: func(w *world, g *v1.VirtualMachineInstance) string {
			if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(g), g); err != nil {
				return err.Error()
			}
			if pods := len(w.pods()); pods > 1 || len(g.Status.VolumeStatus) > 0 {
				return fmt.Sprintf("%d Pods, volumes %+v", pods, g.Status.VolumeStatus)
			}
			return ""
		},
		reported: func(w *world, _ *v1.VirtualMachineInstance) string {
			return w.missingEvent("SuccessfulDelete", "virtual machine pod hp-volume")
		},
		check: func(w *world, g *v1.VirtualMachineInstance) {
			if pod := w.awaitPods(1)[0]; pod.Name != template.LauncherName(g) || g.Status.Phase != v1.Running {
				w.t.Errorf("phase %s, Pod %s", g.Status.Phase, pod.Name)
			}
		},
	})
}

// mark changes the VMI, so that its history has no state twice.
func (w *world) mark(g *v1.VirtualMachineInstance) {
	w.t.Helper()
	w.change(g, func(g *v1.VirtualMachineInstance) {
		metav1.SetMetaDataAnnotation(&g.ObjectMeta, "example.test/mark", "")
	})
}

// eviction returns what is missing until the eviction request is reported, or no longer reported.
func eviction(want bool) func(*world, *v1.VirtualMachineInstance) string {
	return func(w *world, g *v1.VirtualMachineInstance) string {
		if err := w.Get(w.t.Context(), client.ObjectKeyFromObject(g), g); err != nil {
			return err.Error()
		}
		_, ofPod := w.awaitPods(1)[0].Annotations[evicting]
		ofGuest := condition(g, v1.VirtualMachineInstanceEvictionRequested).Status == corev1.ConditionTrue
		if ofPod == want && ofGuest == want {
			return ""
		}
		return fmt.Sprintf("the Pod's annotation: %t, the guest's condition: %t, want %t", ofPod, ofGuest, want)
	}
}

func (w *world) evict(g *v1.VirtualMachineInstance) {
	w.t.Helper()
	w.change(g, func(g *v1.VirtualMachineInstance) { g.Status.EvacuationNodeName = g.Status.NodeName })
}

// evictionPath is a path that changes only annotation and condition.
func evictionPath(begin func(*world) *v1.VirtualMachineInstance, evicted bool) path {
	return path{
		pods: 1, begin: begin, arrived: eviction(evicted),
		reported: func(*world, *v1.VirtualMachineInstance) string { return "" },
		check: func(w *world, g *v1.VirtualMachineInstance) {
			if l := w.lease(g); l.State != handoff.Owned || g.Status.Phase != v1.Running {
				w.t.Errorf("phase %s, lease %+v", g.Status.Phase, l)
			}
		},
	}
}

func killedEvicting(w *world) {
	killedAtEachWrite(w, evictionPath(func(w *world) *v1.VirtualMachineInstance {
		g := w.atRest(nil)
		w.evict(g)
		return g
	}, true))
}

func killedKeeping(w *world) {
	killedAtEachWrite(w, evictionPath(func(w *world) *v1.VirtualMachineInstance {
		g := w.atRest(func(g *v1.VirtualMachineInstance) {
			w.evict(g)
			w.eventually(func() string { return eviction(true)(w, g) })
		})
		w.mark(g)
		w.change(g, func(g *v1.VirtualMachineInstance) { g.Status.EvacuationNodeName = "" })
		return g
	}, false))
}

// killedProvisioning starts with a VMI that needs a backend storage claim, and a first consumer
// of a claim populated by CDI.
func killedProvisioning(w *world) {
	killedAtEachWrite(w, path{
		pods: 2,
		begin: func(w *world) *v1.VirtualMachineInstance {
			state := w.class(storagev1.VolumeBindingImmediate)
			w.configure(stateClass(state))
			class := w.class(storagev1.VolumeBindingWaitForFirstConsumer)
			w.importing("disk", cdiv1.WaitForFirstConsumer, func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class })
			g := w.guest("guest", withTPM, withDataVolume("disk"))
			w.volume(state, vmi.StateClaimName(g))
			return g
		},
		arrived: func(w *world, g *v1.VirtualMachineInstance) string { return w.importer() + offered(w, g) },
		reported: func(w *world, g *v1.VirtualMachineInstance) string {
			return w.missingEvent("SuccessfulCreate", template.TemporaryName(g)) + w.missingEvent("SuccessfulDelete", template.TemporaryName(g)) +
				w.missingEvent("SuccessfulCreate", template.LauncherName(g))
		},
		check: func(w *world, g *v1.VirtualMachineInstance) {
			if pod := w.awaitPods(1)[0]; pod.Name != template.LauncherName(g) {
				w.t.Errorf("the guest is in Pod %s", pod.Name)
			}
			if claims := w.stateClaims(); len(claims) != 1 {
				w.t.Errorf("%d claims of the guest's state", len(claims))
			}
		},
	})
}

// importer acts as CDI once its claim has a first consumer; it returns what is missing, or "".
func (w *world) importer() string {
	consumed := slices.ContainsFunc(w.pods(), func(p corev1.Pod) bool {
		return p.Annotations[v1.EphemeralProvisioningObject] == "true" && p.Status.Phase == corev1.PodRunning
	})
	dv := &cdiv1.DataVolume{}
	if err := w.Get(w.t.Context(), client.ObjectKey{Namespace: w.ns, Name: "disk"}, dv); err != nil {
		return err.Error()
	}
	if consumed && dv.Status.Phase == cdiv1.WaitForFirstConsumer {
		if err := w.dvPhase(dv, cdiv1.Succeeded); err != nil {
			return err.Error()
		}
	}
	return ""
}
