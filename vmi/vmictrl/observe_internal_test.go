// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/vmi/diagnose"
)

var observedAt = time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)

// observer returns an observer of a cluster with the objects, which serves CDI's kinds if cdi is true.
func observer(t *testing.T, cdi bool, objects ...client.Object) *Reconciler {
	t.Helper()
	s := runtime.NewScheme()
	if err := AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	served := meta.NewDefaultRESTMapper(nil)
	for gvk := range s.AllKnownTypes() {
		if cdi || gvk.Group != cdiv1.SchemeGroupVersion.Group {
			served.Add(gvk, meta.RESTScopeNamespace)
		}
	}
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}})
	b := fake.NewClientBuilder().WithScheme(s).WithRESTMapper(served).WithObjects(objects...)
	if err := index(t.Context(), indexes{b}); err != nil {
		t.Fatal(err)
	}
	c := b.Build()
	r := &Reconciler{Client: c, APIReader: c, LauncherImage: "launcher:1", Clock: clocktesting.NewFakePassiveClock(observedAt)}
	if err := r.Observe(t.Context(), nothing{}); err != nil {
		t.Fatal(err)
	}
	return r
}

func observed(phase v1.VirtualMachineInstancePhase, change ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	memory := resource.MustParse("64Mi")
	g := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "guest", UID: "guest-uid"}}
	g.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
	g.Status.Phase = phase
	for _, c := range change {
		c(g)
	}
	return g
}

func launched(node string) *corev1.Pod {
	yes := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p", Labels: map[string]string{v1.CreatedByLabel: "guest-uid"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: vmiKind, Name: "guest", UID: "guest-uid", Controller: &yes}}}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "compute", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	return p
}

func multus(g *v1.VirtualMachineInstance) {
	g.Spec.Networks = []v1.Network{{Name: "blue", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "blue"}}}}
	g.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "blue", InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}}}
}

// definitions returns the KubeVirt configuration that the template reads for networks.
func definitions() *v1.KubeVirt {
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "kubevirt"}}
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{DisabledFeatureGates: []string{"ExternalNetResourceInjection"}}
	return kv
}

func disk(g *v1.VirtualMachineInstance) {
	g.Spec.Volumes = []v1.Volume{{Name: "root", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}}}}
}

func importing() []client.Object {
	yes := true
	dv := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "root", UID: "dv"}}
	dv.Status.Phase = cdiv1.ImportInProgress
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "root", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume", Name: "root", UID: "dv", Controller: &yes}}}}
	return []client.Object{dv, claim}
}

func TestExplain(t *testing.T) {
	owned := func(g *v1.VirtualMachineInstance) {
		if err := handoff.Put(g, handoff.Lease{State: handoff.Owned, Epoch: 1, Holder: "node-a"}); err != nil {
			t.Fatal(err)
		}
	}
	beat := func(ago time.Duration) client.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", Annotations: map[string]string{
			v1.VirtHandlerHeartbeat: observedAt.Add(-ago).Format(time.RFC3339)}}}
	}
	yes := true
	for name, tt := range map[string]struct {
		cdi     bool
		objects []client.Object
		want    []diagnose.FindingKind
		becomes v1.VirtualMachineInstancePhase
		says    string
	}{
		"no guest":                        {},
		"a Pod to be made":                {objects: []client.Object{observed(v1.Pending)}, want: []diagnose.FindingKind{diagnose.LauncherMissing}, says: "CreateLauncher"},
		"a network that does not exist":   {objects: []client.Object{observed(v1.Pending, multus), definitions()}, want: []diagnose.FindingKind{diagnose.InvalidNetwork}, says: "spec.networks[0]"},
		"a claim that is filled":          {cdi: true, objects: append(importing(), observed(v1.Pending, disk)), want: []diagnose.FindingKind{diagnose.WaitingForStorage}, says: "ImportInProgress"},
		"a claim in a cluster without":    {objects: []client.Object{observed(v1.Pending, disk)}, want: []diagnose.FindingKind{diagnose.WaitingForStorage}, says: "neither"},
		"a silent node":                   {objects: []client.Object{observed(v1.Running, owned), launched("node-a"), beat(time.Hour)}, want: []diagnose.FindingKind{diagnose.NodeSilent}, says: "node-a"},
		"a node that lives":               {objects: []client.Object{observed(v1.Running, owned), launched("node-a"), beat(time.Minute)}},
		"a node of another time":          {objects: []client.Object{observed(v1.Running, owned), launched("node-a"), beat(-time.Hour)}},
		"about to be handed over":         {objects: []client.Object{observed(v1.Scheduling), launched("node-a")}, becomes: v1.Scheduled, want: []diagnose.FindingKind{diagnose.WaitingForNode}, says: "not accepted"},
		"handed over with its own number": {objects: []client.Object{observed(v1.Scheduling, func(g *v1.VirtualMachineInstance) { g.Spec.Domain.Devices.AutoattachVSOCK = &yes }), launched("node-a")}, becomes: v1.Scheduled, want: []diagnose.FindingKind{diagnose.WaitingForNode}},
	} {
		t.Run(name, func(t *testing.T) {
			r := observer(t, tt.cdi, tt.objects...)
			d, err := r.Explain(t.Context(), types.NamespacedName{Namespace: "ns", Name: "guest"})
			if err != nil {
				t.Fatal(err)
			}
			if len(tt.objects) == 0 {
				if d != nil {
					t.Errorf("there is no guest: %+v", d)
				}
				return
			}
			var got []diagnose.FindingKind
			for _, f := range d.Findings {
				got = append(got, f.Kind)
			}
			if len(got) != len(tt.want) || len(got) > 0 && got[0] != tt.want[0] || d.Becomes != tt.becomes || !strings.Contains(d.String(), tt.says) {
				t.Errorf("found %v, becomes %q, want %v, %q and %q:\n%s", got, d.Becomes, tt.want, tt.becomes, tt.says, d)
			}
		})
	}
}

func TestObserver_ReadOnly(t *testing.T) {
	g := observed(v1.Pending)
	r := observer(t, false, g)
	if err := r.Client.Delete(t.Context(), g); !errors.Is(err, ErrReadOnly) {
		t.Errorf("error %v", err)
	}
	if unseen := r.Pending(client.ObjectKeyFromObject(g)); unseen != nil {
		t.Errorf("who writes nothing waits for %v", unseen)
	}
	if plan, err := r.Plan(t.Context(), client.ObjectKeyFromObject(g)); err != nil || len(plan.Actions) != 1 {
		t.Errorf("plan %v, error %v", plan, err)
	}
	r.Scope.Namespaces = []string{"other"}
	if d, err := r.Explain(t.Context(), client.ObjectKeyFromObject(g)); err != nil || d != nil {
		t.Errorf("a guest out of scope: %v, error %v", d, err)
	}
	if err := (&Reconciler{}).Observe(t.Context(), nothing{}); err == nil {
		t.Error("it needs a client")
	}
}

// nothing ignores indexes that already exist.
type nothing struct{}

func (nothing) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return nil
}
