// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cluster has a number of VMIs, and of VirtualMachines.
type cluster struct {
	client.WithWatch
	guests, owners int
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)))
	c := &cluster{}
	c.WithWatch = fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: owner, UID: "uid-1"}},
	).WithInterceptorFuncs(interceptor.Funcs{List: func(_ context.Context, _ client.WithWatch, l client.ObjectList, _ ...client.ListOption) error {
		switch l := l.(type) {
		case *v1.VirtualMachineInstanceList:
			l.Items = make([]v1.VirtualMachineInstance, c.guests)
		case *v1.VirtualMachineList:
			l.Items = make([]v1.VirtualMachine, c.owners)
		}
		return nil
	}}).Build()
	return c
}

// guarded reports whether policy and binding are there, each owned by the definition.
func guarded(t *testing.T, c client.Client) bool {
	t.Helper()
	found := 0
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		o := object(kind)
		err := c.Get(t.Context(), client.ObjectKey{Name: Name}, o)
		must(t, client.IgnoreNotFound(err))
		if err == nil {
			found++
			if refs := o.GetOwnerReferences(); len(refs) != 1 || refs[0].UID != "uid-1" {
				t.Errorf("%s is owned by %v", kind, refs)
			}
		}
	}
	return found == 2
}

func pass(t *testing.T, k *Keeper) {
	t.Helper()
	_, err := k.Reconcile(t.Context(), reconcile.Request{})
	must(t, err)
}

func TestKeeper_FollowsGuests(t *testing.T) {
	c := newCluster(t)
	k := &Keeper{Client: c, Reader: c}
	pass(t, k)
	if guarded(t, c) {
		t.Error("no VMI exists")
	}
	c.guests = 1
	pass(t, k)
	if !guarded(t, c) {
		t.Fatal("a VMI exists")
	}
	// Another replica leads, and finds a half of it.
	must(t, c.Delete(t.Context(), object("ValidatingAdmissionPolicyBinding")))
	k = &Keeper{Client: c, Reader: c}
	pass(t, k)
	if !guarded(t, c) {
		t.Fatal("the binding is not made again")
	}
	c.guests, c.owners = 0, 1
	pass(t, k)
	if !guarded(t, c) {
		t.Fatal("a halted VirtualMachine exists")
	}
	c.owners = 0
	pass(t, &Keeper{Client: c, Reader: c}) // and another
	if guarded(t, c) {
		t.Error("neither exists any more")
	}
}

// TestKeeper_StaleCache: a VMI that the cache does not have yet keeps the guard.
func TestKeeper_StaleCache(t *testing.T) {
	c := newCluster(t)
	c.guests = 1
	k := &Keeper{Client: c, Reader: c}
	pass(t, k)
	k.Client = interceptor.NewClient(c.WithWatch, interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return nil }})
	pass(t, k)
	if !guarded(t, c) {
		t.Error("it goes while a VMI exists")
	}
}

// TestKeeper_RefusedWrite: what could not be written is written by the next pass.
func TestKeeper_RefusedWrite(t *testing.T) {
	c := newCluster(t)
	c.guests = 1
	refused := apierrors.NewForbidden(v1.Resource("x"), "x", nil)
	k := &Keeper{Reader: c, Client: interceptor.NewClient(c.WithWatch, interceptor.Funcs{Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
		return refused
	}})}
	if _, err := k.Reconcile(t.Context(), reconcile.Request{}); !apierrors.IsForbidden(err) {
		t.Fatalf("error %v", err)
	}
	k.Client = c
	pass(t, k)
	if !guarded(t, c) {
		t.Error("there is no guard")
	}
}

func TestPolicy_Names(t *testing.T) {
	var all []*unstructured.Unstructured
	for _, o := range [][4]string{
		{"v1", "Namespace", "", "a"}, {"v1", "ServiceAccount", "a", "b"}, {"networking.k8s.io/v1", "NetworkPolicy", "a", "c"},
		{"scheduling.k8s.io/v1", "PriorityClass", "", "d"}, {"admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "", "e"},
	} {
		u := &unstructured.Unstructured{}
		u.SetAPIVersion(o[0])
		u.SetKind(o[1])
		u.SetNamespace(o[2])
		u.SetName(o[3])
		all = append(all, u)
	}
	p := policy(all)
	conditions, _, err := unstructured.NestedSlice(p, "matchConditions")
	must(t, err)
	got := conditions[0].(map[string]any)["expression"].(string)
	if want := `in ["namespaces /a", "serviceaccounts a/b", "networkpolicies a/c", "priorityclasses /d"]`; !strings.HasSuffix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}
