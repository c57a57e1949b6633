// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/internal/backlog"
	"github.com/virtloom/virtloom/internal/retold"
	"github.com/virtloom/virtloom/internal/tracecontext"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/templatectrl"
)

// DefaultWorkers is how many migrations are worked on at a time. A pass makes a
// few API calls at most and holds no lock over them.
const DefaultWorkers = 16

const (
	// conflictRetry is how soon a pass that lost a race is repeated; the event
	// of the winner's write usually comes first.
	conflictRetry = 50 * time.Millisecond
	// factRetry is how soon a target Pod is tried again that lacks a fact of an object
	// which is not watched.
	factRetry = 15 * time.Second
	// quotaRetry is how soon a target Pod is tried again that the API server refused
	// for a quota, though none of those seen has too little left. A change of a quota
	// comes first; this is for what no event tells, as the defaults of a LimitRange.
	quotaRetry = 2 * time.Minute
	// firstAgain and lastAgain bound the delay after an error, which doubles with each.
	firstAgain = 5 * time.Millisecond
	lastAgain  = 1000 * time.Second
)

var tracer = otel.Tracer("github.com/virtloom/virtloom/migration/migrationctrl")

// Renderer renders the Pod a guest moves to. *template.Renderer is one.
type Renderer interface {
	// MigrationTarget returns the Pod, with namespace, the label
	// kubevirt.io/migrationJobUID, and a name that is the same for the same
	// guest and migration. It must be pure. An error that wraps
	// template.ErrMissingFact is retried, any other fails the migration.
	MigrationTarget(in template.Input) (*corev1.Pod, error)
	// HotplugAttachment returns the Pod that brings plugged volumes to the node of
	// the target Pod, which controls it, under the same conditions.
	HotplugAttachment(in template.Input) (*corev1.Pod, error)
}

// Reconciler takes migrations from creation to their end. Fields without a stated
// default are required; SetupWithManager checks them.
type Reconciler struct {
	// Client reads from caches and writes; APIReader reads without a cache.
	Client    client.Client
	APIReader client.Reader
	// LauncherImage is the image of the guests' Pods.
	LauncherImage string
	// SidecarShimImage is the image of hook sidecars that name none. Defaults to the one
	// beside LauncherImage.
	SidecarShimImage string
	// Renderer defaults to template.Default().
	Renderer Renderer
	// Recorder tells events of migrations and guests. Defaults to none.
	Recorder events.EventRecorder
	// Observer is told what becomes of own writes, and of live reads if it is an
	// expectationsctrl.LiveReads. Defaults to nobody.
	Observer expectations.Observer
	// Metrics is told of migrations and passes. Defaults to nobody.
	Metrics *Metrics
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// Workers defaults to DefaultWorkers.
	Workers int
	// Config is the administrator's. What the KubeVirt object says in
	// spec.configuration.migrations wins over it and takes effect at once.
	// Reconfigure replaces it once the controller runs.
	Config migration.Config
	// Backups ends backups that are in the way of critical migrations. Defaults to
	// nobody: they wait then, as all others do.
	Backups BackupAborter
	// Admission hands out the slots. It belongs to the controller from
	// SetupWithManager on. Defaults to one with default queue options.
	Admission *migration.Admission

	// gate notes own writes and tells whether the caches show them; it also
	// enqueues who waited for a slot.
	gate *expectationsctrl.Gate

	// failures counts the failures of the controller's passes.
	failures workqueue.TypedRateLimiter[reconcile.Request]

	// gatherer reads what Pods are rendered from.
	gatherer templatectrl.Gatherer

	// policies are those of the cluster.
	policies policies

	// backlog has the queue of the migrations and those of which something was not stored, and untold what that was,
	// by migration.
	backlog backlog.Backlog
	untold  sync.Map
	// told is in which words the failures of each migration's actions were told.
	told retold.Failures
	// moves are the migrations under way, for their traces.
	moves *tracecontext.Operations
	// current replaces Config, if it is set; guarded by limiting is which limits Admission
	// has, so that the last ones told are those that stay.
	current  atomic.Pointer[migration.Config]
	limiting sync.Mutex

	restoring sync.Mutex
	// restored, guarded by restoring, says that Admission knows what the API
	// knew when this process began.
	restored bool
}

