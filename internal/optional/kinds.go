// SPDX-License-Identifier: Apache-2.0

// Package optional lets a controller read kinds that a cluster need not serve: they are watched as long as there is a
// CustomResourceDefinition of theirs, without a restart.
package optional

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

// Kind is a kind that a cluster need not serve.
type Kind struct {
	// Definition is the name of its CustomResourceDefinition.
	Definition string
	Kind       schema.GroupVersionKind
	// Object is an object of the kind, as it is read and watched.
	Object client.Object
	// Wakes maps an object to those to reconcile.
	Wakes handler.MapFunc
}

// Kinds watches optional kinds as long as the cluster serves them. It is a controller of
// CustomResourceDefinitions, whose metadata it has to list and watch. It is safe for concurrent use.
type Kinds struct {
	cache      cache.Cache
	mapper     meta.RESTMapper
	client     client.Client
	controller controller.Controller
	all        []Kind
	// ended is called when a kind is no longer served.
	ended func(context.Context)

	detecting sync.Mutex
	known     bool // guarded by detecting
	mu        sync.RWMutex
	served    map[schema.GroupVersionKind]bool // guarded by mu
}

// New returns the kinds that a controller of the manager reads. ended is called when one is no longer served.
func New(mgr ctrl.Manager, c controller.Controller, all []Kind, ended func(context.Context)) *Kinds {
	return &Kinds{
		cache: mgr.GetCache(), mapper: mgr.GetRESTMapper(), client: mgr.GetClient(), controller: c, all: all, ended: ended,
		served: map[schema.GroupVersionKind]bool{},
	}
}

// Served returns kinds that do not change: those of all that the cluster serves according to the mapper.
func Served(mapper meta.RESTMapper, all []Kind) (*Kinds, error) {
	k := &Kinds{served: map[schema.GroupVersionKind]bool{}}
	for _, of := range all {
		switch _, err := mapper.RESTMapping(of.Kind.GroupKind(), of.Kind.Version); {
		case err == nil:
			k.served[of.Kind] = true
		case !meta.IsNoMatchError(err):
			return nil, fmt.Errorf("detect %s: %w", of.Kind, err)
		}
	}
	return k, nil
}

// definition is the metadata of a CustomResourceDefinition.
func definition() *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	return o
}

// Setup registers the controller that watches the metadata of the definitions, under the name of the controller
// that reads the kinds and "-kinds".
func (k *Kinds) Setup(mgr ctrl.Manager, name string) error {
	ours := predicate.NewPredicateFuncs(func(o client.Object) bool {
		return slices.ContainsFunc(k.all, func(of Kind) bool { return of.Definition == o.GetName() })
	})
	err := ctrl.NewControllerManagedBy(mgr).Named(name+"-kinds").
		For(definition(), builder.WithPredicates(ours)).
		Complete(k)
	if err != nil {
		return fmt.Errorf("watch CustomResourceDefinitions: %w", err)
	}
	return nil
}

// Know detects the served kinds, once: an undetected kind must not look like one without
// objects.
func (k *Kinds) Know(ctx context.Context) error {
	if k.client == nil {
		return nil // Served has detected them
	}
	k.detecting.Lock()
	defer k.detecting.Unlock()
	for _, of := range k.all {
		if k.known {
			break
		}
		if err := k.look(ctx, of); err != nil {
			return err
		}
	}
	k.known = true
	return nil
}

// look starts watching a kind if the cluster serves it. The RESTMapper may still know a removed
// kind; its definition is gone.
func (k *Kinds) look(ctx context.Context, of Kind) error {
	if err := k.client.Get(ctx, client.ObjectKey{Name: of.Definition}, definition()); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("read CustomResourceDefinition %s: %w", of.Definition, err)
	}
	switch _, err := k.mapper.RESTMapping(of.Kind.GroupKind(), of.Kind.Version); {
	case meta.IsNoMatchError(err):
		return nil
	case err != nil:
		return fmt.Errorf("detect %s: %w", of.Kind, err)
	}
	return k.begin(ctx, of)
}

// Serves reports whether objects of the kind can be read.
func (k *Kinds) Serves(kind schema.GroupVersionKind) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.served[kind]
}

// set records whether a kind is served and reports whether that has changed.
func (k *Kinds) set(kind schema.GroupVersionKind, served bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.served[kind]
	k.served[kind] = served
	return was != served
}

// Reconcile starts or stops the watch of one kind.
func (k *Kinds) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	i := slices.IndexFunc(k.all, func(of Kind) bool { return of.Definition == req.Name })
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
		return reconcile.Result{}, fmt.Errorf("read CustomResourceDefinition %s: %w", req.Name, err)
	}
	if _, err := k.mapper.RESTMapping(of.Kind.GroupKind(), of.Kind.Version); meta.IsNoMatchError(err) {
		return reconcile.Result{RequeueAfter: establishing}, nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("detect %s: %w", of.Kind, err)
	}
	return reconcile.Result{}, k.begin(ctx, of)
}

// begin starts watching a kind, unless it is watched; the watch enqueues the objects concerned.
func (k *Kinds) begin(ctx context.Context, of Kind) error {
	if !k.set(of.Kind, true) {
		return nil
	}
	if err := k.controller.Watch(source.Kind(k.cache, of.Object, handler.EnqueueRequestsFromMapFunc(of.Wakes))); err != nil {
		k.set(of.Kind, false)
		return fmt.Errorf("watch %s: %w", of.Kind, err)
	}
	ctrl.LoggerFrom(ctx).Info("Watching optional kind", "kind", of.Kind.String())
	return nil
}

// end stops watching a kind that is no longer served. Its definition is deleted after its
// objects; whoever missed the deletion of those is enqueued by ended.
func (k *Kinds) end(ctx context.Context, of Kind) error {
	if !k.set(of.Kind, false) {
		return nil
	}
	ctrl.LoggerFrom(ctx).Info("Stopped watching optional kind, no longer served", "kind", of.Kind.String())
	defer k.ended(ctx)
	if err := k.cache.RemoveInformer(ctx, of.Object); err != nil {
		return fmt.Errorf("remove informer of %s: %w", of.Kind, err)
	}
	return nil
}
