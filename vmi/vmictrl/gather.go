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

// gathered is a snapshot with the additional state for executing a plan.
type gathered struct {
	vmi.Snapshot
	// stored is the observed object, if the snapshot has a later phase of it; see skipScheduling.
	stored  *v1.VirtualMachineInstance
	owner   expectations.Owner
	verdict expectations.Verdict
	// outdated is true if the cache does not show this controller's last write of the
	// object: a decision would be rejected.
	outdated bool
	// dry is true if nothing may be written or requested.
	dry bool
	// due is when to check what has no event: whether a node of the VMI is unresponsive,
	// or a VSOCK CID is available.
	due time.Time
	// input is the template input of the VMI's Pods, including the cluster's
	// configuration.
	input template.Input
	// claims are those that the VMI names, or that are labelled as its state.
	claims map[string]*corev1.PersistentVolumeClaim
}

// gatherer reads the snapshot of a VMI.
type gatherer struct{ *Reconciler }

// lookAt requests another pass at the time, or earlier.
func (g *gathered) lookAt(at time.Time) {
	if g.due.IsZero() || at.Before(g.due) {
		g.due = at
	}
}

// read reads the VMI from the cache; nil if it does not exist.
func (r gatherer) read(ctx context.Context, key types.NamespacedName) (*v1.VirtualMachineInstance, error) {
	obj := &v1.VirtualMachineInstance{}
	switch err := r.Client.Get(ctx, key, obj); {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // absence is an answer
	case err != nil:
		return nil, fmt.Errorf("vmictrl: read VirtualMachineInstance %s: %w", key, err)
	}
	return obj, nil
}

// gather reads the remaining input of a decision from caches. It returns nil when there is
// nothing to decide. A dry run has no side effects.
func (r gatherer) gather(ctx context.Context, key types.NamespacedName, obj *v1.VirtualMachineInstance, dry bool) (*gathered, error) {
	if obj == nil || !r.Scope.Has(obj) {
		if !dry {
			r.forget(key, obj == nil)
		}
		return nil, nil
	}
	g := &gathered{owner: expectationsctrl.OwnerOf(obj), dry: dry}
	g.VMI = obj
	for _, read := range []func(context.Context, *gathered) error{
		r.pending, r.config, r.pods, r.foreign, r.migrations, r.machine, r.storage, nodeGatherer(r).look, r.clocks,
		r.skipScheduling, r.address, r.facts, r.annotations,
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

// forget drops the state of a VMI that was deleted or left the scope.
func (r gatherer) forget(key types.NamespacedName, gone bool) {
	r.Gate.Forget(key)
	r.reported.Over(key)
	r.backlog.Done(key)
	r.Metrics.forget(key)
	if gone {
		r.CIDs.Release(key)
	}
}

// pending checks whether the caches show this controller's own writes, and reads overdue ones
// live.
func (r gatherer) pending(ctx context.Context, g *gathered) error {
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
		g.Pending = append(g.Pending, p.String())
	}
	for _, l := range r.Gate.Late(g.owner) {
		g.Late = append(g.Late, l.String())
		g.lookAt(l.Until)
	}
	return r.again(ctx, g)
}

// again reads the object once more: the caches were checked after the first read, which may
// predate the observed writes.
func (r gatherer) again(ctx context.Context, g *gathered) error {
	obj := &v1.VirtualMachineInstance{}
	switch err := r.Client.Get(ctx, g.owner.Key, obj); {
	case apierrors.IsNotFound(err), err == nil && obj.UID != g.VMI.UID:
		g.outdated = true // its event follows
	case err != nil:
		return fmt.Errorf("vmictrl: read VirtualMachineInstance %s: %w", g.owner.Key, err)
	default:
		g.VMI = obj
	}
	return nil
}

// config reads the configuration of the cluster.
func (r gatherer) config(ctx context.Context, g *gathered) error {
	kv, err := r.gatherer.KubeVirt(ctx)
	if err != nil {
		return err
	}
	g.Config = r.Config.With(kv)
	g.input = template.Input{VMI: g.VMI, Config: template.ConfigFrom(kv, r.LauncherImage)}
	g.input.Config.SidecarShimImage = cmp.Or(r.SidecarShimImage, g.input.Config.SidecarShimImage)
	return nil
}

// pods reads the VMI's Pods, and the Pods that those control, by index.
func (r gatherer) pods(ctx context.Context, g *gathered) error {
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
func (r gatherer) controlled(ctx context.Context, g *gathered, by client.Object) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := r.Client.List(ctx, &pods, client.InNamespace(g.VMI.Namespace), client.MatchingFields{podByController: string(by.GetUID())})
	if err != nil {
		return nil, fmt.Errorf("vmictrl: list Pods of %s: %w", g.owner.Key, err)
	}
	return pods.Items, nil
}

// livePods reads the VMI's Pods from the API server.
func (r gatherer) livePods(ctx context.Context, g *gathered) (err error) {
	g.Pods, err = r.controlledLive(ctx, g)
	return err
}

// livePage is the page size of a live list.
const livePage = 500

// controlledLive reads the Pods controlled by the VMI from the API server. It selects by the
// controller's UID alone, from the metadata of all Pods of the namespace: users can change
// labels, and a running Pod must not seem to be gone because of that.
func (r gatherer) controlledLive(ctx context.Context, g *gathered) ([]*corev1.Pod, error) {
	var owned []*corev1.Pod
	all := &metav1.PartialObjectMetadataList{}
	all.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	for {
		err := r.APIReader.List(ctx, all, client.InNamespace(g.VMI.Namespace), client.Limit(livePage), client.Continue(all.Continue))
		if err != nil {
			return nil, fmt.Errorf("vmictrl: list Pods of %s from the API server: %w", g.owner.Key, err)
		}
		for i := range all.Items {
			if !metav1.IsControlledBy(&all.Items[i], g.VMI) {
				continue
			}
			pod := &corev1.Pod{}
			switch err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(&all.Items[i]), pod); {
			case apierrors.IsNotFound(err): // deleted since the list
			case err != nil:
				return nil, fmt.Errorf("vmictrl: read Pod %s/%s from the API server: %w", all.Items[i].Namespace, all.Items[i].Name, err)
			case metav1.IsControlledBy(pod, g.VMI):
				owned = append(owned, pod)
			}
		}
		if all.Continue == "" {
			return owned, nil
		}
	}
}

