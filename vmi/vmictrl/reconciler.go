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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// Renderer renders the Pod a guest runs in. *template.Renderer is one.
type Renderer interface {
	// Launcher returns the Pod, with namespace, the guest as its controller, the
	// guest's UID as label kubevirt.io/created-by, and a name that is the same
	// for the same guest: template.LauncherName, if a guest whose name is taken
	// by another Pod shall be woken when that is gone. It must be pure.
	Launcher(in template.Input) (*corev1.Pod, error)
}

// Reconciler takes VirtualMachineInstances from the first sight to the node
// and back. Fields without a stated default are required; SetupWithManager
// checks them.
type Reconciler struct {
	// Client reads from caches and writes; APIReader reads without a cache.
	Client    client.Client
	APIReader client.Reader
	// LauncherImage is the image of the guests' Pods.
	LauncherImage string
	// Renderer defaults to template.Default().
	Renderer Renderer
	// Recorder tells events of the guests. Defaults to none.
	Recorder events.EventRecorder
	// Observer is told what becomes of own writes, and of live reads if it is an
	// expectationsctrl.LiveReads. Defaults to nobody.
	Observer expectations.Observer
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// Workers defaults to DefaultWorkers.
	Workers int
	// Config is handed to vmi.Decide.
	Config vmi.Config
	// SilentAfter is how long a node may give no sign of life before its guests count
	// as lost. Defaults to vmi.DefaultSilentAfter.
	SilentAfter time.Duration
	// Fencer is asked about silent nodes. Defaults to none: then only that the Node
	// object is gone ends a guest that was lost with its node.
	Fencer handoff.Fencer

	// gate notes own writes and tells whether the caches show them.
	gate *expectationsctrl.Gate
	// limiter spaces out the repetitions of failed passes.
	limiter workqueue.TypedRateLimiter[reconcile.Request]
	// gatherer reads what Pods are rendered from.
	gatherer templatectrl.Gatherer
	// nodes tells which nodes are silent.
	nodes *nodes
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
		return fmt.Errorf("vmictrl: %w", err)
	}
	if err := index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).Named("vmi").WithOptions(controller.Options{
		MaxConcurrentReconciles: r.Workers,
		RateLimiter:             r.limiter,
	})
	r.nodes = &nodes{client: r.Client, clock: r.Clock, after: r.SilentAfter, guests: r.onNode}
	if err := r.watch(b).Complete(r); err != nil {
		return fmt.Errorf("vmictrl: %w", err)
	}
	return r.nodes.setup(mgr)
}

func (r *Reconciler) complete() error {
	var missing []error
	need := func(ok bool, field string) {
		if !ok {
			missing = append(missing, fmt.Errorf("vmictrl: Reconciler.%s is required", field))
		}
	}
	need(r.Client != nil, "Client")
	need(r.APIReader != nil, "APIReader")
	need(r.LauncherImage != "", "LauncherImage")
	if r.Renderer == nil {
		r.Renderer = template.Default()
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
	r.gatherer = templatectrl.Gatherer{Client: r.Client, Live: r.APIReader}
	if r.limiter == nil {
		r.limiter = workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
	}
	return errors.Join(missing...)
}

// Reconcile makes one pass over one VirtualMachineInstance.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (_ reconcile.Result, err error) {
	ctx, span := tracer.Start(ctx, "vmi.Reconcile")
	span.SetAttributes(attribute.String("vmi", req.String()))
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}()

	g, err := r.gather(ctx, req.NamespacedName)
	if err != nil || g == nil {
		return reconcile.Result{}, err
	}
	if g.outdated {
		return r.result(g, vmi.Plan{}, nil)
	}
	plan, err := vmi.Decide(g.Snapshot, r.Clock.Now())
	if err != nil {
		return reconcile.Result{}, err
	}
	actErr := r.act(ctx, g, plan)
	if len(plan.Actions) > 0 {
		if plan, err = vmi.Decide(g.Snapshot, r.Clock.Now()); err != nil {
			return reconcile.Result{}, err
		}
	}
	span.SetAttributes(attribute.String("phase", string(plan.VMI.Status.Phase)))
	switch err := r.store(ctx, g, plan); {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	case err != nil:
		return reconcile.Result{}, errors.Join(actErr, err)
	}
	return r.result(g, plan, actErr)
}
