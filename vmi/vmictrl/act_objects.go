// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi"
)

// A Pod names its owner, the guest or the Pod that something is plugged into, and blocks its deletion, which is a
// right of its own where OwnerReferencesPermissionEnforcement is on.
//
// +kubebuilder:rbac:groups="",resources=pods,verbs=create
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods/finalizers,verbs=update

// createPod renders and creates a Pod. Its name is derived from its purpose, so a
// repeated creation finds the Pod of the first instead of making another.
func (r *Reconciler) createPod(ctx context.Context, g *gathered, in template.Input, render func(template.Input) (*corev1.Pod, error)) error {
	pod, err := render(in)
	if err != nil {
		return err
	}
	switch err = r.Gate.For(g.owner).Create(ctx, pod); {
	case apierrors.IsAlreadyExists(err):
		return r.adopt(ctx, g, pod)
	case err != nil:
		return fmt.Errorf("create Pod %s/%s: %w%s", pod.Namespace, pod.Name, err, remedy(err))
	}
	ctrl.LoggerFrom(ctx).Info("Created a Pod of the guest", "pod", pod.Name)
	g.add(pod)
	r.event(g.VMI, corev1.EventTypeNormal, "SuccessfulCreate", "Create", "Created virtual machine pod "+pod.Name)
	return nil
}

// add puts a Pod into the snapshot, where it belongs.
func (g *gathered) add(pod *corev1.Pod) {
	if metav1.IsControlledBy(pod, g.VMI) {
		g.Pods = append(g.Pods, pod)
	} else {
		g.Attachments = append(g.Attachments, pod)
	}
}

// remedy is what to do about a refusal whose text does not say.
func remedy(err error) string {
	switch {
	case !apierrors.IsForbidden(err):
		return ""
	case strings.Contains(err.Error(), "violates PodSecurity"):
		return "; use a namespace with the label pod-security.kubernetes.io/enforce=privileged"
	case strings.Contains(err.Error(), "exceeded quota"):
		return "; raise the ResourceQuota or end other guests of the namespace"
	default:
		return ""
	}
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get

// adopt takes a Pod that was there already for the guest's if it is. It is then
// one that an earlier pass made whose caches or answer did not get here.
func (r *Reconciler) adopt(ctx context.Context, g *gathered, pod *corev1.Pod) error {
	live := &corev1.Pod{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(pod), live); err != nil {
		return fmt.Errorf("read Pod %s/%s, which exists: %w", pod.Namespace, pod.Name, err)
	}
	if is, want := metav1.GetControllerOf(live), metav1.GetControllerOf(pod); is == nil || want == nil || is.UID != want.UID {
		return fmt.Errorf("create Pod %s/%s: a Pod of that name exists and belongs to something else; delete it", pod.Namespace, pod.Name)
	}
	ctrl.LoggerFrom(ctx).Info("Found a Pod of the guest", "pod", live.Name)
	g.add(live)
	return nil
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=delete

// deletePod deletes one Pod. That it is gone, or that its name is another's by
// now, which the UID tells, is as good.
func (r *Reconciler) deletePod(ctx context.Context, g *gathered, a vmi.Action) error {
	var opts []client.DeleteOption
	if a.GraceSeconds != nil {
		opts = append(opts, client.GracePeriodSeconds(*a.GraceSeconds))
	}
	err := r.Gate.For(g.owner).Delete(ctx, a.Pod.DeepCopy(), opts...)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete Pod %s/%s: %w", a.Pod.Namespace, a.Pod.Name, err)
	}
	ctrl.LoggerFrom(ctx).Info("Deleted a Pod of the guest", "pod", a.Pod.Name, "why", a.Why)
	if a.Pod.DeletionTimestamp == nil {
		r.event(g.VMI, corev1.EventTypeNormal, "SuccessfulDelete", "Delete", "Deleted virtual machine pod "+a.Pod.Name)
	}
	return nil
}

// gone tells whether what was to be deleted, by its UID, is not there.
func gone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }

