// SPDX-License-Identifier: Apache-2.0

package vmictrl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/rig"
	"github.com/virtloom/virtloom/internal/rig/rigtest"
	"github.com/virtloom/virtloom/vmi"
)

// TestWithCDI has a rig of its own: CDI's kinds are cluster-wide.
func TestWithCDI(t *testing.T) {
	c := newCluster(t)
	t.Run("CDI comes, goes and comes again", func(t *testing.T) { cdiComesAndGoes(c.world(t)) })
	if t.Failed() {
		return // the rest needs CDI
	}
	for name, test := range map[string]func(*world){
		"20: an import is awaited without a Pod":               importAwaited,
		"22, 25: a first consumer makes way for the guest":     firstConsumer,
		"22: a guest fails with its first consumer":            firstConsumerFailed,
		"28: a guest fails with its import":                    importFailed,
		"32: a profile says how the guest's state is accessed": stateByProfile,
		"98: the overhead of file systems is reported":         overheadReported,
		"a plugged volume is provisioned by a trigger":         triggered,
		"killed at each write of a start that needs much":      killedProvisioning,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(c.world(t))
		})
	}
}

// definitions returns stand-ins for CDI's CustomResourceDefinitions.
func definitions() []*apiextensionsv1.CustomResourceDefinition {
	gv, names, cluster := cdiv1.SchemeGroupVersion, apiextensionsv1.NamespaceScoped, apiextensionsv1.ClusterScoped
	return []*apiextensionsv1.CustomResourceDefinition{
		rigtest.Definition(gv.WithKind("DataVolume"), "datavolumes", names),
		rigtest.Definition(gv.WithKind("StorageProfile"), "storageprofiles", cluster),
		rigtest.Definition(gv.WithKind("CDI"), "cdis", cluster),
		rigtest.Definition(gv.WithKind("CDIConfig"), "cdiconfigs", cluster),
	}
}

// definer returns a client for CustomResourceDefinitions.
func definer(t *testing.T, r *rig.Rig) client.Client {
	t.Helper()
	s := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(r.Config(rig.UserAdmin), client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// cdi is the set of CDI's kinds, which a test installs and removes.
type cdi struct {
	*world
	definitions client.Client
}

func newCDI(w *world) *cdi {
	w.t.Helper()
	return &cdi{w, definer(w.t, w.Rig)}
}

// install returns when everything is served.
func (c *cdi) install() {
	c.t.Helper()
	for _, d := range definitions() {
		if err := c.definitions.Create(c.t.Context(), d); err != nil {
			c.t.Fatal(err)
		}
	}
	c.eventually(func() string {
		for _, list := range []client.ObjectList{&cdiv1.DataVolumeList{}, &cdiv1.StorageProfileList{}, &cdiv1.CDIList{}, &cdiv1.CDIConfigList{}} {
			if err := c.List(c.t.Context(), list); err != nil {
				return err.Error()
			}
		}
		return ""
	})
}

// remove returns when nothing is served any more.
func (c *cdi) remove() {
	c.t.Helper()
	for _, d := range definitions() {
		if err := c.definitions.Delete(c.t.Context(), d); err != nil {
			c.t.Fatal(err)
		}
	}
	c.eventually(func() string {
		for _, d := range definitions() {
			if err := c.definitions.Get(c.t.Context(), client.ObjectKeyFromObject(d), d); !apierrors.IsNotFound(err) {
				return fmt.Sprintf("definition %s is still there: %v", d.Name, err)
			}
		}
		err := c.List(c.t.Context(), &cdiv1.DataVolumeList{})
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			return ""
		}
		return fmt.Sprintf("DataVolumes are still served: %v", err)
	})
}

// cdiComesAndGoes leaves CDI installed.
func cdiComesAndGoes(w *world) {
	c := newCDI(w)
	w.start(onlyWatches)
	// The claim is owned by a DataVolume whose kind is not served.
	lost := w.guest("lost", withDataVolume("lost"))
	w.filledClaim(&cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Name: "lost", UID: "nobody"}})
	w.awaitTrouble(lost, vmi.ReasonFailedDataVolumeImport, w.ns+"/lost")

	c.install()
	first := w.guest("first", withDataVolume("first"))
	dv := w.importing("first", cdiv1.ImportInProgress)
	w.awaitImport(first, corev1.ConditionFalse)
	w.filled(dv)
	w.awaitPhase(first, v1.Scheduled)

	waits := w.guest("waits", withDataVolume("waits"))
	w.importing("waits", cdiv1.ImportInProgress)
	w.awaitImport(waits, corev1.ConditionFalse)
	c.remove()
	w.awaitTrouble(waits, vmi.ReasonFailedDataVolumeImport, w.ns+"/waits")
	w.claim("plain")
	plain := w.guest("plain", withClaim("plain"))
	w.awaitPhase(plain, v1.Scheduled)

	c.install()
	again := w.guest("again", withDataVolume("again"))
	dv = w.importing("again", cdiv1.ImportInProgress)
	w.awaitImport(again, corev1.ConditionFalse)
	w.filled(dv)
	w.awaitPhase(again, v1.Scheduled)
	w.awaitTrouble(lost, vmi.ReasonFailedDataVolumeImport, w.ns+"/lost")
	w.onePodEach(3)
}