// foreign reads another Pod with the name of the launcher Pod.
func (r gatherer) foreign(ctx context.Context, g *gathered) error {
	if len(g.Pods) > 0 || !waiting(g.VMI) {
		return nil
	}
	pod := &corev1.Pod{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: g.VMI.Namespace, Name: template.LauncherName(g.VMI)}, pod)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("vmictrl: read Pod with the launcher Pod name of %s: %w", g.owner.Key, err)
	case !metav1.IsControlledBy(pod, g.VMI):
		g.Foreign = pod
	}
	return r.earlier(ctx, g)
}

// earlier reads the Pods of deleted objects with the VMI's name.
func (r gatherer) earlier(ctx context.Context, g *gathered) error {
	var pods corev1.PodList
	err := r.Client.List(ctx, &pods, client.InNamespace(g.VMI.Namespace), client.MatchingFields{podByVMIName: g.VMI.Name})
	if err != nil {
		return fmt.Errorf("vmictrl: list Pods of earlier objects of %s: %w", g.owner.Key, err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; !metav1.IsControlledBy(p, g.VMI) && !vmi.PodDown(p) {
			g.Earlier = append(g.Earlier, p)
		}
	}
	return nil
}

// migrations reads the unfinished migrations of the VMI, by index.
func (r gatherer) migrations(ctx context.Context, g *gathered) error {
	var migrations v1.VirtualMachineInstanceMigrationList
	err := r.Client.List(ctx, &migrations, client.InNamespace(g.VMI.Namespace), client.MatchingFields{migrationByVMI: g.VMI.Name})
	if err != nil {
		return fmt.Errorf("vmictrl: list migrations of %s: %w", g.owner.Key, err)
	}
	for i := range migrations.Items {
		if !migrations.Items[i].IsFinal() {
			g.Migrations = append(g.Migrations, &migrations.Items[i])
		}
	}
	return nil
}

// machine reads whether the VirtualMachine that controls the object exists.
func (r gatherer) machine(ctx context.Context, g *gathered) error {
	if !slices.Contains(g.VMI.Finalizers, v1.VirtualMachineControllerFinalizer) {
		return nil
	}
	if err := r.kinds.Know(ctx); err != nil {
		return err
	}
	c := metav1.GetControllerOf(g.VMI)
	if c == nil || c.Kind != vmKind.Kind || !r.kinds.Serves(vmKind) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	vm := &metav1.PartialObjectMetadata{}
	vm.SetGroupVersionKind(vmKind)
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: g.VMI.Namespace, Name: c.Name}, vm)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("vmictrl: read VirtualMachine of %s: %w", g.owner.Key, err)
	}
	g.VMExists = err == nil && vm.UID == c.UID
	return nil
}