// +kubebuilder:rbac:groups="",resources=pods;pods/status,verbs=patch

// patchPod changes labels, annotations and the readiness gate of a Pod. Each is
// merged by its key, so nothing else is touched. With the gate they go in one write:
// the status of a Pod is written with its metadata. The write is noted: until the
// cache shows it, it would be repeated.
func (r *Reconciler) patchPod(ctx context.Context, g *gathered, a vmi.Action) error {
	patch := podPatch{Metadata: podMetadata{Labels: a.Labels, Annotations: a.Annotations}}
	if a.Unpaused != nil {
		patch.Status = &podStatus{Conditions: []podCondition{r.gateCondition(*a.Unpaused)}}
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("patch Pod %s/%s: %w", a.Pod.Namespace, a.Pod.Name, err)
	}
	pod, raw := a.Pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, body)
	if a.Unpaused == nil {
		err = r.Gate.For(g.owner).Patch(ctx, pod, raw)
	} else {
		err = r.Gate.For(g.owner).Status().Patch(ctx, pod, raw)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("patch Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// podPatch is a strategic merge patch of a Pod: a key whose value is null goes, a condition is merged into that of its type.
type podPatch struct {
	Metadata podMetadata `json:"metadata,omitzero"`
	Status   *podStatus  `json:"status,omitempty"`
}

type podMetadata struct {
	Labels      map[string]*string `json:"labels,omitempty"`
	Annotations map[string]*string `json:"annotations,omitempty"`
}

type podStatus struct {
	Conditions []podCondition `json:"conditions"`
}

// podCondition has all that a condition tells: what a patch leaves out would stay as somebody else wrote it.
type podCondition struct {
	Type               corev1.PodConditionType `json:"type"`
	Status             corev1.ConditionStatus  `json:"status"`
	Reason             string                  `json:"reason"`
	Message            string                  `json:"message"`
	LastTransitionTime metav1.Time             `json:"lastTransitionTime"`
}

// gateCondition is what the readiness gate of a guest's Pod says.
func (r *Reconciler) gateCondition(unpaused bool) podCondition {
	c := podCondition{
		Type: v1.VirtualMachineUnpaused, Status: corev1.ConditionFalse, Reason: "Paused",
		LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	}
	if unpaused {
		c.Status, c.Reason = corev1.ConditionTrue, "NotPaused"
	}
	return c
}

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;create

// createClaim creates the claim that keeps the guest's state. Its name is derived
// from whose state it is, as those of Pods are.
func (r *Reconciler) createClaim(ctx context.Context, g *gathered, a vmi.Action) error {
	claim := a.Claim.DeepCopy()
	switch err := r.Gate.For(g.owner).Create(ctx, claim); {
	case apierrors.IsAlreadyExists(err):
		if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(a.Claim), claim); err != nil {
			return fmt.Errorf("read PersistentVolumeClaim %s/%s, which exists: %w", claim.Namespace, claim.Name, err)
		}
	case err != nil:
		return fmt.Errorf("create PersistentVolumeClaim %s/%s: %w%s", claim.Namespace, claim.Name, err, remedy(err))
	default:
		ctrl.LoggerFrom(ctx).Info("Created the claim for the guest's state", "claim", claim.Name)
	}
	g.Storage.Claims[claim.Name] = claim
	return nil
}

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=delete

// deleteClaim deletes the claim of a guest that has no state to keep any more.
func (r *Reconciler) deleteClaim(ctx context.Context, g *gathered, a vmi.Action) error {
	if err := r.Gate.For(g.owner).Delete(ctx, a.Claim.DeepCopy()); err != nil && !gone(err) {
		return fmt.Errorf("delete PersistentVolumeClaim %s/%s: %w", a.Claim.Namespace, a.Claim.Name, err)
	}
	ctrl.LoggerFrom(ctx).Info("Deleted the claim for the guest's state", "claim", a.Claim.Name, "why", a.Why)
	delete(g.Storage.Claims, a.Claim.Name)
	return nil
}

var _ Renderer = (*template.Renderer)(nil)
