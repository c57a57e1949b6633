// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/vmi"
)

// conflictRetry is how soon a lost write is tried again.
const conflictRetry = 50 * time.Millisecond

// act carries out the actions in order and folds what came of them into the
// snapshot. It stops at the first that fails.
func (r *Reconciler) act(ctx context.Context, g *gathered, plan vmi.Plan) error {
	for _, a := range plan.Actions {
		if err := r.do(ctx, g, a); err != nil {
			g.Failure = failure(a, err)
			if p := g.VMI.Status.Phase; p == v1.Scheduled || p == v1.Running {
				// The condition is the node agent's then.
				r.event(g.VMI, corev1.EventTypeWarning, g.Failure.Reason, "Reconcile", g.Failure.Message)
			}
			return err
		}
	}
	return nil
}

func (r *Reconciler) do(ctx context.Context, g *gathered, a vmi.Action) (err error) {
	ctx, span := tracer.Start(ctx, "vmi."+string(a.Verb))
	span.SetAttributes(attribute.String("why", a.Why))
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}()
	switch a.Verb {
	case vmi.CreateLauncher:
		return r.createLauncher(ctx, g)
	case vmi.DeletePod:
		return r.deletePod(ctx, g, a)
	case vmi.SetUnpaused:
		return r.setUnpaused(ctx, g, a)
	default:
		return fmt.Errorf("vmictrl: unknown action %q", a.Verb)
	}
}

// createLauncher creates the guest's Pod. Its name is derived from the guest,
// so a repeated creation finds the Pod of the first instead of making another.
func (r *Reconciler) createLauncher(ctx context.Context, g *gathered) error {
	pod, err := r.Renderer.Launcher(g.input)
	if err != nil {
		return err
	}
	switch err = r.gate.For(g.owner).Create(ctx, pod); {
	case apierrors.IsAlreadyExists(err):
		return r.adopt(ctx, g, pod)
	case err != nil:
		return fmt.Errorf("create Pod %s/%s: %w%s", pod.Namespace, pod.Name, err, remedy(err))
	}
	ctrl.LoggerFrom(ctx).Info("Created the guest's Pod", "pod", pod.Name)
	g.Pods = append(g.Pods, pod)
	r.event(g.VMI, corev1.EventTypeNormal, "SuccessfulCreate", "Create", "Created virtual machine pod "+pod.Name)
	return nil
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

// adopt takes a Pod that was there already for the guest's if it is. It is then
// one that an earlier pass made whose caches or answer did not get here.
func (r *Reconciler) adopt(ctx context.Context, g *gathered, pod *corev1.Pod) error {
	live := &corev1.Pod{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(pod), live); err != nil {
		return fmt.Errorf("read Pod %s/%s, which exists: %w", pod.Namespace, pod.Name, err)
	}
	if !metav1.IsControlledBy(live, g.VMI) {
		return fmt.Errorf("create Pod %s/%s: a Pod of that name exists and belongs to something else; delete it", pod.Namespace, pod.Name)
	}
	ctrl.LoggerFrom(ctx).Info("Found the guest's Pod", "pod", live.Name)
	g.Pods = append(g.Pods, live)
	return nil
}

// deletePod deletes one Pod. That it is gone, or that its name is another's by
// now, which the UID tells, is as good.
func (r *Reconciler) deletePod(ctx context.Context, g *gathered, a vmi.Action) error {
	var opts []client.DeleteOption
	if a.GraceSeconds != nil {
		opts = append(opts, client.GracePeriodSeconds(*a.GraceSeconds))
	}
	err := r.gate.For(g.owner).Delete(ctx, a.Pod.DeepCopy(), opts...)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
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

// setUnpaused writes the readiness gate of the guest's Pod. The list of
// conditions merges by type, so no other condition is touched. The write is noted:
// until the cache shows it, it would be repeated.
func (r *Reconciler) setUnpaused(ctx context.Context, g *gathered, a vmi.Action) error {
	pod := a.Pod.DeepCopy()
	c := corev1.PodCondition{
		Type: v1.VirtualMachineUnpaused, Status: corev1.ConditionFalse, Reason: "Paused",
		LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	}
	if a.Unpaused {
		c.Status, c.Reason = corev1.ConditionTrue, "NotPaused"
	}
	pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(have corev1.PodCondition) bool { return have.Type == c.Type })
	pod.Status.Conditions = append(pod.Status.Conditions, c)
	if err := client.IgnoreNotFound(r.gate.For(g.owner).Status().Patch(ctx, pod, client.StrategicMergeFrom(a.Pod))); err != nil {
		return fmt.Errorf("patch the readiness gate of Pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// failure says what a failed action means to the guest.
func failure(a vmi.Action, err error) *vmi.Failure {
	reason := map[vmi.Verb]string{
		vmi.CreateLauncher: vmi.ReasonFailedCreate,
		vmi.DeletePod:      vmi.ReasonFailedDelete,
		vmi.SetUnpaused:    vmi.ReasonFailedPodPatch,
	}[a.Verb]
	return &vmi.Failure{Reason: reason, Message: err.Error()}
}

// store writes the object as the plan wants it, in one patch that fails if
// somebody else wrote in the meantime, and then tells the plan's events.
func (r *Reconciler) store(ctx context.Context, g *gathered, plan vmi.Plan) error {
	was, want := g.VMI, plan.VMI
	if equality.Semantic.DeepEqual(was, want) {
		return nil // what is to be told goes with a change
	}
	ctx, span := tracer.Start(ctx, "vmi.Store")
	defer span.End()
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	err := client.IgnoreNotFound(r.gate.For(g.owner).Patch(ctx, want.DeepCopy(), patch))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
		return fmt.Errorf("vmictrl: store %s/%s: %w", was.Namespace, was.Name, err)
	}
	for _, e := range plan.Events {
		kind := corev1.EventTypeNormal
		if e.Warning {
			kind = corev1.EventTypeWarning
		}
		r.event(was, kind, e.Reason, "Reconcile", e.Message)
	}
	return nil
}

// result says when to look again. An object whose spec is to blame is not
// retried: only a change of it can help, and that is an event. Of what it refers to
// not everything is watched.
func (r *Reconciler) result(g *gathered, plan vmi.Plan, actErr error) (reconcile.Result, error) {
	var invalid *template.Error
	if errors.As(actErr, &invalid) && !errors.Is(actErr, template.ErrMissingFact) {
		return reconcile.Result{}, nil
	}
	if actErr != nil {
		return reconcile.Result{}, actErr
	}
	at := plan.RequeueAt
	for _, d := range []time.Time{g.verdict.Deadline, g.due} {
		if !d.IsZero() && (at == nil || d.Before(*at)) {
			at = &d
		}
	}
	if at == nil {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(at.Sub(r.Clock.Now()), time.Millisecond)}, nil
}

func (r *Reconciler) event(obj *v1.VirtualMachineInstance, kind, reason, action, note string) {
	if r.Recorder != nil {
		r.Recorder.Eventf(obj, nil, kind, reason, action, "%s", note)
	}
}
