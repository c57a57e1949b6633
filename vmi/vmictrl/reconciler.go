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
	"github.com/virtloom/virtloom/internal/retold"
	"github.com/virtloom/virtloom/internal/tracecontext"
	"github.com/virtloom/virtloom/template"
	"github.com/virtloom/virtloom/template/templatectrl"
	"github.com/virtloom/virtloom/vmi"
)

// DefaultWorkers is how many VirtualMachineInstances are worked on at a time,
// as in KubeVirt.
const DefaultWorkers = 10

// firstRetry and lastRetry bound the time after which a failed pass is repeated.
// It doubles in between. What a pass waits for is watched, so that the last is
// for what cannot be: an admission plugin that learns of a change later than
// this controller, a webhook.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = time.Minute
)

var tracer = otel.Tracer("github.com/virtloom/virtloom/vmi/vmictrl")

// Renderer renders the Pods of a guest. *template.Renderer is one. Each Pod has the
// guest's namespace, a controller, the guest's UID as label kubevirt.io/created-by,
// and a name that is the same for the same purpose: that of package template, if a
// guest whose name is taken by another Pod shall be woken when that is gone. It must
// be pure.
type Renderer interface {
	// Launcher returns the Pod a guest runs in, controlled by the guest.
	Launcher(in template.Input) (*corev1.Pod, error)
	// Temporary returns the first consumer of a guest's claims, controlled by the
	// guest and with the annotation kubevirt.io/ephemeral-provisioning.
	Temporary(in template.Input) (*corev1.Pod, error)
	// HotplugAttachment returns the Pod that brings volumes to the guest's node, and
	// HotplugTrigger the one that has a claim provisioned there; both are controlled by
	// the guest's Pod.
	HotplugAttachment(in template.Input) (*corev1.Pod, error)
	HotplugTrigger(in template.Input) (*corev1.Pod, error)
}

// Reconciler takes VirtualMachineInstances from the first sight to the node
// and back. Fields without a stated default are required; SetupWithManager
// checks them. Fields are not changed after that.
type Reconciler struct {
	// Client reads from caches and writes; APIReader reads without a cache.
	Client    client.Client
	APIReader client.Reader
	// LauncherImage is the image of the guests' Pods.
	LauncherImage string
	// SidecarShimImage is the image of hook sidecars that name none. Defaults to the one
	// beside LauncherImage.
	SidecarShimImage string
	// Scope is which guests there are to look after. Defaults to all.
	Scope Scope
	// Name is that of the controller. Defaults to vmi. A manager has one Reconciler, as it
	// has each index once.
	Name string
	// Renderer defaults to template.Default().
	Renderer Renderer
	// NetworkAnnotations are what a Pod that runs a guest shall carry of its networks.
	// Defaults to ActiveNetworks.
	NetworkAnnotations PodAnnotator
	// StorageAnnotations are those for backup tools, and StorageKeys all that it may
	// generate. They default to template.VeleroHooks and its keys.
	StorageAnnotations template.AnnotationGenerator
	StorageKeys        []string
	// CIDs gives guests their addresses on VSOCK. Defaults to vmi.NewCIDs, which knows the
	// guests of this process: shards need one that they share.
	CIDs vmi.CIDAllocator
	// Recorder tells events of the guests. Defaults to none.
	Recorder events.EventRecorder
	// Gate notes own writes and tells whether caches show them. Defaults to one of the
	// Reconciler's own.
	Gate *expectationsctrl.Gate
	// Observer is told what becomes of own writes, and of live reads if it is an
	// expectationsctrl.LiveReads. Defaults to nobody. Not used with Gate.
	Observer expectations.Observer
	// Metrics is told of guests and passes. Defaults to nobody.
	Metrics *Metrics
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// Workers defaults to DefaultWorkers.
	Workers int
	// Config is handed to vmi.Decide, with the settings of the cluster's KubeVirt object
	// if there is one; it holds the replaceable parts of the decision: SpecValidator,
	// NetworkStatus, MigrationEvaluator, TopologyHints. Its LauncherImage is that above.
	Config vmi.Config
	// SilentAfter is how long a node may give no sign of life before its guests count
	// as lost. Defaults to vmi.DefaultSilentAfter.
	SilentAfter time.Duration
	// Fencer is asked about silent nodes; OutOfService is one. Defaults to none: then only that the Node
	// object is gone ends a guest that was lost with its node.
	Fencer handoff.Fencer

	// limiter spaces out the repetitions of failed passes.
	limiter workqueue.TypedRateLimiter[reconcile.Request]
	// gatherer reads what Pods are rendered from.
	gatherer templatectrl.Gatherer
	// nodes tells which nodes are silent.
	nodes *nodes
	// backlog has the queue of the guests, for those who wake them, and those of which something was not written,
	// as others waited.
	backlog backlog.Backlog
	// kinds tells which kinds the cluster serves of those it need not.
	kinds *kinds
	// told is in which words the failure of each guest was told.
	told retold.Failures
	// starts are the starts of guests under way, for their traces.
	starts *tracecontext.Operations
	// observes says that it looks only.
	observes bool
	// cids is done once the allocator knows the CIDs of all guests.
	cids once
}

