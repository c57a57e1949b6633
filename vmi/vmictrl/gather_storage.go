// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"fmt"
	"maps"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	v1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/internal/optional"
	"github.com/virtloom/virtloom/vmi"
)

// Kinds that a cluster need not serve.
var (
	dvKind        = cdiv1.SchemeGroupVersion.WithKind("DataVolume")
	profileKind   = cdiv1.SchemeGroupVersion.WithKind("StorageProfile")
	cdiKind       = cdiv1.SchemeGroupVersion.WithKind("CDI")
	cdiConfigKind = cdiv1.SchemeGroupVersion.WithKind("CDIConfig")
	vmKind        = v1.VirtualMachineGroupVersionKind
)

// readWithin bounds reads of optional kinds: the cache of a kind that was just removed would
// never sync.
const readWithin = 10 * time.Second

// cdiConfig is the name of CDI's one CDIConfig.
const cdiConfig = "config"

// CDI's kinds and VirtualMachines, where the cluster serves them, which the metadata of the definitions says.
//
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=list;watch
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes;storageprofiles;cdis;cdiconfigs,verbs=list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=list;watch

// optional lists the optional kinds and their map functions.
func (r gatherer) optional() []optional.Kind {
	vm := &metav1.PartialObjectMetadata{}
	vm.SetGroupVersionKind(vmKind)
	return []optional.Kind{
		{Definition: "datavolumes.cdi.kubevirt.io", Kind: dvKind, Object: &cdiv1.DataVolume{}, Wakes: watcher(r).claimants},
		{Definition: "storageprofiles.cdi.kubevirt.io", Kind: profileKind, Object: &cdiv1.StorageProfile{}, Wakes: watcher(r).allWaiting},
		{Definition: "cdis.cdi.kubevirt.io", Kind: cdiKind, Object: &cdiv1.CDI{}, Wakes: noVMI},
		{Definition: "cdiconfigs.cdi.kubevirt.io", Kind: cdiConfigKind, Object: &cdiv1.CDIConfig{}, Wakes: noVMI},
		{Definition: "virtualmachines.kubevirt.io", Kind: vmKind, Object: vm, Wakes: namesake},
	}
}

// unserved enqueues all VMIs, as one may depend on the kind that is no longer served.
func (r gatherer) unserved(ctx context.Context) {
	if q := r.backlog.Queue(); q != nil {
		watcher(r).wakeAll(ctx, q)
	}
}

// noVMI maps objects to no VMI: their values are reported with the next change.
func noVMI(context.Context, client.Object) []reconcile.Request { return nil }

// namesake maps a VirtualMachine to its VMI.
func namesake(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{request(o.GetNamespace(), o.GetName())}
}

// storage reads the storage state of the VMI's volumes.
func (r gatherer) storage(ctx context.Context, g *gathered) error {
	if g.VMI.IsFinal() {
		return nil
	}
	if err := r.kinds.Know(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	var err error
	if g.claims, err = r.gatherer.Claims(ctx, g.VMI); err != nil {
		return fmt.Errorf("vmictrl: %s: %w", g.owner.Key, err)
	}
	s := &g.Storage
	s.Claims = maps.Clone(g.claims)
	// Any object with the name of the backend storage claim blocks its creation, unless it is that claim.
	if err := read(ctx, r.Client, g, vmi.StateClaimName(g.VMI), s.Claims); err != nil {
		return err
	}
	for _, part := range []func(context.Context, *gathered) error{r.dataVolumes, r.classes, r.profiles, r.overhead} {
		if err := part(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// object is the constraint of objects that read can store in a map by name.
type object[T any] interface {
	*T
	client.Object
}

// read adds the namespaced object of that name to the map, if it exists.
func read[T any, P object[T]](ctx context.Context, c client.Reader, g *gathered, name string, into map[string]P) error {
	if into[name] != nil || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil // no object has an invalid name
	}
	o := P(new(T))
	key := types.NamespacedName{Namespace: g.VMI.Namespace, Name: name}
	switch err := c.Get(ctx, key, o); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("vmictrl: read %T %s for %s: %w", *o, key, g.owner.Key, err)
	default:
		into[name] = o
	}
	return nil
}

// dataVolumes reads the DataVolumes that populate the VMI's claims.
func (r gatherer) dataVolumes(ctx context.Context, g *gathered) error {
	if !r.kinds.Serves(dvKind) {
		return nil
	}
	g.Storage.DataVolumes = map[string]*cdiv1.DataVolume{}
	for i := range g.VMI.Spec.Volumes {
		if dv := g.VMI.Spec.Volumes[i].DataVolume; dv != nil {
			if err := read(ctx, r.Client, g, dv.Name, g.Storage.DataVolumes); err != nil {
				return err
			}
		}
	}
	for _, claim := range g.Storage.Claims {
		c := metav1.GetControllerOf(claim)
		if c == nil || c.Kind != dvKind.Kind {
			continue
		}
		if err := read(ctx, r.Client, g, c.Name, g.Storage.DataVolumes); err != nil {
			return err
		}
	}
	return nil
}

// classes reads all StorageClasses, of which there are few, for a VMI with claims or persistent
// state.
func (r gatherer) classes(ctx context.Context, g *gathered) error {
	if len(g.Storage.Claims) == 0 && !vmi.KeepsState(g.VMI) {
		return nil
	}
	var list storagev1.StorageClassList
	if err := r.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("vmictrl: list StorageClasses: %w", err)
	}
	g.Storage.Classes = map[string]*storagev1.StorageClass{}
	for i := range list.Items {
		g.Storage.Classes[list.Items[i].Name] = &list.Items[i]
	}
	return nil
}

// profiles reads all StorageProfiles for a VMI with persistent state.
func (r gatherer) profiles(ctx context.Context, g *gathered) error {
	if !waiting(g.VMI) || !vmi.KeepsState(g.VMI) || !r.kinds.Serves(profileKind) {
		return nil
	}
	var list cdiv1.StorageProfileList
	if err := r.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("vmictrl: list StorageProfiles: %w", err)
	}
	g.Storage.Profiles = map[string]*cdiv1.StorageProfile{}
	for i := range list.Items {
		g.Storage.Profiles[list.Items[i].Name] = &list.Items[i]
	}
	return nil
}

// overhead reads the file system overhead from CDI's configuration, if there is exactly one CDI.
func (r gatherer) overhead(ctx context.Context, g *gathered) error {
	if len(g.Storage.Claims) == 0 || !r.kinds.Serves(cdiKind) || !r.kinds.Serves(cdiConfigKind) {
		return nil
	}
	var list cdiv1.CDIList
	if err := r.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("vmictrl: list CDIs: %w", err)
	}
	if len(list.Items) != 1 {
		return nil
	}
	config := &cdiv1.CDIConfig{}
	err := r.Client.Get(ctx, types.NamespacedName{Name: cdiConfig}, config)
	switch {
	case apierrors.IsNotFound(err):
		// KubeVirt stores no status at all then; here the other fields are still written.
		ctrl.LoggerFrom(ctx).Info("Missing CDIConfig, using the default file system overhead", "name", cdiConfig)
	case err != nil:
		return fmt.Errorf("vmictrl: read CDIConfig %s: %w", cdiConfig, err)
	default:
		g.Storage.Overhead = config.Status.FilesystemOverhead
	}
	return nil
}
