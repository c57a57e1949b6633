// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/virtloom/virtloom/domain"
)

// DefaultWorkers is how many guests are worked on at a time, those not counted
// whose pass takes longer than a worker waits for it.
const DefaultWorkers = 10

// DefaultLaneAfter is how long a worker waits for a pass.
const DefaultLaneAfter = time.Second

// DefaultCallTimeout bounds one question to, or operation of, the hypervisor.
const DefaultCallTimeout = 30 * time.Second

// DefaultProgressEvery is how often, at most, the progress of a migration is stored.
const DefaultProgressEvery = 5 * time.Second

// DefaultCloseAfter is how long the way of a migration stays open when the guest has
// come: longer than a source's hypervisor waits for an answer over a link that is cut.
const DefaultCloseAfter = time.Minute

// DefaultResync is how often everything on the node is looked at without a
// cause.
const DefaultResync = 2 * time.Minute

var tracer = otel.Tracer("github.com/virtloom/virtloom/domain/domainctrl")

// Reconciler converges the domains of one node. Fields without a stated
// default are required; SetupWithManager checks them.
type Reconciler struct {
	// NodeName is the name of the Kubernetes Node this process serves.
	NodeName string
	// Transport carries migrations to and from other nodes. What flows has to outlive the
	// manager's end; see DrainWithin.
	Transport domain.Transport
	// Hypervisor is the node's. Live migration needs it to be a
	// domain.Migrator as well.
	Hypervisor domain.Hypervisor
	// Connector finds the hypervisors of guests that have one each; Hypervisor is then
	// the fleet of them. Defaults to none: Hypervisor runs all guests.
	Connector domain.Connector
	// Informer knows the domains of Hypervisor; whoever made it runs it. Defaults to
	// one of the reconciler's own, which the manager runs.
	Informer *domain.Informer
	// Workspace prepares the guests' files.
	Workspace *Workspace
	// Client writes; APIReader reads without a cache.
	Client    client.Client
	APIReader client.Reader
	// Caches hold the VirtualMachineInstances of this node, and its Pods.
	Caches *Caches
	// Recorder tells events of the guests. Defaults to none.
	Recorder events.EventRecorder
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// Workers defaults to DefaultWorkers, CallTimeout to DefaultCallTimeout.
	Workers     int
	CallTimeout time.Duration
	// Resync defaults to DefaultResync.
	Resync time.Duration
	// ProgressEvery is how often, at most, the progress of a migration is stored
	// ([domain.MigrationProgress]). Defaults to DefaultProgressEvery.
	ProgressEvery time.Duration
	// DrainWithin is how long the end of the manager waits for migrations from and to
	// this node that have begun, before it aborts those from here. Defaults to
	// DefaultDrainWithin; a negative one aborts them at once. The manager has to wait
	// for longer (GracefulShutdownTimeout), and the Pod as well.
	DrainWithin time.Duration
	// CloseAfter is how long the way of a migration stays open at its target when the
	// guest has come. Defaults to DefaultCloseAfter.
	CloseAfter time.Duration
	// OnStep is told of the steps of migrations, and can hold them up: for tests, and
	// for tracing. Nil tells nobody.
	OnStep StepFunc
	// LaneAfter is how long a worker waits for the pass over a guest before it turns
	// to the next one, and the pass goes on beside the workers. Defaults to
	// DefaultLaneAfter.
	LaneAfter time.Duration

	drained  chan struct{} // closed when the migrations have ended with the manager
	moves    *moves
	lanes    *lanes
	agents   *agents
	passages passages
	troubles troubles
	notices  notices
	silences silences
}

