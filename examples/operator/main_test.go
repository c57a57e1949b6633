// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clienttesting "k8s.io/client-go/testing"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi/vmictrl"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newDesktop() *Desktop {
	return &Desktop{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "anna", UID: "7f2c"},
		Spec:       DesktopSpec{Memory: resource.MustParse("1Gi"), Image: "quay.io/containerdisks/debian:12", Seat: "window"},
	}
}

func newServer(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, errors.Join(vmictrl.AddToScheme(scheme), addToScheme(scheme)))
	// The tracker that is the default keeps managed fields, and does not know all types of a guest's numbers.
	tracker := clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(tracker).WithStatusSubresource(&Desktop{}).Build()
	for _, o := range objects {
		must(t, c.Create(t.Context(), o))
	}
	return c
}

func TestDesktop_CreatesVMI(t *testing.T) {
	desktop := newDesktop()
	c := newServer(t, desktop)
	request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(desktop)}
	pass := func() {
		t.Helper()
		_, err := (&desktops{c}).Reconcile(t.Context(), request)
		must(t, err)
	}
	pass()
	pass() // nothing to do
	guest := &v1.VirtualMachineInstance{}
	must(t, c.Get(t.Context(), request.NamespacedName, guest))
	if !metav1.IsControlledBy(guest, desktop) || guest.Labels[operatorLabel] != "desktops" || guest.Spec.Domain.Memory.Guest.String() != "1Gi" {
		t.Errorf("the guest is %+v", guest)
	}

	guest.Status.Phase, guest.Status.NodeName = v1.Running, "node-1"
	must(t, c.Update(t.Context(), guest))
	pass()
	must(t, c.Get(t.Context(), request.NamespacedName, desktop))
	if want := (DesktopStatus{Phase: v1.Running, Node: "node-1"}); desktop.Status != want {
		t.Errorf("status is %+v, want %+v", desktop.Status, want)
	}
}

func TestDesktop_ForeignVMI(t *testing.T) {
	desktop := newDesktop()
	foreign := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "anna"}}
	foreign.Status.Phase = v1.Running
	c := newServer(t, desktop, foreign)
	_, err := (&desktops{c}).Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(desktop)})
	must(t, err)
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(desktop), desktop))
	if desktop.Status != (DesktopStatus{}) {
		t.Errorf("status is %+v", desktop.Status)
	}
}

func TestDesktop_PodContainer(t *testing.T) {
	r, err := renderer()
	must(t, err)
	for seat, want := range map[string]bool{"window": true, "": false} {
		t.Run("seat "+seat, func(t *testing.T) {
			desktop := newDesktop()
			desktop.Spec.Seat = seat
			guest := guestOf(desktop)
			guest.UID = "5d8f"
			pod, err := r.Launcher(template.Input{VMI: guest, Config: template.Config{LauncherImage: "example.com/launcher:1"}})
			must(t, err)
			got := slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "seat" && slices.Equal(c.Args, []string{seat}) })
			if got != want {
				t.Errorf("containers are %+v", pod.Spec.Containers)
			}
		})
	}
}

func TestDeepCopy_Independent(t *testing.T) {
	list := &DesktopList{Items: []Desktop{*newDesktop()}}
	list.Items[0].Labels = map[string]string{"a": "b"}
	c := list.DeepCopyObject().(*DesktopList)
	c.Items[0].Labels["a"] = "c"
	c.Items[0].Spec.Memory.Add(resource.MustParse("1Gi"))
	if list.Items[0].Labels["a"] != "b" || list.Items[0].Spec.Memory.String() != "1Gi" {
		t.Errorf("the original has changed: %+v", list.Items[0])
	}
}