// SetupWithManager checks the fields and registers indexes, watches and the
// controller with the manager.
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
	b := ctrl.NewControllerManagedBy(mgr).Named(r.Name).WithOptions(controller.Options{
		MaxConcurrentReconciles: r.Workers,
		RateLimiter:             r.limiter,
	})
	r.nodes = &nodes{client: r.Client, clock: r.Clock, after: r.SilentAfter, guests: r.onNode, queue: &r.backlog, closes: min(closeAfter, r.SilentAfter), recorder: r.Recorder}
	c, err := r.watch(b).Build(r)
	if err != nil {
		return fmt.Errorf("vmictrl: %w", err)
	}
	r.kinds = newKinds(mgr, c, r.optional(), r.unserved)
	return errors.Join(r.nodes.setup(mgr, r.Name), r.kinds.setup(mgr, r.Name), r.Metrics.setup(ctx, mgr, r))
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
		r.Workers = DefaultWorkers
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

// parts fills in the replaceable parts that are not set.
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

// Plan tells what the next pass over a guest would do, and what it waits for, and does
// nothing of it; nil if there is no such guest, or it is out of scope, or what was last
// written to it is not seen yet. It reads from the manager's caches, which must have been
// started, asks no Fencer and reserves nothing; see vmi.Plan on how to print it.
func (r *Reconciler) Plan(ctx context.Context, guest types.NamespacedName) (*vmi.Plan, error) {
	obj, err := r.read(ctx, guest)
	if err != nil {
		return nil, err
	}
	g, err := r.gather(ctx, guest, obj, true)
	if err != nil || g == nil || g.outdated {
		return nil, err
	}
	plan := vmi.Decide(g.Snapshot, r.Clock.Now())
	return &plan, nil
}

// Reconcile makes one pass over one VirtualMachineInstance.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (result reconcile.Result, err error) {
	obj, err := r.read(ctx, req.NamespacedName)
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

	g, err := r.gather(ctx, req.NamespacedName, obj, false)
	if err != nil || g == nil {
		outcome = passGone
		return reconcile.Result{}, err
	}
	if g.outdated {
		outcome = passHeld
		return r.result(g, vmi.Plan{}, nil)
	}
	result, plan, err := r.pass(ctx, g, &outcome)
	span.SetAttributes(attribute.String("phase", string(plan.VMI.Status.Phase)))
	return result, err
}

// pass decides, acts and stores, or postpones what can be, and says when to look again.
func (r *Reconciler) pass(ctx context.Context, g *gathered, outcome *string) (result reconcile.Result, plan vmi.Plan, err error) {
	plan, late, actErr := r.step(ctx, g, outcome)
	if actErr == nil && g.Failure == nil {
		leaps, err := r.leap(ctx, g, &plan)
		switch {
		case err != nil:
			return result, plan, err
		case leaps && g.stored == nil:
			*outcome = passPostponed
			result, err = r.result(g, plan, nil)
			return backlog.Later(result, backlog.Again), plan, err
		case leaps:
			plan, late, actErr = r.step(ctx, g, outcome)
		}
	}
	r.Metrics.planned(g.owner.Key, plan)
	switch err := r.store(ctx, g, plan); {
	case outrun(err):
		*outcome = passOutrun
		return reconcile.Result{RequeueAfter: conflictRetry}, plan, nil
	case err != nil:
		return result, plan, errors.Join(actErr, err)
	}
	r.waits(ctx, g.owner.Key, plan)
	result, err = r.result(g, plan, actErr)
	if late {
		return backlog.Later(result, backlog.Again), plan, err
	}
	r.backlog.Done(g.owner.Key)
	return result, plan, err
}

// step decides, acts, and decides on what came of it. It is late if some of the actions have to wait for others'.
func (r *Reconciler) step(ctx context.Context, g *gathered, outcome *string) (plan vmi.Plan, late bool, err error) {
	plan = vmi.Decide(g.Snapshot, r.Clock.Now())
	late = r.leavePod(g, &plan)
	err = r.act(ctx, g, plan)
	if len(plan.Actions) > 0 {
		*outcome = passActed
		plan = vmi.Decide(g.Snapshot, r.Clock.Now())
	}
	return plan, late, err
}
