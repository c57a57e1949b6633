// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi"
)

// gathered is a snapshot and what acting on it needs beside.
type gathered struct {
	vmi.Snapshot
	// stored is the object that is stored, where the snapshot's has a status that was postponed.
	stored  *v1.VirtualMachineInstance
	owner   expectations.Owner
	verdict expectations.Verdict
	// outdated says that the cache does not show yet what this controller last
	// wrote to the object: whatever is decided upon it would be refused.
	outdated bool
	// dry says that nothing may be changed, nor anybody asked to.
	dry bool
	// due is when to look again at what no event tells: the silence of a node of the
	// guest, or that an address has become free.
	due time.Time
	// input is what the guest's Pods are rendered from, and config the cluster's part
	// of it.
	input template.Input
}

// lookAt asks for another look at the time, or before.
func (g *gathered) lookAt(at time.Time) {
	if g.due.IsZero() || at.Before(g.due) {
		g.due = at
	}
}

// read reads the guest from the cache; nil if there is none.
func (r *Reconciler) read(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	obj := &v1.VirtualMachineInstance{}
	switch err := r.Client.Get(ctx, key, obj); {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // absence is an answer
	case err != nil:
		return nil, fmt.Errorf("vmictrl: read VirtualMachineInstance %s: %w", key, err)
	}
	return obj, nil
}

// gather reads everything else that one decision about the guest may see, from caches. It
// returns nil when there is nothing to decide. A dry one leaves no trace.
func (r *Reconciler) gather(ctx context.Context, key types.NamespacedName, obj *v1.VirtualMachineInstance, dry bool) (*gathered, error) {
	if obj == nil || !r.Scope.Has(obj) {
		if !dry {
			r.forget(key, obj == nil)
		}
		return nil, nil
	}
	g := &gathered{owner: expectationsctrl.OwnerOf(obj), dry: dry}
	g.VMI = obj
	for _, read := range []func(context.Context, *gathered) error{
		r.unseen, r.config, r.pods, r.foreign, r.migrations, r.machine, r.storage, r.look, r.clocks, r.address, r.facts, r.annotations,
	} {
		if err := read(ctx, g); err != nil {
			return nil, err
		}
		if g.outdated {
			break
		}
	}
	return g, nil
}

// forget drops what is kept of a guest that is gone, or only out of scope.
func (r *Reconciler) forget(key types.NamespacedName, gone bool) {
	r.Gate.Forget(key)
	r.told.Over(key)
	r.backlog.Done(key)
	r.Metrics.forget(key)
	if gone {
		r.CIDs.Release(key)
	}
}

// unseen asks whether the caches show this controller's own writes, and reads
// live what they should have shown by now.
func (r *Reconciler) unseen(ctx context.Context, g *gathered) error {
	if r.observes && r.Gate == nil {
		return nil
	}
	var err error
	if g.verdict, err = r.Gate.Check(ctx, g.owner); err != nil {
		return fmt.Errorf("vmictrl: %s: %w", g.owner.Key, err)
	}
	for _, p := range g.verdict.Pending {
		if p.Kind == vmiGroupKind && p.Needs != "" && p.Problem == expectations.NoProblem {
			g.outdated = true
		}
		g.Unseen = append(g.Unseen, p.String())
	}
	for _, l := range r.Gate.Late(g.owner) {
		g.Late = append(g.Late, l.String())
		g.lookAt(l.Until)
	}
	return r.again(ctx, g)
}

// again reads the object once more: that the caches show what was written was asked after
// it had been read, and it may be of before.
func (r *Reconciler) again(ctx context.Context, g *gathered) error {
	obj := &v1.VirtualMachineInstance{}
	switch err := r.Client.Get(ctx, g.owner.Key, obj); {
	case apierrors.IsNotFound(err), err == nil && obj.UID != g.VMI.UID:
		g.outdated = true // an event of that is on its way
	case err != nil:
		return fmt.Errorf("vmictrl: read VirtualMachineInstance %s: %w", g.owner.Key, err)
	default:
		g.VMI = obj
	}
	return nil
}

// config reads the cluster's configuration.
func (r *Reconciler) config(ctx context.Context, g *gathered) error {
	kv, err := r.gatherer.KubeVirt(ctx)
	if err != nil {
		return err
	}
	g.Config = r.Config.With(kv)
	g.input = template.Input{VMI: g.VMI, Config: template.ConfigFrom(kv, r.LauncherImage)}
	g.input.Config.SidecarShimImage = cmp.Or(r.SidecarShimImage, g.input.Config.SidecarShimImage)
	return nil
}

