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
	"k8s.io/client-go/util/workqueue"
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
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/informer"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/transport"
	"github.com/virtloom/virtloom/domain/workspace"
	"github.com/virtloom/virtloom/handoff"
)

// defaultWorkers is the number of concurrent passes, not counting those that their worker has left
// after WorkerWait.
const defaultWorkers = 10

// defaultWorkerWait is how long a worker waits for a pass.
const defaultWorkerWait = time.Second

// DefaultCallTimeout bounds one call to the hypervisor.
const DefaultCallTimeout = 30 * time.Second

// DefaultProgressEvery is the least time between two stored progresses of a migration.
const DefaultProgressEvery = 5 * time.Second

// defaultCloseAfter is how long the tunnel of a migration stays open after the guest has arrived:
// longer than a source's hypervisor waits for an answer over a broken link.
const defaultCloseAfter = time.Minute

// defaultResync is the interval of passes over everything on the node without a cause.
const defaultResync = 2 * time.Minute

// lockWithin is how long an agent waits for another one to end: less than a controller waits for
// its sources to start.
const lockWithin = 100 * time.Second

var tracer = otel.Tracer("github.com/virtloom/virtloom/domain/domainctrl")

// Reconciler converges the domains of one node. Fields without a stated
// default are required; SetupWithManager checks them.
type Reconciler struct {
	// NodeName is the name of the Kubernetes Node this process serves.
	NodeName string
	// Transport carries migrations to and from other nodes. Its streams have to outlive the
	// manager's end; see DrainWithin.
	Transport transport.Transport
	// Hypervisor is the node's. Live migration requires that it implements domain.Migrator.
	Hypervisor domain.Hypervisor
	// Connector finds the hypervisors of VMIs that have one each; Hypervisor is then the fleet of
	// them, and implements domain.HostOfDomain. Defaults to none: Hypervisor runs all domains.
	Connector Connector
	// Informer watches the domains of Hypervisor; its owner runs it. Defaults to one of the
	// reconciler's own, which the manager runs.
	Informer *informer.Informer
	// Workspace prepares the VMIs' files.
	Workspace *workspace.Workspace
	// Client writes; APIReader reads without a cache.
	Client    client.Client
	APIReader client.Reader
	// Caches hold the VirtualMachineInstances of this node, and its Pods.
	Caches *Caches
	// Recorder emits events for VMIs. Defaults to none.
	Recorder events.EventRecorder
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// Workers defaults to 10, CallTimeout to DefaultCallTimeout.
	Workers     int
	CallTimeout time.Duration
	// Resync defaults to 2 minutes.
	Resync time.Duration
	// ProgressEvery is the least time between two stored progresses of a migration
	// ([status.MigrationProgress]). Defaults to DefaultProgressEvery.
	ProgressEvery time.Duration
	// DrainWithin is how long the end of the manager waits for migrations from and to this node
	// that have begun, before it aborts those from this node. Defaults to DefaultDrainWithin; a
	// negative value aborts them at once. Storing the outcome of those it aborted takes up to
	// CallTimeout more. The manager's GracefulShutdownTimeout, and the Pod's grace period, have to
	// be longer than both together.
	DrainWithin time.Duration
	// CloseAfter is how long the tunnel of a migration stays open at its target after the guest
	// has arrived. Defaults to a minute.
	CloseAfter time.Duration
	// OnStep is called with the steps of migrations, and can delay them: for tests, and for
	// tracing. Nil is no call.
	OnStep StepFunc
	// WorkerWait is how long a worker waits for the pass over a VMI before it serves the next one,
	// while the pass continues beside the workers. Defaults to a second.
	WorkerWait time.Duration

	drained      chan struct{} // closed when the migrations have ended with the manager
	migrations   *migrations
	keyedWorkers *keyedWorkers
	agents       *agents
	checksums    *checksums
	tunnels      tunnels
	failures     failures
	lastEvents   lastEvents
	silences     silences
}

