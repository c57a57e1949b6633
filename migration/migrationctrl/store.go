// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/internal/failuretext"
	"github.com/virtloom/virtloom/internal/vmipatch"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/placement"
	"github.com/virtloom/virtloom/template/render"
)

// Finalizer and label are in the object. A write without a known outcome is read live.
//
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=get;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations/status,verbs=patch

// storer writes status and finalizers, now or later, and returns when the next pass is due.
type storer struct{ *Reconciler }

// store writes the status, then emits the events of the transition, then removes the
// finalizer if nothing is left to do. Each write is guarded by the version that the
// previous one returned, so that they cannot conflict with each other.
func (r storer) store(ctx context.Context, g *gathered, plan migration.Plan) error {
	if err := r.storeStatus(ctx, g, plan); err != nil {
		return err
	}
	for _, e := range plan.Events {
		r.emit(g, e)
	}
	if !plan.Release || !controllerutil.ContainsFinalizer(g.Migration, v1.VirtualMachineInstanceMigrationFinalizer) {
		return nil
	}
	if len(g.Failures) > 0 {
		return nil
	}
	next := g.Migration.DeepCopy()
	controllerutil.RemoveFinalizer(next, v1.VirtualMachineInstanceMigrationFinalizer)
	err := r.patchMigration(ctx, g, next)
	r.Metrics.wrote(actionRelease, err)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("migrationctrl: release %s: %w", g.key, err)
	}
	return nil
}

func (r storer) storeStatus(ctx context.Context, g *gathered, plan migration.Plan) error {
	was := g.Migration
	if equality.Semantic.DeepEqual(was.Status, plan.Status) {
		return nil
	}
	ctx, span := tracer.Start(ctx, "migration.Store")
	defer span.End()
	span.SetAttributes(attribute.String("from", string(was.Status.Phase)), attribute.String("to", string(plan.Status.Phase)))
	next := was.DeepCopy()
	next.Status = *plan.Status.DeepCopy()
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	err := r.gate.For(g.owner).Status().Patch(ctx, next, patch)
	r.Metrics.wrote(actionStore, err)
	if err != nil {
		return fmt.Errorf("migrationctrl: store the status of %s: %w", g.key, err)
	}
	if was.Status.Phase != plan.Status.Phase {
		ctrl.LoggerFrom(ctx).V(1).Info("Changed migration phase", "from", was.Status.Phase, "to", plan.Status.Phase, "reason", plan.Reason)
	}
	g.Migration = next
	r.keepNothing(g.key) // everything is stored
	return nil
}

// patchMigration writes the migration's metadata.
func (r storer) patchMigration(ctx context.Context, g *gathered, next *v1.VirtualMachineInstanceMigration) error {
	patch := client.MergeFromWithOptions(g.Migration, client.MergeFromWithOptimisticLock{})
	if err := r.gate.For(g.owner).Patch(ctx, next, patch); err != nil {
		return err
	}
	g.Migration = next
	return nil
}

// result returns when to look again. What only an event can change is not retried.
func (r storer) result(ctx context.Context, g *gathered, plan migration.Plan, actErr error) (reconcile.Result, error) {
	next := at(g.began, r.Clock.Now(), plan.Deadline, plan.RequeueAt, g.verdict.Deadline, g.lateUntil)
	switch {
	case actErr == nil || awaitsEvent(actErr):
		return next, nil
	case final(plan) && (errors.Is(actErr, migration.ErrRender) || errors.Is(actErr, migration.ErrForeignPod)):
		return next, nil
	case errors.Is(actErr, render.ErrMissingFact):
		return sooner(next, factRetry), nil
	case errors.Is(actErr, placement.ErrQuota):
		return sooner(next, quotaRetry), nil
	}
	return r.again(ctx, g, next, actErr)
}

func final(plan migration.Plan) bool {
	return plan.Status.Phase == v1.MigrationSucceeded || plan.Status.Phase == v1.MigrationFailed
}

// at requests a pass at the soonest of the times that were in the future when the pass began.
// One that has passed since may have been evaluated too early, and nothing else reports it.
func at(began, now time.Time, times ...time.Time) reconcile.Result {
	var soonest time.Time
	for _, t := range times {
		if t.After(began) && (soonest.IsZero() || t.Before(soonest)) {
			soonest = t
		}
	}
	if soonest.IsZero() {
		return reconcile.Result{}
	}
	// A little later than the deadline, so that it has passed for the pass.
	return reconcile.Result{RequeueAfter: max(soonest.Sub(now), 0) + time.Millisecond}
}

// sooner requests a pass after the delay at the latest.
func sooner(next reconcile.Result, delay time.Duration) reconcile.Result {
	if next.RequeueAfter == 0 || next.RequeueAfter > delay {
		next.RequeueAfter = delay
	}
	return next
}

// again repeats a pass that failed. The controller's own delay grows and ignores deadlines; so
// an earlier deadline is returned instead of the error.
func (r storer) again(ctx context.Context, g *gathered, next reconcile.Result, err error) (reconcile.Result, error) {
	if lost, quietly := quiet(err); quietly == nil && guarded(g.Failures) {
		return sooner(next, lost.RequeueAfter), nil
	}
	if next.RequeueAfter == 0 || next.RequeueAfter > delayed(r.failures.NumRequeues(reconcile.Request{NamespacedName: g.key})) {
		return reconcile.Result{}, err
	}
	ctrl.LoggerFrom(ctx).Error(err, "Reconciling migration failed, requeueing for the deadline", "after", next.RequeueAfter)
	return next, nil
}

// guarded reports whether the failed action, if any, is guarded by what the pass has read, as
// the status is. Other writes lose no race: their rejection would repeat.
func guarded(failures map[migration.Verb]error) bool {
	for kind := range failures {
		if kind != migration.ChangeVMI && kind != migration.Adopt && kind != migration.ChangeClaim {
			return false
		}
	}
	return true
}

// newFailures returns the rate limiter of failed passes, see delayed.
func newFailures() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstAgain, lastAgain)
}

// delayed returns the delay of a pass after that many failures.
func delayed(failures int) time.Duration {
	delay := firstAgain
	for range failures {
		if delay = min(2*delay, lastAgain); delay == lastAgain {
			break
		}
	}
	return delay
}

// quiet turns a lost race into a repeated pass. So does an object that was deleted meanwhile:
// its event will follow.
func quiet(err error) (reconcile.Result, error) {
	if vmipatch.LostRace(err) || apierrors.IsNotFound(err) {
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	}
	return reconcile.Result{}, err
}

// fault emits an event about a failed action, once for as long as it keeps failing.
func (r *Reconciler) fault(g *gathered, e migration.Event) {
	if words, news := r.reported.Wording(g.key, failuretext.Text{Reason: e.Reason, Message: e.Message}, r.Clock.Now()); news {
		e.Message = words.Message
		r.emit(g, e)
	}
}

// emit records an event.
func (r *Reconciler) emit(g *gathered, e migration.Event) {
	if r.Recorder == nil {
		return
	}
	var about runtime.Object = g.Migration
	if e.OnVMI {
		if g.VMI == nil {
			return
		}
		about = g.VMI
	}
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	r.Recorder.Eventf(about, nil, kind, e.Reason, "Migrate", "%s", e.Message)
}
