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
	"github.com/virtloom/virtloom/internal/failuretext"
	"github.com/virtloom/virtloom/internal/tracecontext"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/queue"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/templatectrl"
)

// defaultWorkers is how many migrations are reconciled in parallel. A pass makes a
// few API calls at most and holds no lock during them.
const defaultWorkers = 16

const (
	// conflictRetry is the delay after a lost race; the event of the winner's write
	// usually comes first.
	conflictRetry = 50 * time.Millisecond
	// factRetry is the delay for a target Pod that lacks a fact of an unwatched object.
	factRetry = 15 * time.Second
	// quotaRetry is the delay for a target Pod that the API server rejected for a quota
	// although all cached quotas have room. A change of a quota comes first; this is for
	// changes without an event, as the defaults of a LimitRange.
	quotaRetry = 2 * time.Minute
	// firstAgain and lastAgain bound the delay after an error, which doubles with each.
	firstAgain = 5 * time.Millisecond
	lastAgain  = 1000 * time.Second
)

var tracer = otel.Tracer("github.com/virtloom/virtloom/migration/migrationctrl")

// Renderer renders the target Pod of a VMI. *template.Renderer is one.
type Renderer interface {
	// MigrationTarget returns the Pod, with namespace, the label
	// kubevirt.io/migrationJobUID, and a name that is the same for the same
	// VMI and migration. It must be pure. An error that wraps
	// render.ErrMissingFact is retried, any other fails the migration.
	MigrationTarget(in template.Input) (*corev1.Pod, error)
	// HotplugAttachment returns the Pod that attaches hotplugged volumes on the node of
	// the target Pod, which controls it, under the same conditions.
	HotplugAttachment(in template.Input) (*corev1.Pod, error)
}

// Reconciler takes migrations from creation to their end. Fields without a stated
// default are required; SetupWithManager checks them.
type Reconciler struct {
	// Client reads from caches and writes; APIReader reads without a cache.
	Client    client.Client
	APIReader client.Reader
	// LauncherImage is the image of the VMIs' Pods.
	LauncherImage string
	// SidecarShimImage is the image of hook sidecars without one. Defaults to the one
	// beside LauncherImage.
	SidecarShimImage string
	// Renderer defaults to template.Default().
	Renderer Renderer
	// Recorder emits events for migrations and VMIs. Defaults to none.
	Recorder events.EventRecorder
	// Observer receives the outcome of own writes, and of live reads if it is an
	// expectationsctrl.LiveReads. Defaults to none.
	Observer expectations.Observer
	// Metrics receives migrations and passes. Defaults to none.
	Metrics *Metrics
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// Workers defaults to 16.
	Workers int
	// Config is the administrator's configuration. spec.configuration.migrations of the
	// KubeVirt object takes precedence and takes effect at once. Reconfigure replaces it
	// while the controller runs.
	Config migration.Config
	// Backups aborts backups that block critical migrations. Defaults to none: such
	// migrations then wait, as all others do.
	Backups BackupAborter
	// Admission hands out the slots. It belongs to the controller from
	// SetupWithManager on. Defaults to one with default queue options.
	Admission *queue.Admission

	// gate records own writes and reports whether the caches show them; it also enqueues
	// migrations that waited for a slot.
	gate *expectationsctrl.Gate

	// failures counts the failures of the controller's passes.
	failures workqueue.TypedRateLimiter[reconcile.Request]

	// gatherer reads the inputs of rendering Pods.
	gatherer templatectrl.Gatherer

	// policies caches those of the cluster.
	policies policies

	// backlog has the queue of the migrations and those with an unstored status, and unstored these statuses, by
	// migration.
	backlog  backlog.Backlog
	unstored sync.Map
	// reported suppresses repeated failure events per migration.
	reported failuretext.Failures
	// moves are the migrations under way, for their traces.
	moves *tracecontext.Operations
	// current replaces Config, if it is set; limiting serializes updates of the limits of
	// Admission, so that the last ones stay.
	current  atomic.Pointer[migration.Config]
	limiting sync.Mutex

	restoring sync.Mutex
	// restored, guarded by restoring, says that Admission was filled from the API at the
	// start of this process.
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
	if err := (watcher{r}).watch(b).Complete(r); err != nil {
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
		r.Workers = defaultWorkers
	}
	if r.Admission == nil {
		r.Admission = queue.NewAdmission(r.Config.WithDefaults().Limits, queue.Options{})
	}
	return errors.Join(missing...)
}

// Reconcile makes one pass over one migration.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (result reconcile.Result, err error) {
	var m *v1.VirtualMachineInstanceMigration
	if err = (capacity{r}).restore(ctx); err == nil {
		m, err = gatherer{r}.read(ctx, req.NamespacedName)
	}
	if err != nil {
		r.Metrics.passed(passFailed, err)
		return reconcile.Result{}, err
	}
	ctx, span := tracer.Start(tracing{r}.joined(ctx, req.NamespacedName, m), "migration.Reconcile")
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

	g, err := gatherer{r}.gather(ctx, req.NamespacedName, m)
	if err != nil {
		return reconcile.Result{}, err
	}
	if g == nil {
		outcome = passGone
		capacity{r}.forget(req.NamespacedName)
		return reconcile.Result{}, nil
	}
	fitter{r}.rehearse(ctx, g)
	capacity{r}.reserve(g)
	plan := migration.Decide(g.Snapshot, r.Clock.Now())
	actErr := actor{r}.act(ctx, g, plan)
	failure = actErr
	if len(plan.Actions) > 0 {
		outcome = passActed
		plan = migration.Decide(g.Snapshot, r.Clock.Now())
	}
	span.SetAttributes(
		attribute.String("phase", string(plan.Status.Phase)), attribute.String("reason", string(plan.Reason)),
		attribute.String("owner", string(plan.Responsible)),
	)
	if left := (storer{r}).postpone(g, plan, actErr); left > 0 {
		tracing{r}.waits(ctx, req.NamespacedName, plan)
		return backlog.Later(at(g.began, r.Clock.Now(), plan.Deadline, plan.RequeueAt, g.verdict.Deadline, g.lateUntil), left), nil
	}
	if err := (storer{r}).store(ctx, g, plan); err != nil {
		failure = errors.Join(actErr, err)
		return storer{r}.again(ctx, g, at(g.began, r.Clock.Now(), plan.Deadline, plan.RequeueAt), failure)
	}
	capacity{r}.settle(g)
	tracing{r}.waits(ctx, req.NamespacedName, plan)
	if actErr == nil && g.Migration.IsFinal() && len(plan.Actions) > 0 {
		// The remaining cleanup has no event of its own.
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	}
	return storer{r}.result(ctx, g, plan, actErr)
}