// SetupWithManager checks the fields and registers the controller and the
// caches with the manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := r.complete(); err != nil {
		return err
	}
	r.migrations, r.keyedWorkers, r.drained = newMigrations(r.Clock, r.ProgressEvery), newKeyedWorkers(), make(chan struct{})
	if err := r.inform(mgr); err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).Named("node").
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Workers}).
		WatchesRawSource(r.alone(r.migrations.source(), r.keyedWorkers.source(), r.agents.source(), r.checksums.source())).
		WatchesRawSource(Source(r.Informer)).
		WatchesRawSource(resyncer{r}.resyncs())
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
	b = b.WatchesRawSource(source.Kind(r.Caches.Pods, &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(requestsOfLauncherPod)))
	return b.Complete(r)
}

// informing runs an informer in a manager, on every node.
type informing struct{ *informer.Informer }

// Start runs the informer until ctx ends.
func (i informing) Start(ctx context.Context) error { return i.Run(ctx) }

// NeedLeaderElection is false: every node has domains of its own.
func (i informing) NeedLeaderElection() bool { return false }

// inform adds to the manager what runs beside the workers.
func (r *Reconciler) inform(mgr ctrl.Manager) error {
	beside := []manager.Runnable{r.keyedWorkers, migrationDrain{r}}
	if r.Informer == nil {
		r.Informer = &informer.Informer{Hypervisor: r.Hypervisor, Deadline: r.CallTimeout}
		beside = append(beside, informing{r.Informer})
	}
	r.agents = newAgents(r.Hypervisor, r.Informer)
	r.checksums = newChecksums(r.Workspace, r.Clock)
	beside = append(beside, r.agents, r.checksums)
	for _, b := range beside {
		if err := mgr.Add(b); err != nil {
			return fmt.Errorf("domainctrl: add to the manager: %w", err)
		}
	}
	return nil
}

// alone starts sources once this process is the node's only agent, which it is until its passes and
// migrations have ended.
func (r *Reconciler) alone(sources ...source.Source) source.Source {
	return source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		within, cancel := context.WithTimeout(ctx, lockWithin)
		defer cancel()
		unlock, err := r.Workspace.Lock(within)
		if err != nil {
			return err
		}
		var errs []error
		for _, s := range sources {
			errs = append(errs, s.Start(ctx, q))
		}
		go func() {
			<-ctx.Done()
			<-r.keyedWorkers.ended
			<-r.drained
			if err := unlock(); err != nil {
				logger(ctx).Error(err, "Failed to unlock the node")
			}
		}()
		return errors.Join(errs...)
	})
}

// complete checks required fields and fills in defaults.
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
	if _, able := r.Hypervisor.(domain.HostOfDomain); r.Connector != nil && !able {
		missing = append(missing, errOneHost)
	}
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.Workers == 0 {
		r.Workers = defaultWorkers
	}
	for _, o := range []struct {
		is        *time.Duration
		otherwise time.Duration
	}{
		{&r.CallTimeout, DefaultCallTimeout}, {&r.Resync, defaultResync}, {&r.WorkerWait, defaultWorkerWait},
		{&r.ProgressEvery, DefaultProgressEvery}, {&r.CloseAfter, defaultCloseAfter}, {&r.DrainWithin, DefaultDrainWithin},
	} {
		if *o.is == 0 {
			*o.is = o.otherwise
		}
	}
	return errors.Join(missing...)
}

// Reconcile makes one pass over one VMI. It returns before the pass ends if that takes longer than
// WorkerWait; the pass then requeues itself. There is never more than one pass over a VMI.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	return r.keyedWorkers.do(ctx, req, r.WorkerWait, func(ctx context.Context) (reconcile.Result, error) { return r.reconcile(ctx, req) })
}