// clocks reads the nodes for a VMI that requires a TSC frequency.
func (r gatherer) clocks(ctx context.Context, g *gathered) error {
	if !timed(g.VMI) {
		return nil
	}
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := r.Client.List(ctx, nodes); err != nil {
		return fmt.Errorf("vmictrl: list Nodes: %w", err)
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		schedulable := n.Labels[v1.NodeSchedulable] == "true"
		g.Nodes = append(g.Nodes, vmi.Node{
			Name: n.Name, Labels: n.Labels, Schedulable: schedulable,
			RunsVMIs: !schedulable && len(nodeGatherer(r).onNode(ctx, n.Name)) > 0, // computed only where it matters
		})
	}
	return nil
}

// address reserves a VSOCK CID for a VMI that requests one and is about to be handed off.
func (r gatherer) address(ctx context.Context, g *gathered) error {
	// A reservation by an observer would be unknown to the controller.
	if g.dry && !r.observes || !wantsAddress(g.VMI) {
		return nil
	}
	err := r.cids.do(func() error {
		var all v1.VirtualMachineInstanceList
		if err := r.Client.List(ctx, &all); err != nil {
			return fmt.Errorf("vmictrl: list VirtualMachineInstances with a VSOCK CID: %w", err)
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
		g.lookAt(r.Clock.Now().Add(lastRetry)) // a released CID has no event
	case err != nil:
		return fmt.Errorf("vmictrl: VSOCK CID of %s: %w", g.owner.Key, err)
	default:
		g.CID = &cid
	}
	return nil
}

// facts reads the template facts of the VMI, as long as a Pod may have to be created.
func (r gatherer) facts(ctx context.Context, g *gathered) error {
	if len(g.Pending) > 0 || !(waiting(g.VMI) && g.Launcher() == nil) && !pluggable(g) {
		return nil
	}
	var err error
	if g.input.Facts, err = r.gatherer.Facts(ctx, g.VMI, g.input.Config, g.claims); err != nil {
		return fmt.Errorf("vmictrl: %s: %w", g.owner.Key, err)
	}
	return nil
}

// pluggable reports whether volumes may have to be hotplugged.
func pluggable(g *gathered) bool {
	p := g.VMI.Status.Phase
	if p != v1.Scheduling && p != v1.Scheduled && p != v1.Running || g.VMI.DeletionTimestamp != nil {
		return false
	}
	return len(g.Attachments) > 0 || len(g.VMI.Spec.UtilityVolumes) > 0 || slices.ContainsFunc(g.VMI.Spec.Volumes, func(v v1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.DataVolume != nil || v.MemoryDump != nil
	})
}

// annotations calls the generators of Pod annotations.
func (r gatherer) annotations(_ context.Context, g *gathered) error {
	pod := g.Launcher()
	if pod == nil || waiting(g.VMI) || g.VMI.IsFinal() {
		return nil
	}
	// On error the annotations stay unchanged: the Pod already exists.
	if network, err := r.NetworkAnnotations.Annotations(g.input, pod); err == nil {
		g.Annotations.Network = network
	}
	if storage, err := r.StorageAnnotations.Annotations(g.input); err == nil {
		g.Annotations.Storage, g.Annotations.StorageKeys = storage, r.StorageKeys
	}
	return nil
}
