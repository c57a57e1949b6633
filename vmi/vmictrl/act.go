// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/failuretext"
	"github.com/virtloom/virtloom/internal/vmipatch"
	"github.com/virtloom/virtloom/template/render"
	"github.com/virtloom/virtloom/vmi"
)

// conflictRetry is the retry interval of a write that lost a race, if no event comes earlier.
const conflictRetry = 50 * time.Millisecond

// actor carries a plan out: actions, then the object, then events.
type actor struct{ *Reconciler }

// act executes the actions in order and adds their results to the snapshot. A failed action does
// not prevent the next one, unless that depends on it.
func (r actor) act(ctx context.Context, g *gathered, plan vmi.Plan) error {
	var failed []error
	for _, a := range plan.Actions {
		err := r.do(ctx, g, a)
		if err == nil {
			continue
		}
		failed = append(failed, err)
		if g.Failure == nil && !apierrors.IsConflict(err) { // a conflict needs a retry only
			g.Failure = &vmi.Failure{Reason: a.Fault, Message: err.Error()}
		}
		if a.Verb == vmi.CreateClaim || a.Verb == vmi.DeleteClaim {
			break
		}
	}
	r.complain(g, plan.Trouble)
	return errors.Join(failed...)
}

// complain keeps the reported wording of a continuing failure, or of the plan's trouble, and emits an event where the
// condition belongs to the node agent. A pass that tried nothing, because own writes are unobserved, does not end the
// failure.
func (r actor) complain(g *gathered, trouble *vmi.Failure) {
	failed := g.Failure != nil
	if failed {
		trouble = g.Failure
	}
	if trouble == nil {
		if len(g.Pending) == 0 {
			r.reported.Over(g.owner.Key)
		}
		return
	}
	words, news := r.reported.Wording(g.owner.Key, failuretext.Text{Reason: trouble.Reason, Message: trouble.Message}, r.Clock.Now())
	if failed {
		g.Failure = &vmi.Failure{Reason: words.Reason, Message: words.Message}
	}
	if p := g.VMI.Status.Phase; news && (p == v1.Scheduled || p == v1.Running) {
		r.event(g.VMI, corev1.EventTypeWarning, words.Reason, "Reconcile", words.Message)
	}
}

func (r actor) do(ctx context.Context, g *gathered, a vmi.Action) (err error) {
	ctx, span := tracer.Start(ctx, "vmi."+string(a.Verb))
	span.SetAttributes(attribute.String("why", a.Why))
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
		r.Metrics.wrote(string(a.Verb), err)
	}()
	switch a.Verb {
	case vmi.CreateLauncher:
		return r.createPod(ctx, g, g.input, r.Renderer.Launcher)
	case vmi.CreateTemporary:
		return r.createPod(ctx, g, g.input, r.Renderer.Temporary)
	case vmi.CreateAttachment:
		return r.createPod(ctx, g, plugging(g, a), r.Renderer.HotplugAttachment)
	case vmi.CreateTrigger:
		return r.createPod(ctx, g, plugging(g, a), r.Renderer.HotplugTrigger)
	case vmi.DeletePod:
		return r.deletePod(ctx, g, a)
	case vmi.PatchPod:
		return r.patchPod(ctx, g, a)
	case vmi.CreateClaim:
		return r.createClaim(ctx, g, a)
	case vmi.DeleteClaim:
		return r.deleteClaim(ctx, g, a)
	default:
		return fmt.Errorf("vmictrl: unknown action %q", a.Verb)
	}
}

// plugging returns the template input of an attachment or trigger of the action's Pod.
func plugging(g *gathered, a vmi.Action) render.Input {
	in := g.input
	in.Hotplug = &render.Hotplug{Owner: a.Pod, Volumes: a.Volumes}
	return in
}

// VMIs have no status subresource: the status is patched with the object. A write without answer is read live.
//
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;patch

// store writes the planned object in one patch, and then emits the plan's events. The package
// comment lists what makes the API server reject the patch.
func (r actor) store(ctx context.Context, g *gathered, plan vmi.Plan) error {
	was, want := g.VMI, plan.VMI
	if g.stored != nil {
		was = g.stored
	}
	if equality.Semantic.DeepEqual(was, want) {
		return nil // events are emitted with a change only
	}
	ctx, span := tracer.Start(ctx, "vmi.Store")
	defer span.End()
	r.starts.Note(g.owner.Key, want)
	err := vmipatch.Write(was, want, func(patch []byte) error {
		return r.Gate.For(g.owner).Patch(ctx, was.DeepCopy(), client.RawPatch(types.JSONPatchType, patch))
	}, guards(was, want)...)
	r.Metrics.wrote(actionStore, err)
	if client.IgnoreNotFound(err) != nil {
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

// guards returns the preconditions of a write that changes lease, phase or finalizers: of two
// concurrent writes of this kind only one is accepted. All other fields depend on nothing that
// would not trigger another pass.
func guards(was, want *v1.VirtualMachineInstance) []vmipatch.Guard {
	if was.Annotations[handoff.Annotation] == want.Annotations[handoff.Annotation] && was.Status.Phase == want.Status.Phase &&
		slices.Equal(was.Finalizers, want.Finalizers) {
		return nil
	}
	return []vmipatch.Guard{
		vmipatch.Annotation(handoff.Annotation), vmipatch.Phase, vmipatch.Deletion,
		vmipatch.Label(v1.NodeNameLabel), vmipatch.Label(v1.MigrationTargetNodeNameLabel), vmipatch.Status("nodeName"),
	}
}

// result returns when to requeue. An object with an invalid spec is not retried with back-off:
// only a change of the object can help, which is an event. Since not all objects that it refers
// to are watched, it is checked at long intervals.
func (r actor) result(g *gathered, plan vmi.Plan, actErr error) (reconcile.Result, error) {
	var invalid *render.Error
	if errors.As(actErr, &invalid) && !errors.Is(actErr, render.ErrMissingFact) {
		g.lookAt(r.Clock.Now().Add(lastRetry))
		actErr = nil
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

func (r actor) event(obj *v1.VirtualMachineInstance, kind, reason, action, note string) {
	if r.Recorder != nil {
		r.Recorder.Eventf(obj, nil, kind, reason, action, "%s", note)
	}
}