func (r *Reconciler) reconcile(ctx context.Context, req reconcile.Request) (_ reconcile.Result, err error) {
	w, err := r.cached(ctx, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	ctx, span := tracer.Start(joinDomainTrace(ctx, w.vmi), "node.Reconcile")
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
	// Another client wrote, and the cache may lag for long, or this process was too slow: the stored
	// object decides.
	logger(ctx).V(4).Info("Repeating the pass with a live read", "cause", err.Error())
	if w, err = r.live(ctx, req.NamespacedName); err != nil {
		return reconcile.Result{}, err
	}
	result, err = r.pass(ctx, req.NamespacedName, w)
	if outdated(err) {
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	}
	return result, err
}

// pass gathers, prepares, decides for the observed object, stores the planned one, and acts.
func (r *Reconciler) pass(ctx context.Context, key types.NamespacedName, w observed) (reconcile.Result, error) {
	r.unreadable(key, w)
	v := pass{observed: w}
	var err error
	if v.snapshot, err = (gatherer{r}).gather(ctx, key, w); err != nil {
		return reconcile.Result{}, err
	}
	if err = (preparer{r}).prepare(ctx, key, w, &v.snapshot); err != nil {
		return reconcile.Result{}, err
	}
	r.checksums.keep(key, v.snapshot.NeedsFiles())
	if v.plan, err = plan.Decide(v.snapshot, r.Clock.Now()); err != nil {
		return reconcile.Result{}, err
	}
	if v.observed, err = r.confirm(ctx, key, v); err != nil {
		return reconcile.Result{}, err
	}
	plan := v.plan
	trace.SpanFromContext(ctx).SetAttributes(attribute.String("role", string(plan.Role)),
		attribute.Int("tasks", len(plan.Actions)), attribute.Int("differences", len(plan.Differences)))
	stored := changed(v.vmi, plan.VMI)
	was, want := v.leaseChange()
	actor{r}.step(ctx, key, v.noticed(r.NodeName)...)
	if v.observed, err = (actor{r}).store(ctx, v); err != nil {
		return reconcile.Result{}, err
	}
	r.checksums.note(key, v.observed.vmi)
	actor{r}.step(ctx, key, stepsOf(r.NodeName, was, want).stored...)
	closes := r.release(key, v, was, want)
	actor{r}.adopt(ctx, key, v, want)
	r.follow(key, v, want)
	failed, tried := actor{r}.act(ctx, key, v)
	switch err = causes(failed); {
	case err == nil:
		r.failures.note(key, nil, r.Clock.Now())
	case outdated(err):
		return reconcile.Result{}, err
	default:
		r.failures.note(key, failed, r.Clock.Now())
		if tried && plan.RequeueAt == nil {
			return reconcile.Result{}, err
		}
		return r.failed(ctx, key, plan, err), nil
	}
	if plan.Role == handoff.RoleNone || plan.Role == "" {
		r.migrations.forget(key)
		r.failures.forget(key)
	}
	return r.result(plan, stored, closes), nil
}

// causes joins the errors of failed tasks, nil if none failed.
func causes(failed []action.Failure) error {
	var all []error
	for _, t := range failed {
		all = append(all, t.Err)
	}
	return errors.Join(all...)
}

// conflictRetry is the pause after a lost write.
const conflictRetry = 50 * time.Millisecond

// failed returns when to look again after a failed task: when it may be tried again, or sooner if
// the plan has an earlier deadline.
func (r *Reconciler) failed(ctx context.Context, key types.NamespacedName, plan plan.Plan, err error) reconcile.Result {
	logger(ctx).Error(err, "Task failed, requeueing")
	now := r.Clock.Now()
	after := r.failures.next(key).Sub(now)
	if plan.RequeueAt != nil {
		after = min(after, max(plan.RequeueAt.Sub(now), failedRetry))
	}
	return reconcile.Result{RequeueAfter: max(after, time.Millisecond)}
}

// failedRetry is the least time between attempts at a failing task.
const failedRetry = time.Second

// result returns when to look again. Tasks change the domain, which the hypervisor reports as well;
// looking at once saves the wait. closes is when a tunnel is to be closed; zero if none is.
func (r *Reconciler) result(plan plan.Plan, stored bool, closes time.Time) reconcile.Result {
	at := plan.RequeueAt
	if at == nil && len(plan.Actions) > 0 && stored && plan.Role != handoff.RoleNone {
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
