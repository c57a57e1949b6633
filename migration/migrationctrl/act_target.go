// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/vmipatch"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/placement"
	"github.com/virtloom/virtloom/template/render"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;create

// createClaim creates the claim for the VMI's state at the target. Its name is derived from
// this migration, so an existing one is from an earlier attempt.
func (r actor) createClaim(ctx context.Context, g *gathered, a migration.Action) error {
	claim := a.Claim.DeepCopy()
	err := r.gate.For(g.owner).Create(ctx, claim)
	if vmipatch.QuotaExceeded(err) {
		return fmt.Errorf("%w: %w", placement.ErrQuota, err)
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		r.fault(g, migration.Event{Warning: true, OnVMI: true, Reason: migration.EventCreateFailed, Message: "creating the claim for the VMI's state at the migration target failed: " + err.Error()})
		return fmt.Errorf("migrationctrl: create PersistentVolumeClaim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Created claim for the state of the VMI", "persistentVolumeClaim", client.ObjectKeyFromObject(claim))
	return nil
}

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=patch

// changeClaim writes a claim's labels.
func (r actor) changeClaim(ctx context.Context, g *gathered, a migration.Action) error {
	was := g.Claims[a.Claim.Name]
	if was == nil {
		return nil
	}
	next := was.DeepCopy()
	next.Labels = a.Claim.Labels
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := r.gate.For(g.owner).Patch(ctx, next, patch); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("migrationctrl: label PersistentVolumeClaim %s/%s: %w", was.Namespace, was.Name, err)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Labeled claim", "persistentVolumeClaim", client.ObjectKeyFromObject(was), "why", a.Why)
	g.Claims[was.Name] = next
	return nil
}

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=delete

// deleteClaim deletes one incarnation of a claim.
func (r actor) deleteClaim(ctx context.Context, g *gathered, a migration.Action) error {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: a.Claim.Namespace, Name: a.Claim.Name, UID: a.Claim.UID}}
	err := r.gate.For(g.owner).Delete(ctx, claim)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("migrationctrl: delete PersistentVolumeClaim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Deleted claim", "persistentVolumeClaim", client.ObjectKeyFromObject(claim), "why", a.Why)
	delete(g.Claims, claim.Name)
	return nil
}

// Its owner is the target Pod.
//
// +kubebuilder:rbac:groups="",resources=pods,verbs=create
// +kubebuilder:rbac:groups="",resources=pods/finalizers,verbs=update

// createAttachment renders and creates the Pod that attaches hotplugged volumes at the target.
// Its name is derived from them and the target Pod.
func (r actor) createAttachment(ctx context.Context, g *gathered, a migration.Action) error {
	in, err := gatherer(r).input(ctx, g)
	if err != nil {
		return err
	}
	in.Hotplug = &render.Hotplug{Owner: g.TargetPod, Volumes: a.Volumes}
	pod, err := r.Renderer.HotplugAttachment(in)
	switch {
	case errors.Is(err, render.ErrMissingFact):
		return fmt.Errorf("migrationctrl: render the attachment Pod: %w", err)
	case err != nil:
		return fmt.Errorf("%w: %w", migration.ErrRender, err)
	}
	err = r.gate.For(g.owner).Create(ctx, pod)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		r.fault(g, migration.Event{Warning: true, OnVMI: true, Reason: migration.EventCreateFailed, Message: "creating the attachment Pod of the migration target failed: " + err.Error()})
		return fmt.Errorf("migrationctrl: create Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Created attachment Pod for the target", "pod", client.ObjectKeyFromObject(pod))
	if err == nil {
		g.Attachments = append(g.Attachments, pod)
	}
	return nil
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=patch

// annotatePod adds annotations to one incarnation of a Pod.
func (r actor) annotatePod(ctx context.Context, g *gathered, a migration.Action) error {
	was := g.TargetPod
	if was == nil || was.UID != a.Pod.UID {
		return nil
	}
	next := was.DeepCopy()
	for k, v := range a.Annotations {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, k, v)
	}
	// The UID in the patch protects a successor of the same name.
	bare := was.DeepCopy()
	bare.UID = ""
	if err := r.gate.For(g.owner).Patch(ctx, next, client.MergeFrom(bare)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("migrationctrl: annotate Pod %s/%s: %w", was.Namespace, was.Name, err)
	}
	g.TargetPod = next
	return nil
}