// SetupWithManager checks the fields and registers the controller and the
// caches with the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := r.complete(); err != nil {
		return err
	}
	r.moves, r.lanes, r.drained = newMoves(r.Clock, r.ProgressEvery), newLanes(), make(chan struct{})
	if err := r.inform(mgr); err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).Named("node").
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Workers}).
		WatchesRawSource(r.alone(r.moves.source(), r.lanes.source(), r.agents.source())).
		WatchesRawSource(Source(r.Informer)).
		WatchesRawSource(r.resyncs())
	for _, c := range []cache.Cache{r.Caches.Owned, r.Caches.Incoming} {
		if err := mgr.Add(c); err != nil {
			return fmt.Errorf("domainctrl: add a cache to the manager: %w", err)
		}
		b = b.WatchesRawSource(source.Kind(c, &v1.VirtualMachineInstance{},
			&handler.TypedEnqueueRequestForObject[*v1.VirtualMachineInstance]{}))
	}
	if err := mgr.Add(r.Caches.Pods); err != nil {
		return fmt.Errorf("domainctrl: add a cache to the manager: %w", err)
	}
	b = b.WatchesRawSource(source.Kind(r.Caches.Pods, &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(ofPod)))
	return b.Complete(r)
}

// informing runs an informer in a manager, on every node.
type informing struct{ *domain.Informer }

// Start runs the informer until ctx ends.
func (i informing) Start(ctx context.Context) error { return i.Run(ctx) }

// NeedLeaderElection is false: every node has domains of its own.
func (i informing) NeedLeaderElection() bool { return false }

// inform lets the manager run what goes on beside the workers.
func (r *Reconciler) inform(mgr ctrl.Manager) error {
	beside := []manager.Runnable{r.lanes, draining{r}}
	if r.Informer == nil {
		r.Informer = &domain.Informer{Hypervisor: r.Hypervisor, Deadline: r.CallTimeout}
		beside = append(beside, informing{r.Informer})
	}
	r.agents = newAgents(r.Hypervisor, r.Informer)
	beside = append(beside, r.agents)
	for _, b := range beside {
		if err := mgr.Add(b); err != nil {
			return fmt.Errorf("domainctrl: add to the manager: %w", err)
		}
	}
	return nil
}

// complete checks what is required and fills in defaults.
func (r *Reconciler) complete() error {
	var missing []error
	need := func(ok bool, field string) {
		if !ok {
			missing = append(missing, fmt.Errorf("domainctrl: Reconciler.%s is required", field))
		}
	}
	need(r.NodeName != "", "NodeName")
	need(r.Transport != nil, "Transport")
	need(r.Hypervisor != nil, "Hypervisor")
	need(r.Workspace != nil, "Workspace")
	need(r.Client != nil, "Client")
	need(r.APIReader != nil, "APIReader")
	need(r.Caches != nil, "Caches")
	need(r.Caches == nil || r.Caches.Pods != nil, "Caches.Pods")
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.Workers == 0 {
		r.Workers = DefaultWorkers
	}
	for _, o := range []struct {
		is        *time.Duration
		otherwise time.Duration
	}{
		{&r.CallTimeout, DefaultCallTimeout}, {&r.Resync, DefaultResync}, {&r.LaneAfter, DefaultLaneAfter},
		{&r.ProgressEvery, DefaultProgressEvery}, {&r.CloseAfter, DefaultCloseAfter}, {&r.DrainWithin, DefaultDrainWithin},
	} {
		if *o.is == 0 {
			*o.is = o.otherwise
		}
	}
	return errors.Join(missing...)
}

// Reconcile makes one pass over one guest. It returns before the pass ends if that
// takes longer than LaneAfter; the pass then asks for the next one itself. There is
// never more than one over a guest.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	return r.lanes.do(ctx, req, r.LaneAfter, func(ctx context.Context) (reconcile.Result, error) { return r.reconcile(ctx, req) })
}