// pods reads the guest's Pods, and the Pods of those, by index.
func (r *Reconciler) pods(ctx context.Context, g *gathered) error {
	pods, err := r.controlled(ctx, g, g.VMI)
	if err != nil {
		return err
	}
	g.Pods = vmi.OwnedPods(g.VMI, pods)
	if g.NeedsProof() {
		if err := r.livePods(ctx, g); err != nil {
			return err
		}
	}
	for _, p := range g.Pods {
		pods, err := r.controlled(ctx, g, p)
		if err != nil {
			return err
		}
		for i := range pods {
			if metav1.IsControlledBy(&pods[i], p) {
				g.Attachments = append(g.Attachments, &pods[i])
			}
		}
	}
	return nil
}

// controlled lists the Pods that an object controls.
func (r *Reconciler) controlled(ctx context.Context, g *gathered, by client.Object) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := r.Client.List(ctx, &pods, client.InNamespace(g.VMI.Namespace), client.MatchingFields{podByController: string(by.GetUID())})
	if err != nil {
		return nil, fmt.Errorf("vmictrl: list the Pods of %s: %w", g.owner.Key, err)
	}
	return pods.Items, nil
}

// livePods reads the guest's Pods from the API server.
func (r *Reconciler) livePods(ctx context.Context, g *gathered) (err error) {
	g.Pods, err = r.controlledLive(ctx, g)
	return err
}

// livePage bounds how much of a namespace is read at once.
const livePage = 500

// controlledLive reads the Pods that the guest controls from the API server. It selects by
// the controller's UID alone, of the metadata of all Pods: labels are for users to change,
// and a Pod that runs must not seem to be gone because of that.
func (r *Reconciler) controlledLive(ctx context.Context, g *gathered) ([]*corev1.Pod, error) {
	var owned []*corev1.Pod
	all := &metav1.PartialObjectMetadataList{}
	all.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	for {
		err := r.APIReader.List(ctx, all, client.InNamespace(g.VMI.Namespace), client.Limit(livePage), client.Continue(all.Continue))
		if err != nil {
			return nil, fmt.Errorf("vmictrl: list the Pods of %s at the API server: %w", g.owner.Key, err)
		}
		for i := range all.Items {
			if !metav1.IsControlledBy(&all.Items[i], g.VMI) {
				continue
			}
			pod := &corev1.Pod{}
			switch err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(&all.Items[i]), pod); {
			case apierrors.IsNotFound(err): // it has gone since
			case err != nil:
				return nil, fmt.Errorf("vmictrl: read Pod %s/%s at the API server: %w", all.Items[i].Namespace, all.Items[i].Name, err)
			case metav1.IsControlledBy(pod, g.VMI):
				owned = append(owned, pod)
			}
		}
		if all.Continue == "" {
			return owned, nil
		}
	}
}

// foreign looks whether another Pod has the name of the one a guest waits for.
func (r *Reconciler) foreign(ctx context.Context, g *gathered) error {
	if len(g.Pods) > 0 || !waiting(g.VMI) {
		return nil
	}
	pod := &corev1.Pod{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: g.VMI.Namespace, Name: template.LauncherName(g.VMI)}, pod)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("vmictrl: read the Pod in the place of that of %s: %w", g.owner.Key, err)
	case !metav1.IsControlledBy(pod, g.VMI):
		g.Foreign = pod
	}
	return r.earlier(ctx, g)
}

// earlier reads the Pods of earlier objects of the guest's name.
func (r *Reconciler) earlier(ctx context.Context, g *gathered) error {
	var pods corev1.PodList
	err := r.Client.List(ctx, &pods, client.InNamespace(g.VMI.Namespace), client.MatchingFields{podByGuestName: g.VMI.Name})
	if err != nil {
		return fmt.Errorf("vmictrl: list the Pods of earlier objects of %s: %w", g.owner.Key, err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; !metav1.IsControlledBy(p, g.VMI) && !vmi.PodDown(p) {
			g.Earlier = append(g.Earlier, p)
		}
	}
	return nil
}

// migrations reads those of the guest that have not ended, by index.
func (r *Reconciler) migrations(ctx context.Context, g *gathered) error {
	var migrations v1.VirtualMachineInstanceMigrationList
	err := r.Client.List(ctx, &migrations, client.InNamespace(g.VMI.Namespace), client.MatchingFields{migrationByVMI: g.VMI.Name})
	if err != nil {
		return fmt.Errorf("vmictrl: list the migrations of %s: %w", g.owner.Key, err)
	}
	for i := range migrations.Items {
		if !migrations.Items[i].IsFinal() {
			g.Migrations = append(g.Migrations, &migrations.Items[i])
		}
	}
	return nil
}

// machine looks whether the VirtualMachine exists that keeps the object.
func (r *Reconciler) machine(ctx context.Context, g *gathered) error {
	if !slices.Contains(g.VMI.Finalizers, v1.VirtualMachineControllerFinalizer) {
		return nil
	}
	if err := r.kinds.know(ctx); err != nil {
		return err
	}
	c := metav1.GetControllerOf(g.VMI)
	if c == nil || c.Kind != vmKind.Kind || !r.kinds.serves(vmKind) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	vm := &metav1.PartialObjectMetadata{}
	vm.SetGroupVersionKind(vmKind)
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: g.VMI.Namespace, Name: c.Name}, vm)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("vmictrl: read the VirtualMachine of %s: %w", g.owner.Key, err)
	}
	g.VMExists = err == nil && vm.UID == c.UID
	return nil
}

