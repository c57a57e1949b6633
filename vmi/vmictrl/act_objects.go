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

	"github.com/virtloom/virtloom/internal/vmipatch"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi"
)

// The owner reference of a Pod, to the VMI or to the launcher Pod, has blockOwnerDeletion, which requires a permission of
// its own where OwnerReferencesPermissionEnforcement is enabled.
//
// +kubebuilder:rbac:groups="",resources=pods,verbs=create
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods/finalizers,verbs=update

// createPod renders and creates a Pod. Its name is derived from its purpose, so a repeated
// creation finds the existing Pod instead of creating another.
func (r actor) createPod(ctx context.Context, g *gathered, in template.Input, render func(template.Input) (*corev1.Pod, error)) error {
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
	ctrl.LoggerFrom(ctx).V(1).Info("Created Pod", "pod", client.ObjectKeyFromObject(pod))
	g.add(pod)
	r.event(g.VMI, corev1.EventTypeNormal, "SuccessfulCreate", "Create", "Created virtual machine pod "+pod.Name)
	return nil
}

// add adds a Pod to the snapshot.
func (g *gathered) add(pod *corev1.Pod) {
	if metav1.IsControlledBy(pod, g.VMI) {
		g.Pods = append(g.Pods, pod)
	} else {
		g.Attachments = append(g.Attachments, pod)
	}
}

// remedy returns the remedy for a rejection whose text has none.
func remedy(err error) string {
	switch {
	case !apierrors.IsForbidden(err):
		return ""
	case strings.Contains(err.Error(), "violates PodSecurity"):
		return "; use a namespace with the label pod-security.kubernetes.io/enforce=privileged"
	case vmipatch.QuotaExceeded(err):
		return "; raise the ResourceQuota or stop other VirtualMachineInstances of the namespace"
	default:
		return ""
	}
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get

// adopt accepts an existing Pod if the VMI, or its Pod, controls it. An earlier pass then
// created it, and its answer or event has not arrived.
func (r actor) adopt(ctx context.Context, g *gathered, pod *corev1.Pod) error {
	live := &corev1.Pod{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(pod), live); err != nil {
		return fmt.Errorf("read Pod %s/%s, which exists: %w", pod.Namespace, pod.Name, err)
	}
	if is, want := metav1.GetControllerOf(live), metav1.GetControllerOf(pod); is == nil || want == nil || is.UID != want.UID {
		return fmt.Errorf("create Pod %s/%s: a Pod of that name exists and has a different owner; delete it", pod.Namespace, pod.Name)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Adopted existing Pod", "pod", client.ObjectKeyFromObject(live))
	g.add(live)
	return nil
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=delete

// deletePod deletes one Pod. If it no longer exists, or its name belongs to another Pod with a
// different UID, that is a success.
func (r actor) deletePod(ctx context.Context, g *gathered, a vmi.Action) error {
	var opts []client.DeleteOption
	if a.GraceSeconds != nil {
		opts = append(opts, client.GracePeriodSeconds(*a.GraceSeconds))
	}
	err := r.Gate.For(g.owner).Delete(ctx, a.Pod.DeepCopy(), opts...)
	if objectGone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete Pod %s/%s: %w", a.Pod.Namespace, a.Pod.Name, err)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Deleted Pod", "pod", client.ObjectKeyFromObject(a.Pod), "why", a.Why)
	if a.Pod.DeletionTimestamp == nil {
		r.event(g.VMI, corev1.EventTypeNormal, "SuccessfulDelete", "Delete", "Deleted virtual machine pod "+a.Pod.Name)
	}
	return nil
}

// objectGone reports whether the object to delete, by its UID, does not exist.
func objectGone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }

// +kubebuilder:rbac:groups="",resources=pods;pods/status,verbs=patch

// patchPod changes labels, annotations and the readiness gate of a Pod. Each is merged by its
// key, so nothing else is modified. With the gate they are one write: the status of a Pod is
// written with its metadata. The write is an expectation: until the cache observes it, it
// would be repeated.
func (r actor) patchPod(ctx context.Context, g *gathered, a vmi.Action) error {
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

// podPatch is a strategic merge patch of a Pod: a null value removes the key, a condition is merged by its type.
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

// podCondition has all fields of a condition: a field that the patch omits would keep the value of another writer.
type podCondition struct {
	Type               corev1.PodConditionType `json:"type"`
	Status             corev1.ConditionStatus  `json:"status"`
	Reason             string                  `json:"reason"`
	Message            string                  `json:"message"`
	LastTransitionTime metav1.Time             `json:"lastTransitionTime"`
}

// gateCondition returns the readiness gate condition of a launcher Pod.
func (r actor) gateCondition(unpaused bool) podCondition {
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

// createClaim creates the backend storage claim. Like those of Pods, its name is derived from
// its purpose.
func (r actor) createClaim(ctx context.Context, g *gathered, a vmi.Action) error {
	claim := a.Claim.DeepCopy()
	switch err := r.Gate.For(g.owner).Create(ctx, claim); {
	case apierrors.IsAlreadyExists(err):
		if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(a.Claim), claim); err != nil {
			return fmt.Errorf("read PersistentVolumeClaim %s/%s, which exists: %w", claim.Namespace, claim.Name, err)
		}
	case err != nil:
		return fmt.Errorf("create PersistentVolumeClaim %s/%s: %w%s", claim.Namespace, claim.Name, err, remedy(err))
	default:
		ctrl.LoggerFrom(ctx).V(1).Info("Created backend storage claim", "persistentVolumeClaim", client.ObjectKeyFromObject(claim))
	}
	g.Storage.Claims[claim.Name] = claim
	return nil
}

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=delete

// deleteClaim deletes the backend storage claim of a VMI without persistent state.
func (r actor) deleteClaim(ctx context.Context, g *gathered, a vmi.Action) error {
	if err := r.Gate.For(g.owner).Delete(ctx, a.Claim.DeepCopy()); err != nil && !objectGone(err) {
		return fmt.Errorf("delete PersistentVolumeClaim %s/%s: %w", a.Claim.Namespace, a.Claim.Name, err)
	}
	ctrl.LoggerFrom(ctx).V(1).Info("Deleted backend storage claim", "persistentVolumeClaim", client.ObjectKeyFromObject(a.Claim), "why", a.Why)
	delete(g.Storage.Claims, a.Claim.Name)
	return nil
}

var _ Renderer = (*template.Renderer)(nil)
