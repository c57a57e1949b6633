// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// establishing is the poll interval of a kind whose definition exists and that is not served
// yet.
const establishing = time.Second

// optionalKind is a kind that a cluster need not serve.
type optionalKind struct {
	// definition is the name of its CustomResourceDefinition.
	definition string
	kind       schema.GroupVersionKind
	// object is an object of the kind, as it is read and watched.
	object client.Object
	// wakes maps an object to the VMIs it concerns.
	wakes handler.MapFunc
}

// kinds watches optional kinds as long as the cluster serves them. It is a controller of
// CustomResourceDefinitions.
type kinds struct {
	cache      cache.Cache
	mapper     meta.RESTMapper
	client     client.Client
	controller controller.Controller
	all        []optionalKind
	// ended is called when a kind is no longer served.
	ended func(context.Context)

	known  once
	mu     sync.RWMutex
	served map[schema.GroupVersionKind]bool // guarded by mu
}

func newKinds(mgr ctrl.Manager, c controller.Controller, all []optionalKind, ended func(context.Context)) *kinds {
	return &kinds{
		cache: mgr.GetCache(), mapper: mgr.GetRESTMapper(), client: mgr.GetClient(), controller: c, all: all, ended: ended,
		served: map[schema.GroupVersionKind]bool{},
	}
}

// Only the metadata, to detect served kinds.
//
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=list;watch

// definition is the metadata of a CustomResourceDefinition.
func definition() *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	return o
}

// setup registers the controller that watches the metadata of the definitions.
func (k *kinds) setup(mgr ctrl.Manager, name string) error {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool {
		return slices.ContainsFunc(k.all, func(of optionalKind) bool { return of.definition == o.GetName() })
	})
	err := ctrl.NewControllerManagedBy(mgr).Named(name+"-kinds").
		For(definition(), builder.WithPredicates(ours)).
		Complete(k)
	if err != nil {
		return fmt.Errorf("vmictrl: watch CustomResourceDefinitions: %w", err)
	}
	return nil
}

// know detects the served kinds, once: an undetected kind must not look like one without
// objects.
func (k *kinds) know(ctx context.Context) error {
	if k.client == nil {
		return nil // an observer detects them in Observe
	}
	return k.known.do(func() error {
		for _, of := range k.all {
			if err := k.look(ctx, of); err != nil {
				return err
			}
		}
		return nil
	})
}

// look starts watching a kind if the cluster serves it. The RESTMapper may still know a removed
// kind; its definition is gone.
func (k *kinds) look(ctx context.Context, of optionalKind) error {
	if err := k.client.Get(ctx, client.ObjectKey{Name: of.definition}, definition()); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("vmictrl: read CustomResourceDefinition %s: %w", of.definition, err)
	}
	switch _, err := k.mapper.RESTMapping(of.kind.GroupKind(), of.kind.Version); {
	case meta.IsNoMatchError(err):
		return nil
	case err != nil:
		return fmt.Errorf("vmictrl: detect %s: %w", of.kind, err)
	}
	return k.begin(ctx, of)
}

// once repeats a function until it has succeeded once.
type once struct {
	mu   sync.Mutex
	done bool // guarded by mu
}

func (o *once) do(what func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done {
		return nil
	}
	err := what()
	o.done = err == nil
	return err
}

// serves reports whether objects of the kind can be read.
func (k *kinds) serves(kind schema.GroupVersionKind) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.served[kind]
}

// set records whether a kind is served and reports whether that has changed.
func (k *kinds) set(kind schema.GroupVersionKind, served bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.served[kind]
	k.served[kind] = served
	return was != served
}

// Reconcile starts or stops the watch of one kind.
func (k *kinds) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	i := slices.IndexFunc(k.all, func(of optionalKind) bool { return of.definition == req.Name })
	if i < 0 {
		return reconcile.Result{}, nil
	}
	of := k.all[i]
	found := definition()
	err := k.client.Get(ctx, req.NamespacedName, found)
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, k.end(ctx, of)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("vmictrl: read CustomResourceDefinition %s: %w", req.Name, err)
	}
	if _, err := k.mapper.RESTMapping(of.kind.GroupKind(), of.kind.Version); meta.IsNoMatchError(err) {
		return reconcile.Result{RequeueAfter: establishing}, nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("vmictrl: detect %s: %w", of.kind, err)
	}
	return reconcile.Result{}, k.begin(ctx, of)
}

// begin starts watching a kind, unless it is watched; the watch enqueues the VMIs concerned.
func (k *kinds) begin(ctx context.Context, of optionalKind) error {
	if !k.set(of.kind, true) {
		return nil
	}
	if err := k.controller.Watch(source.Kind(k.cache, of.object, handler.EnqueueRequestsFromMapFunc(of.wakes))); err != nil {
		k.set(of.kind, false)
		return fmt.Errorf("vmictrl: watch %s: %w", of.kind, err)
	}
	ctrl.LoggerFrom(ctx).Info("Watching optional kind", "kind", of.kind.String())
	return nil
}

// end stops watching a kind that is no longer served. Its definition is deleted after its
// objects; VMIs that missed the deletion of those are enqueued.
func (k *kinds) end(ctx context.Context, of optionalKind) error {
	if !k.set(of.kind, false) {
		return nil
	}
	ctrl.LoggerFrom(ctx).Info("Stopped watching optional kind, no longer served", "kind", of.kind.String())
	defer k.ended(ctx)
	if err := k.cache.RemoveInformer(ctx, of.object); err != nil {
		return fmt.Errorf("vmictrl: remove informer of %s: %w", of.kind, err)
	}
	return nil
}