// SetupWithManager checks the fields and registers indexes, watches and the
// controller with the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	if err := r.complete(); err != nil {
		return err
	}
	var err error
	r.gate, err = expectationsctrl.NewGate(mgr, expectationsctrl.Options{
		Clock: r.Clock, Client: r.Client, APIReader: r.APIReader, Observer: r.Observer,
	})
	if err != nil {
		return fmt.Errorf("migrationctrl: %w", err)
	}
	if err := index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).Named("migration").
		WithOptions(controller.Options{MaxConcurrentReconciles: r.Workers, RateLimiter: r.failures})
	if err := r.watch(b).Complete(r); err != nil {
		return fmt.Errorf("migrationctrl: %w", err)
	}
	return r.Metrics.setup(ctx, mgr, r)
}

func (r *Reconciler) complete() error {
	var missing []error
	need := func(ok bool, field string) {
		if !ok {
			missing = append(missing, fmt.Errorf("migrationctrl: Reconciler.%s is required", field))
		}
	}
	need(r.Client != nil, "Client")
	need(r.APIReader != nil, "APIReader")
	need(r.LauncherImage != "", "LauncherImage")
	r.gatherer = templatectrl.Gatherer{Client: r.Client, Live: r.APIReader}
	r.failures = newFailures()
	r.moves = tracecontext.NewOperations(tracer, "migration.Move", "migration.Wait")
	if r.Renderer == nil {
		r.Renderer = template.Default()
	}
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.Workers == 0 {
		r.Workers = DefaultWorkers
	}
	if r.Admission == nil {
		r.Admission = migration.NewAdmission(r.Config.WithDefaults().Limits, migration.QueueOptions{})
	}
	return errors.Join(missing...)
}

// Reconcile makes one pass over one migration.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (result reconcile.Result, err error) {
	var m *v1.VirtualMachineInstanceMigration
	if err = r.restore(ctx); err == nil {
		m, err = r.read(ctx, req.NamespacedName)
	}
	if err != nil {
		r.Metrics.passed(passFailed, err)
		return reconcile.Result{}, err
	}
	ctx, span := tracer.Start(r.joined(ctx, req.NamespacedName, m), "migration.Reconcile")
	span.SetAttributes(attribute.String("migration", req.String()))
	outcome, failure := passIdle, error(nil)
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
		r.Metrics.passed(outcome, cmp.Or(failure, err))
		backlog.Usual(&result)
	}()

	g, err := r.gather(ctx, req.NamespacedName, m)
	if err != nil {
		return reconcile.Result{}, err
	}
	if g == nil {
		outcome = passGone
		r.forget(req.NamespacedName)
		return reconcile.Result{}, nil
	}
	r.rehearse(ctx, g)
	r.reserve(g)
	plan := migration.Decide(g.Snapshot, r.Clock.Now())
	actErr := r.act(ctx, g, plan)
	failure = actErr
	if len(plan.Actions) > 0 {
		outcome = passActed
		plan = migration.Decide(g.Snapshot, r.Clock.Now())
	}
	span.SetAttributes(
		attribute.String("phase", string(plan.Status.Phase)), attribute.String("reason", string(plan.Reason)),
		attribute.String("owner", string(plan.Owner)),
	)
	if left := r.postpone(g, plan, actErr); left > 0 {
		r.waits(ctx, req.NamespacedName, plan)
		return backlog.Later(at(g.Now, r.Clock.Now(), plan.Deadline, plan.Wake, g.verdict.Deadline, g.lateUntil), left), nil
	}
	if err := r.store(ctx, g, plan); err != nil {
		failure = errors.Join(actErr, err)
		return r.again(ctx, g, at(g.Now, r.Clock.Now(), plan.Deadline, plan.Wake), failure)
	}
	r.settle(g)
	r.waits(ctx, req.NamespacedName, plan)
	if actErr == nil && g.Migration.IsFinal() && len(plan.Actions) > 0 {
		// What is left to be tidied up has no event of its own.
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	}
	return r.result(ctx, g, plan, actErr)
}
