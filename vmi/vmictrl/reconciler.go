// SPDX-License-Identifier: Apache-2.0

package vmictrl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/handoff"
	"github.com/virtloom/virtloom/internal/backlog"
	"github.com/virtloom/virtloom/internal/failuretext"
	"github.com/virtloom/virtloom/internal/optional"
	"github.com/virtloom/virtloom/internal/tracecontext"
	"github.com/virtloom/virtloom/internal/vmipatch"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/templatectrl"
	"github.com/virtloom/virtloom/vmi"
)

// defaultWorkers is the default number of VirtualMachineInstances reconciled concurrently, as in
// KubeVirt.
const defaultWorkers = 10

// firstRetry and lastRetry bound the back-off of failed passes, which doubles in between. Since
// all dependencies are watched, the last is for those that cannot be: an admission plugin that
// learns of a change later than this controller, a webhook.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = time.Minute
)

var tracer = otel.Tracer("github.com/virtloom/virtloom/vmi/vmictrl")

// Renderer renders the Pods of a VMI. *template.Renderer implements it. Each Pod has the VMI's
// namespace, a controller, the VMI's UID as label kubevirt.io/created-by, and a name that is the
// same for the same purpose. The launcher Pod must be named as by package template, so that a VMI
// whose name is taken by another Pod is reconciled when that is deleted. Implementations must be
// pure.
type Renderer interface {
	// Launcher returns the launcher Pod, controlled by the VMI.
	Launcher(in template.Input) (*corev1.Pod, error)
	// Temporary returns the first consumer of a VMI's claims, controlled by the VMI and
	// with the annotation kubevirt.io/ephemeral-provisioning.
	Temporary(in template.Input) (*corev1.Pod, error)
	// HotplugAttachment returns the Pod that attaches volumes to the VMI's node, and
	// HotplugTrigger the first consumer of a claim there; both are controlled by the
	// launcher Pod.
	HotplugAttachment(in template.Input) (*corev1.Pod, error)
	HotplugTrigger(in template.Input) (*corev1.Pod, error)
}

// Reconciler reconciles VirtualMachineInstances from creation to the handoff to the node, and
// after their end. Fields without a stated default are required; SetupWithManager validates
// them. Fields must not be changed after that.
type Reconciler struct {
	// Client reads from caches and writes; APIReader reads without a cache.
	Client    client.Client
	APIReader client.Reader
	// LauncherImage is the image of launcher Pods.
	LauncherImage string
	// SidecarShimImage is the image of hook sidecars without an image. Defaults to the one
	// that belongs to LauncherImage.
	SidecarShimImage string
	// Scope selects the VMIs to reconcile. Defaults to all.
	Scope Scope
	// Name is the name of the controller. Defaults to vmi. A manager can have only one
	// Reconciler, because it has each index once.
	Name string
	// Renderer defaults to template.Default().
	Renderer Renderer
	// NetworkAnnotations generates the network annotations of a running launcher Pod.
	// Defaults to ActiveNetworks.
	NetworkAnnotations PodAnnotator
	// StorageAnnotations generates annotations for backup tools, and StorageKeys are all keys
	// it may generate. They default to template.VeleroHooks and its keys.
	StorageAnnotations template.AnnotationGenerator
	StorageKeys        []string
	// CIDs assigns VSOCK CIDs. Defaults to vmi.NewCIDs, which knows the VMIs of this process:
	// shards need a shared allocator.
	CIDs vmi.CIDAllocator
	// Recorder emits events for VMIs. Nil disables events.
	Recorder events.EventRecorder
	// Gate tracks own writes and reports whether caches have observed them. Defaults to a
	// new one.
	Gate *expectationsctrl.Gate
	// Observer is notified of the outcome of own writes, and of live reads if it is an
	// expectationsctrl.LiveReads. May be nil. Not used with Gate.
	Observer expectations.Observer
	// Metrics counts VMIs and passes. May be nil.
	Metrics *Metrics
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
	// Workers defaults to 10.
	Workers int
	// Config is passed to vmi.Decide, with the settings of the cluster's KubeVirt object if
	// there is one; it contains the replaceable parts of the decision: SpecValidator,
	// NetworkStatus, MigrationEvaluator, TopologyHints. Its LauncherImage is the one above.
	Config vmi.Config
	// SilentAfter is the time without a heartbeat after which a node counts as unresponsive.
	// Defaults to vmi.DefaultSilentAfter.
	SilentAfter time.Duration
	// Fencer is queried about unresponsive nodes; OutOfService is one. If nil, only a missing Node object
	// releases a VMI that was lost with its node.
	Fencer handoff.Fencer
	// Beside, if set, reports whether a controller of VMs in the same process has a backlog (its method Busy). Writes that
	// can wait for other VMIs wait for those too.
	Beside func() bool

	// limiter is the back-off of failed passes.
	limiter workqueue.TypedRateLimiter[reconcile.Request]
	// gatherer reads the template facts.
	gatherer templatectrl.Gatherer
	// nodes detects unresponsive nodes.
	nodes *nodes
	// backlog has the queue of the controller, for other sources of requests, and the VMIs with deferred writes.
	backlog backlog.Backlog
	// kinds detects which optional kinds the cluster serves.
	kinds *optional.Kinds
	// reported has the reported wording of each VMI's failure.
	reported failuretext.Failures
	// starts are the traced starts of VMIs.
	starts *tracecontext.Operations
	// observes is true for a read-only observer.
	observes bool
	// cids is done once the allocator knows the CIDs of all VMIs.
	cids once
}