func (r *Reconciler) reconcile(ctx context.Context, req reconcile.Request) (_ reconcile.Result, err error) {
	w, err := r.cached(ctx, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	ctx, span := tracer.Start(joined(ctx, w.vmi), "node.Reconcile")
	span.SetAttributes(attribute.String("vmi", req.String()), attribute.String("node", r.NodeName))
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}()

	result, err := r.pass(ctx, req.NamespacedName, w)
	if !outdated(err) {
		return result, err
	}
	// Somebody else wrote, and the cache may be late for long, or this process was
	// too slow: what is stored now decides.
	logger(ctx).V(1).Info("Looking again, at what is stored", "cause", err.Error())
	if w, err = r.live(ctx, req.NamespacedName); err != nil {
		return reconcile.Result{}, err
	}
	result, err = r.pass(ctx, req.NamespacedName, w)
	if outdated(err) {
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	}
	return result, err
}

// pass decides for the object as given, stores what it comes to, and acts.
func (r *Reconciler) pass(ctx context.Context, key types.NamespacedName, w word) (reconcile.Result, error) {
	v, err := r.decide(ctx, key, w)
	if err != nil {
		return reconcile.Result{}, err
	}
	if v, err = r.confirm(ctx, key, v); err != nil {
		return reconcile.Result{}, err
	}
	plan := v.plan
	trace.SpanFromContext(ctx).SetAttributes(attribute.String("role", string(plan.Role)),
		attribute.Int("tasks", len(plan.Tasks)), attribute.Int("differences", len(plan.Differences)))
	stored := changed(v.vmi, plan.VMI)
	was, want := v.leases()
	r.step(ctx, key, v.noticed(r.NodeName)...)
	if v.word, err = r.store(ctx, v); err != nil {
		return reconcile.Result{}, err
	}
	r.step(ctx, key, stepsOf(r.NodeName, was, want).stored...)
	closes := r.release(key, v, was, want)
	r.adopt(ctx, key, v, want)
	r.follow(key, v, want)
	failed, tried := r.act(ctx, key, v)
	if err = causes(failed); outdated(err) {
		return reconcile.Result{}, err
	}
	r.troubles.note(key, failed, r.Clock.Now())
	if err != nil && tried && plan.RequeueAt == nil {
		return reconcile.Result{}, err
	}
	if err != nil {
		return r.failed(ctx, key, plan, err), nil
	}
	if plan.Role == domain.RoleNone || plan.Role == "" {
		r.moves.forget(key)
		r.troubles.forget(key)
	}
	return r.result(plan, stored, closes), nil
}

// causes is why tasks failed, nil if none did.
func causes(failed []domain.Trouble) error {
	var all []error
	for _, t := range failed {
		all = append(all, t.Err)
	}
	return errors.Join(all...)
}

// conflictRetry is how soon a lost write is tried again.
const conflictRetry = 50 * time.Millisecond

// failed says when to look again after a task has failed: when it may be tried again, or
// sooner if the plan has a time that must not be missed.
func (r *Reconciler) failed(ctx context.Context, key types.NamespacedName, plan domain.Plan, err error) reconcile.Result {
	logger(ctx).Error(err, "A task has failed")
	now := r.Clock.Now()
	after := r.troubles.next(key).Sub(now)
	if plan.RequeueAt != nil {
		after = min(after, max(plan.RequeueAt.Sub(now), failedRetry))
	}
	return reconcile.Result{RequeueAfter: max(after, time.Millisecond)}
}

// failedRetry is the least time between attempts at a task that fails.
const failedRetry = time.Second

// result says when to look again. After tasks the guest looks different, which
// the hypervisor's hint would tell as well; looking at once saves the wait. closes is
// when something is to be closed; zero if nothing is.
func (r *Reconciler) result(plan domain.Plan, stored bool, closes time.Time) reconcile.Result {
	at := plan.RequeueAt
	if at == nil && len(plan.Tasks) > 0 && stored && plan.Role != domain.RoleNone {
		return reconcile.Result{RequeueAfter: time.Millisecond}
	}
	if !closes.IsZero() && (at == nil || closes.Before(*at)) {
		at = &closes
	}
	if at == nil {
		return reconcile.Result{}
	}
	return reconcile.Result{RequeueAfter: max(at.Sub(r.Clock.Now()), time.Millisecond)}
}

func logger(ctx context.Context) logr.Logger { return ctrl.LoggerFrom(ctx) }