// clocks reads the nodes for a guest that depends on what they have in common.
func (r *Reconciler) clocks(ctx context.Context, g *gathered) error {
	if !timed(g.VMI) {
		return nil
	}
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := r.Client.List(ctx, nodes); err != nil {
		return fmt.Errorf("vmictrl: list the Nodes: %w", err)
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		schedulable := n.Labels[v1.NodeSchedulable] == "true"
		g.Nodes = append(g.Nodes, vmi.Node{
			Name: n.Name, Labels: n.Labels, Schedulable: schedulable,
			RunsGuests: !schedulable && len(r.onNode(ctx, n.Name)) > 0, // asked only where it counts
		})
	}
	return nil
}

// address reserves an address on VSOCK for a guest that is to have one and is about
// to be handed over.
func (r *Reconciler) address(ctx context.Context, g *gathered) error {
	// What an observer reserves is known to nobody else.
	if g.dry && !r.observes || !wantsAddress(g.VMI) {
		return nil
	}
	err := r.cids.do(func() error {
		var all v1.VirtualMachineInstanceList
		if err := r.Client.List(ctx, &all); err != nil {
			return fmt.Errorf("vmictrl: list the guests with an address on VSOCK: %w", err)
		}
		r.CIDs.Sync(all.Items)
		return nil
	})
	if err != nil {
		return err
	}
	cid, err := r.CIDs.Allocate(g.owner.Key)
	switch {
	case errors.Is(err, vmi.ErrNoCID):
		g.lookAt(r.Clock.Now().Add(lastRetry)) // nobody tells that one has become free
	case err != nil:
		return fmt.Errorf("vmictrl: address of %s on VSOCK: %w", g.owner.Key, err)
	default:
		g.CID = &cid
	}
	return nil
}

// facts reads what a Pod of the guest is rendered from, as long as there may be one
// to be made.
func (r *Reconciler) facts(ctx context.Context, g *gathered) error {
	if len(g.Unseen) > 0 || !(waiting(g.VMI) && g.Launcher() == nil) && !pluggable(g) {
		return nil
	}
	var err error
	if g.input.Facts, err = r.gatherer.Facts(ctx, g.VMI, g.input.Config); err != nil {
		return fmt.Errorf("vmictrl: %s: %w", g.owner.Key, err)
	}
	return nil
}

// pluggable tells whether something may have to be plugged into the guest.
func pluggable(g *gathered) bool {
	p := g.VMI.Status.Phase
	if p != v1.Scheduling && p != v1.Scheduled && p != v1.Running || g.VMI.DeletionTimestamp != nil {
		return false
	}
	return len(g.Attachments) > 0 || len(g.VMI.Spec.UtilityVolumes) > 0 || slices.ContainsFunc(g.VMI.Spec.Volumes, func(v v1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.DataVolume != nil || v.MemoryDump != nil
	})
}

// annotations asks the generators what the guest's Pod shall carry.
func (r *Reconciler) annotations(_ context.Context, g *gathered) error {
	pod := g.Launcher()
	if pod == nil || waiting(g.VMI) || g.VMI.IsFinal() {
		return nil
	}
	// What cannot be generated stays as it is: the Pod is there already.
	if network, err := r.NetworkAnnotations.Annotations(g.input, pod); err == nil {
		g.Annotations.Network = network
	}
	if storage, err := r.StorageAnnotations.Annotations(g.input); err == nil {
		g.Annotations.Storage, g.Annotations.StorageKeys = storage, r.StorageKeys
	}
	return nil
}