// SetupWithManager validates the fields and registers indexes, watches and the controller with
// the manager.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	if err := r.complete(); err != nil {
		return err
	}
	var err error
	if r.Gate == nil {
		r.Gate, err = expectationsctrl.NewGate(mgr, expectationsctrl.Options{
			Clock: r.Clock, Client: r.Client, APIReader: r.APIReader, Observer: r.Observer,
		})
		if err != nil {
			return fmt.Errorf("vmictrl: %w", err)
		}
	}
	if err := index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	r.backlog.Beside(r.Beside)
	b := ctrl.NewControllerManagedBy(mgr).Named(r.Name).WithOptions(controller.Options{
		MaxConcurrentReconciles: r.Workers,
		RateLimiter:             r.limiter,
	})
	r.nodes = &nodes{client: r.Client, clock: r.Clock, after: r.SilentAfter, vmis: nodeGatherer{r}.onNode, queue: &r.backlog, closes: min(closeAfter, r.SilentAfter), recorder: r.Recorder}
	c, err := watcher{r}.watch(b).Build(r)
	if err != nil {
		return fmt.Errorf("vmictrl: %w", err)
	}
	r.kinds = optional.New(mgr, c, gatherer{r}.optional(), gatherer{r}.unserved)
	return errors.Join(r.nodes.setup(mgr, r.Name), r.kinds.Setup(mgr, r.Name), r.Metrics.setup(ctx, mgr, r))
}

func (r *Reconciler) complete() error {
	missing := []error{r.Scope.validate()}
	need := func(ok bool, field string) {
		if !ok {
			missing = append(missing, fmt.Errorf("vmictrl: Reconciler.%s is required", field))
		}
	}
	need(r.Client != nil, "Client")
	need(r.APIReader != nil, "APIReader")
	need(r.LauncherImage != "", "LauncherImage")
	if r.Name == "" {
		r.Name = "vmi"
	}
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.SilentAfter == 0 {
		r.SilentAfter = vmi.DefaultSilentAfter
	}
	if r.Workers == 0 {
		r.Workers = defaultWorkers
	}
	r.parts()
	r.starts = tracecontext.NewOperations(tracer, "vmi.Start", "vmi.Wait")
	r.Config.LauncherImage = r.LauncherImage
	r.gatherer = templatectrl.Gatherer{Client: r.Client, Live: r.APIReader, StateIndex: claimByState}
	if r.limiter == nil {
		r.limiter = workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
	}
	return errors.Join(missing...)
}

