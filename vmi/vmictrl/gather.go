// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"fmt"
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
	owner   expectations.Owner
	verdict expectations.Verdict
	// outdated says that the cache does not show yet what this controller last
	// wrote to the object: whatever is decided upon it would be refused.
	outdated bool
	// due is when the silence of a node of the guest is to be looked at again.
	due time.Time
	// input is what the guest's Pod is rendered from; empty while none is to be
	// made.
	input template.Input
}

// gather reads everything one decision may see, from caches. It returns nil
// when there is nothing to decide.
func (r *Reconciler) gather(ctx context.Context, key types.NamespacedName) (*gathered, error) {
	obj := &v1.VirtualMachineInstance{}
	if err := r.Client.Get(ctx, key, obj); err != nil {
		if apierrors.IsNotFound(err) {
			r.gate.Forget(key)
			return nil, nil
		}
		return nil, fmt.Errorf("vmictrl: read VirtualMachineInstance %s: %w", key, err)
	}
	g := &gathered{owner: expectationsctrl.OwnerOf(obj)}
	g.VMI, g.Config = obj, r.Config
	if err := r.unseen(ctx, g); err != nil {
		return nil, err
	}
	if g.outdated {
		return g, nil
	}
	if err := r.related(ctx, g); err != nil {
		return nil, err
	}
	if err := r.facts(ctx, g); err != nil {
		return nil, fmt.Errorf("vmictrl: %s: %w", g.owner.Key, err)
	}
	return g, nil
}

// facts reads what the guest's Pod is rendered from, as long as there is one to be made.
func (r *Reconciler) facts(ctx context.Context, g *gathered) error {
	if !waiting(g.VMI) || len(g.Unseen) > 0 || g.Launcher() != nil {
		return nil
	}
	kv, err := r.gatherer.KubeVirt(ctx)
	if err != nil {
		return err
	}
	g.input = template.Input{VMI: g.VMI, Config: template.ConfigFrom(kv, r.LauncherImage)}
	g.input.Facts, err = r.gatherer.Facts(ctx, g.VMI, g.input.Config)
	g.Storage.Claims = g.input.Facts.Claims
	return err
}

// unseen asks whether the caches show this controller's own writes, and reads
// live what they should have shown by now.
func (r *Reconciler) unseen(ctx context.Context, g *gathered) error {
	var err error
	if g.verdict, err = r.gate.Check(ctx, g.owner); err != nil {
		return fmt.Errorf("vmictrl: %s: %w", g.owner.Key, err)
	}
	for _, p := range g.verdict.Pending {
		if p.Kind == vmiGroupKind && p.Needs != "" && p.Problem == expectations.NoProblem {
			g.outdated = true
		}
		g.Unseen = append(g.Unseen, p.String())
	}
	return nil
}

// related reads Pods and migrations by index.
func (r *Reconciler) related(ctx context.Context, g *gathered) error {
	ns := client.InNamespace(g.VMI.Namespace)
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, ns, client.MatchingFields{podByController: string(g.VMI.UID)}); err != nil {
		return fmt.Errorf("vmictrl: list the Pods of %s: %w", g.owner.Key, err)
	}
	g.Pods = vmi.OwnedPods(g.VMI, pods.Items)
	if g.NeedsProof() {
		if err := r.livePods(ctx, g); err != nil {
			return err
		}
	}

	if err := r.foreign(ctx, g); err != nil {
		return err
	}
	var migrations v1.VirtualMachineInstanceMigrationList
	if err := r.Client.List(ctx, &migrations, ns, client.MatchingFields{migrationByVMI: g.VMI.Name}); err != nil {
		return fmt.Errorf("vmictrl: list the migrations of %s: %w", g.owner.Key, err)
	}
	for i := range migrations.Items {
		if !migrations.Items[i].IsFinal() {
			g.Migrations = append(g.Migrations, &migrations.Items[i])
		}
	}
	return r.look(ctx, g)
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
		return nil
	case err != nil:
		return fmt.Errorf("vmictrl: read the Pod in the place of that of %s: %w", g.owner.Key, err)
	case !metav1.IsControlledBy(pod, g.VMI):
		g.Foreign = pod
	}
	return nil
}

// livePods reads the guest's Pods from the API server.
func (r *Reconciler) livePods(ctx context.Context, g *gathered) error {
	var pods corev1.PodList
	err := r.APIReader.List(ctx, &pods, client.InNamespace(g.VMI.Namespace), client.MatchingLabels{v1.CreatedByLabel: string(g.VMI.UID)})
	if err != nil {
		return fmt.Errorf("vmictrl: list the Pods of %s at the API server: %w", g.owner.Key, err)
	}
	g.Pods = vmi.OwnedPods(g.VMI, pods.Items)
	return nil
}