// withDataVolume adds a disk populated by a DataVolume.
func withDataVolume(name string) func(*v1.VirtualMachineInstance) {
	return withVolume(name, v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: name}})
}

// importing creates a DataVolume in a phase, with its bound claim.
func (w *world) importing(name string, p cdiv1.DataVolumePhase, edit ...func(*corev1.PersistentVolumeClaim)) *cdiv1.DataVolume {
	w.t.Helper()
	dv := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	dv.Status = dvStatus(p)
	w.create(dv)
	w.filledClaim(dv, edit...)
	return dv
}

// filledClaim creates the claim of a DataVolume, and the volume for it.
func (w *world) filledClaim(dv *cdiv1.DataVolume, edit ...func(*corev1.PersistentVolumeClaim)) {
	w.t.Helper()
	w.claim(dv.Name, append([]func(*corev1.PersistentVolumeClaim){func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(dv, cdiv1.SchemeGroupVersion.WithKind("DataVolume"))}
	}}, edit...)...)
}

func dvStatus(p cdiv1.DataVolumePhase) cdiv1.DataVolumeStatus {
	ready := corev1.ConditionFalse
	if p == cdiv1.Succeeded {
		ready = corev1.ConditionTrue
	}
	return cdiv1.DataVolumeStatus{Phase: p, Conditions: []cdiv1.DataVolumeCondition{{Type: cdiv1.DataVolumeReady, Status: ready}}}
}

// filled makes the DataVolume Succeeded.
func (w *world) filled(dv *cdiv1.DataVolume) {
	w.t.Helper()
	if err := w.dvPhase(dv, cdiv1.Succeeded); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) dvPhase(dv *cdiv1.DataVolume, p cdiv1.DataVolumePhase) error {
	patch, err := json.Marshal(map[string]any{"status": dvStatus(p)})
	if err != nil {
		return err
	}
	return w.Patch(w.t.Context(), dv.DeepCopy(), client.RawPatch("application/merge-patch+json", patch))
}

// awaitImport waits for the DataVolumesReady condition of the VMI.
func (w *world) awaitImport(g *v1.VirtualMachineInstance, ready corev1.ConditionStatus) {
	w.t.Helper()
	w.await(g, "DataVolumesReady "+string(ready), func() bool {
		return condition(g, v1.VirtualMachineInstanceDataVolumesReady).Status == ready
	})
}

// clusterObject creates an object without a namespace and deletes it after the test.
func (w *world) clusterObject(o client.Object) {
	w.t.Helper()
	w.create(o)
	w.t.Cleanup(func() { // the world's context is canceled by then
		err := rigtest.Poll(context.Background(), patience, func(ctx context.Context) (bool, error) {
			o.SetFinalizers(nil)
			_ = w.Patch(ctx, o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
			return apierrors.IsNotFound(w.Delete(ctx, o)), nil
		})
		if err != nil {
			w.t.Error(err)
		}
	})
}