// parts sets the defaults of the replaceable parts.
func (r *Reconciler) parts() {
	if r.Renderer == nil {
		r.Renderer = template.Default()
	}
	if r.NetworkAnnotations == nil {
		r.NetworkAnnotations = ActiveNetworks{}
	}
	if r.StorageAnnotations == nil {
		r.StorageAnnotations, r.StorageKeys = template.VeleroHooks{}, template.VeleroHooks{}.Keys()
	}
	if r.CIDs == nil {
		r.CIDs = vmi.NewCIDs(nil)
	}
}

// Busy reports whether more VMIs wait than there are workers.
func (r *Reconciler) Busy() bool { return r.backlog.Busy(r.Workers) }

// Plan returns the plan of the next pass over a VMI, without executing it; nil if the VMI does
// not exist, is out of scope, or the caches have not observed the last write to it. It reads
// from the manager's caches, which must have been started, queries no Fencer and reserves
// nothing; see vmi.Plan for its text form.
func (r *Reconciler) Plan(ctx context.Context, key types.NamespacedName) (*vmi.Plan, error) {
	obj, err := gatherer{r}.read(ctx, key)
	if err != nil {
		return nil, err
	}
	g, err := gatherer{r}.gather(ctx, key, obj, true)
	if err != nil || g == nil || g.outdated {
		return nil, err
	}
	plan := vmi.Decide(g.Snapshot, r.Clock.Now())
	return &plan, nil
}

// Reconcile makes one pass over one VirtualMachineInstance.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (result reconcile.Result, err error) {
	obj, err := gatherer{r}.read(ctx, req.NamespacedName)
	if err != nil {
		r.Metrics.passed(passFailed, err)
		return reconcile.Result{}, err
	}
	ctx, span := tracer.Start(r.joined(ctx, req.NamespacedName, obj), "vmi.Reconcile")
	span.SetAttributes(attribute.String("vmi", req.String()))
	outcome := passIdle
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
		r.Metrics.passed(outcome, err)
		backlog.Usual(&result)
	}()

	g, err := gatherer{r}.gather(ctx, req.NamespacedName, obj, false)
	if err != nil || g == nil {
		outcome = passGone
		return reconcile.Result{}, err
	}
	if g.outdated {
		outcome = passHeld
		return actor{r}.result(g, vmi.Plan{}, nil)
	}
	result, plan, err := r.pass(ctx, g, &outcome)
	span.SetAttributes(attribute.String("phase", string(plan.VMI.Status.Phase)))
	return result, err
}

// pass decides, acts and stores, or defers optional writes, and returns when to requeue.
func (r *Reconciler) pass(ctx context.Context, g *gathered, outcome *string) (result reconcile.Result, plan vmi.Plan, err error) {
	plan, late, actErr := r.step(ctx, g, outcome)
	if actErr == nil && g.Failure == nil && (actor{r}).deferStatus(g, plan) {
		*outcome = passPostponed
		result, err = actor{r}.result(g, plan, nil)
		return backlog.Later(result, backlog.Again), plan, err
	}
	r.Metrics.planned(g.owner.Key, plan)
	switch err := (actor{r}).store(ctx, g, plan); {
	case vmipatch.LostRace(err):
		*outcome = passLostRace
		return reconcile.Result{RequeueAfter: conflictRetry}, plan, nil
	case err != nil:
		return result, plan, errors.Join(actErr, err)
	}
	r.waits(ctx, g.owner.Key, plan)
	result, err = actor{r}.result(g, plan, actErr)
	if late {
		return backlog.Later(result, backlog.Again), plan, err
	}
	r.backlog.Done(g.owner.Key)
	return result, plan, err
}

// step decides, acts, and decides again if there are results. No pass decides more often. late is true if some actions
// were deferred.
func (r *Reconciler) step(ctx context.Context, g *gathered, outcome *string) (plan vmi.Plan, late bool, err error) {
	plan = vmi.Decide(g.Snapshot, r.Clock.Now())
	late = actor{r}.deferPodPatch(g, &plan)
	err = actor{r}.act(ctx, g, plan)
	if len(plan.Actions) > 0 {
		*outcome = passActed
		plan = vmi.Decide(g.Snapshot, r.Clock.Now())
	}
	return plan, late, err
}
