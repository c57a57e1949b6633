// SPDX-License-Identifier: Apache-2.0

// Package guard has the API server refuse to delete what virtual machines depend on while there are any: the definitions, with
// which every VirtualMachine and VMI would go, and the daemons with their namespaces, accounts and rights. It is for "kubectl delete -f".
//
// [Keeper] binds a ValidatingAdmissionPolicy while VMIs or VirtualMachines exist, so that the API server refuses also while no controller runs.
// Policy and binding are not among the manifests, which would delete them with the rest: policies of admission are not
// subject to admission, so nothing can refuse that. They are owned by the definition of VMIs instead, and go with it.
package guard

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

const (
	// Name is the name of the policy and of its binding.
	Name = "virtloom-guests-exist"
	// Override is the annotation of objects that may be deleted nevertheless, if its value is "true".
	Override = "virtloom.dev/delete-with-guests"

	owner = "virtualmachineinstances.kubevirt.io"
	// every is the time between two checks that no client has removed the guard.
	every = time.Minute
)

// Keeper maintains the guard, on the leader among replicas.
type Keeper struct {
	// Client lists VMIs and VirtualMachines, from a cache, and writes the guard.
	Client client.Client
	// Reader reads from the API server itself.
	Reader client.Reader
	// Guarded are the objects that are not to be deleted, such as all manifests of the installation. Policies of admission
	// among them are ignored.
	Guarded []*unstructured.Unstructured

	checked time.Time // when the state below was read; zero is never
	bound   bool
}

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies;validatingadmissionpolicybindings,resourceNames=virtloom-guests-exist,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=virtualmachineinstances.kubevirt.io,verbs=get
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances;virtualmachines,verbs=list;watch

// SetupWithManager registers the keeper. It is asked whenever a VMI or a VirtualMachine comes or goes.
func (k *Keeper) SetupWithManager(mgr ctrl.Manager) error {
	one := reconcile.Request{NamespacedName: types.NamespacedName{Name: Name}}
	at := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{one} })
	start := source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		q.Add(one) // a former leader may have left the guard when the last VMI went
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).Named("deletion-guard").
		WatchesRawSource(start).
		Watches(&v1.VirtualMachineInstance{}, at).
		Watches(&v1.VirtualMachine{}, at).
		WithEventFilter(predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}).
		Complete(k)
}

// machines reports whether there is a VMI or a VirtualMachine.
func machines(ctx context.Context, from client.Reader) (bool, error) {
	var guests v1.VirtualMachineInstanceList
	if err := from.List(ctx, &guests, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list VMIs: %w", err)
	}
	var owners v1.VirtualMachineList
	if err := from.List(ctx, &owners, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list VirtualMachines: %w", err)
	}
	return len(guests.Items)+len(owners.Items) > 0, nil
}

// Reconcile makes the guard exist if and only if a VMI or a VirtualMachine does.
func (k *Keeper) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	exist, err := machines(ctx, k.Client)
	if err != nil {
		return reconcile.Result{}, err
	}
	if time.Since(k.checked) >= every {
		if err := k.look(ctx); err != nil {
			return reconcile.Result{}, err
		}
	}
	switch {
	case exist && !k.bound:
		err = k.bind(ctx)
	case !exist && k.bound:
		err = k.release(ctx)
	}
	if err != nil {
		k.checked = time.Time{}
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: every}, nil
}

func object(kind string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kind})
	u.SetName(Name)
	return u
}

// look reads whether the guard is complete.
func (k *Keeper) look(ctx context.Context) error {
	k.bound = true
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		switch err := k.Reader.Get(ctx, client.ObjectKey{Name: Name}, object(kind)); {
		case apierrors.IsNotFound(err):
			k.bound = false
		case err != nil:
			return fmt.Errorf("read %s %s: %w", kind, Name, err)
		}
	}
	k.checked = time.Now()
	return nil
}

// bind makes the policy, and then its binding.
func (k *Keeper) bind(ctx context.Context) error {
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	if err := k.Reader.Get(ctx, client.ObjectKey{Name: owner}, definition); err != nil {
		return fmt.Errorf("read the definition of VMIs: %w", err)
	}
	p, b := object("ValidatingAdmissionPolicy"), object("ValidatingAdmissionPolicyBinding")
	p.Object["spec"] = policy(k.Guarded)
	b.Object["spec"] = map[string]any{"policyName": Name, "validationActions": []any{"Deny"}}
	for _, o := range []*unstructured.Unstructured{p, b} {
		o.SetOwnerReferences([]metav1.OwnerReference{{
			APIVersion: definition.APIVersion, Kind: definition.Kind, Name: definition.Name, UID: definition.UID,
		}})
		// Applied, as a right to create by name holds for that only.
		if err := k.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("virtloom-controller"), client.ForceOwnership); err != nil {
			return fmt.Errorf("guard against deletion: %w", err)
		}
	}
	k.bound = true
	ctrl.LoggerFrom(ctx).Info("VMIs or VirtualMachines exist: what they depend on cannot be deleted", "policy", Name)
	return nil
}

// release removes the binding, unless the API server knows of something that the cache does not have yet.
func (k *Keeper) release(ctx context.Context) error {
	if exist, err := machines(ctx, k.Reader); err != nil || exist {
		return err
	}
	var errs []error
	for _, kind := range []string{"ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"} {
		errs = append(errs, client.IgnoreNotFound(k.Client.Delete(ctx, object(kind))))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("guard against deletion no more: %w", err)
	}
	k.bound = false
	ctrl.LoggerFrom(ctx).Info("No VMI or VirtualMachine exists: everything may be deleted", "policy", Name)
	return nil
}
