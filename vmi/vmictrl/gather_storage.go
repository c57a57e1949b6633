// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
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

	"github.com/virtloom/virtloom/template/templatectrl"
	"github.com/virtloom/virtloom/vmi"
)

// The kinds that a cluster need not serve.
var (
	dvKind        = cdiv1.SchemeGroupVersion.WithKind("DataVolume")
	profileKind   = cdiv1.SchemeGroupVersion.WithKind("StorageProfile")
	cdiKind       = cdiv1.SchemeGroupVersion.WithKind("CDI")
	cdiConfigKind = cdiv1.SchemeGroupVersion.WithKind("CDIConfig")
	vmKind        = v1.VirtualMachineGroupVersionKind
)

// readWithin bounds the reading of kinds that the cluster need not serve: from a cache
// of one that it just ceased to serve nothing would ever come.
const readWithin = 10 * time.Second

// cdiConfig is the name of CDI's one CDIConfig.
const cdiConfig = "config"

// What fills claims, and what makes guests, where the cluster has it.
//
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes;storageprofiles;cdis;cdiconfigs,verbs=list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=list;watch

// optional lists the kinds that a cluster need not serve, and whom they concern.
func (r *Reconciler) optional() []optionalKind {
	vm := &metav1.PartialObjectMetadata{}
	vm.SetGroupVersionKind(vmKind)
	return []optionalKind{
		{"datavolumes.cdi.kubevirt.io", dvKind, &cdiv1.DataVolume{}, r.claimants},
		{"storageprofiles.cdi.kubevirt.io", profileKind, &cdiv1.StorageProfile{}, r.allWaiting},
		{"cdis.cdi.kubevirt.io", cdiKind, &cdiv1.CDI{}, nobody},
		{"cdiconfigs.cdi.kubevirt.io", cdiConfigKind, &cdiv1.CDIConfig{}, nobody},
		{"virtualmachines.kubevirt.io", vmKind, vm, namesake},
	}
}

// unserved wakes all guests, as one may depend on what is not served any more.
func (r *Reconciler) unserved(ctx context.Context) {
	if q := r.backlog.Queue(); q != nil {
		r.wakeAll(ctx, q)
	}
}

// nobody is woken by what only tells a number: it is told with the next change.
func nobody(context.Context, client.Object) []reconcile.Request { return nil }

// namesake maps a VirtualMachine to the guest it makes.
func namesake(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{request(o.GetNamespace(), o.GetName())}
}

// storage reads what the cluster says of the guest's volumes.
func (r *Reconciler) storage(ctx context.Context, g *gathered) error {
	if g.VMI.IsFinal() {
		return nil
	}
	if err := r.kinds.know(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	s := &g.Storage
	s.Claims = map[string]*corev1.PersistentVolumeClaim{}
	// Whatever has the name of the claim for its state is in the way of that, if it is not that.
	for _, name := range append(templatectrl.ClaimNames(g.VMI), vmi.StateClaimName(g.VMI)) {
		if err := read(ctx, r.Client, g, name, s.Claims); err != nil {
			return err
		}
	}
	if err := r.stateClaims(ctx, g); err != nil {
		return err
	}
	for _, part := range []func(context.Context, *gathered) error{r.dataVolumes, r.classes, r.profiles, r.overhead} {
		if err := part(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// object is what a map of objects by name can be read into.
type object[T any] interface {
	*T
	client.Object
}

// read adds the namespaced object of the name to the map, if it exists.
func read[T any, P object[T]](ctx context.Context, c client.Reader, g *gathered, name string, into map[string]P) error {
	if into[name] != nil || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil // what is no name is that of no object
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

// stateClaims adds the claims that are labelled as those of the guest's state.
func (r *Reconciler) stateClaims(ctx context.Context, g *gathered) error {
	var list corev1.PersistentVolumeClaimList
	err := r.Client.List(ctx, &list, client.InNamespace(g.VMI.Namespace), client.MatchingFields{claimByState: g.VMI.Name})
	if err != nil {
		return fmt.Errorf("vmictrl: list the claims of the state of %s: %w", g.owner.Key, err)
	}
	for i := range list.Items {
		g.Storage.Claims[list.Items[i].Name] = &list.Items[i]
	}
	return nil
}

// dataVolumes reads those that fill the guest's claims.
func (r *Reconciler) dataVolumes(ctx context.Context, g *gathered) error {
	if !r.kinds.serves(dvKind) {
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

// classes reads all StorageClasses, of which there are few, for a guest with claims
// or with state to be kept.
func (r *Reconciler) classes(ctx context.Context, g *gathered) error {
	if len(g.Storage.Claims) == 0 && !vmi.KeepsState(g.VMI) {
		return nil
	}
	var list storagev1.StorageClassList
	if err := r.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("vmictrl: list the StorageClasses: %w", err)
	}
	g.Storage.Classes = map[string]*storagev1.StorageClass{}
	for i := range list.Items {
		g.Storage.Classes[list.Items[i].Name] = &list.Items[i]
	}
	return nil
}

// profiles reads all StorageProfiles for a guest whose state is to be kept.
func (r *Reconciler) profiles(ctx context.Context, g *gathered) error {
	if !waiting(g.VMI) || !vmi.KeepsState(g.VMI) || !r.kinds.serves(profileKind) {
		return nil
	}
	var list cdiv1.StorageProfileList
	if err := r.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("vmictrl: list the StorageProfiles: %w", err)
	}
	g.Storage.Profiles = map[string]*cdiv1.StorageProfile{}
	for i := range list.Items {
		g.Storage.Profiles[list.Items[i].Name] = &list.Items[i]
	}
	return nil
}

// overhead reads what file systems take of a claim, where there is exactly one CDI
// to say so.
func (r *Reconciler) overhead(ctx context.Context, g *gathered) error {
	if len(g.Storage.Claims) == 0 || !r.kinds.serves(cdiKind) || !r.kinds.serves(cdiConfigKind) {
		return nil
	}
	var list cdiv1.CDIList
	if err := r.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("vmictrl: list the CDI objects: %w", err)
	}
	if len(list.Items) != 1 {
		return nil
	}
	config := &cdiv1.CDIConfig{}
	err := r.Client.Get(ctx, types.NamespacedName{Name: cdiConfig}, config)
	switch {
	case apierrors.IsNotFound(err):
		// KubeVirt stores no status at all then; here the rest is not held up.
		ctrl.LoggerFrom(ctx).Info("CDI has no CDIConfig, so that the overhead of file systems is a guess", "name", cdiConfig)
	case err != nil:
		return fmt.Errorf("vmictrl: read CDIConfig %s: %w", cdiConfig, err)
	default:
		g.Storage.Overhead = config.Status.FilesystemOverhead
	}
	return nil
}
