// SPDX-License-Identifier: Apache-2.0

package vmctrl

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	"github.com/virtloom/virtloom/internal/backlog"
	"github.com/virtloom/virtloom/internal/failuretext"
	"github.com/virtloom/virtloom/internal/optional"
	"github.com/virtloom/virtloom/template/templatectrl"
	"github.com/virtloom/virtloom/vm"
)

// DefaultWorkers is the default number of VirtualMachines reconciled concurrently. (KubeVirt: 3, which each wait for
// two or three writes)
const DefaultWorkers = 10

// firstRetry and lastRetry bound the back-off of failed passes, which doubles in between.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = time.Minute
)

// Reconciler reconciles VirtualMachines. Fields without a stated default are required; SetupWithManager validates
// them. Fields must not be changed after that.
type Reconciler struct {
	// Client reads from caches and writes; APIReader reads without a cache.
	Client    client.Client
	APIReader client.Reader
	// Name is the name of the controller. Defaults to vm. A manager can have only one Reconciler, because it has each
	// index once.
	Name string
	// Recorder emits events for VMs. Nil disables events.
	Recorder events.EventRecorder
	// Gate tracks own writes and reports whether caches have observed them. Defaults to a new one.
	Gate *expectationsctrl.Gate
	// Observer is notified of the outcome of own writes, and of live reads if it is an
	// expectationsctrl.LiveReads. May be nil. Not used with Gate.
	Observer expectations.Observer
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
	// Workers defaults to DefaultWorkers.
	Workers int
	// Config is passed to vm.Decide, with the settings of the cluster's KubeVirt object if there is one.
	Config vm.Config
	// Beside, if set, reports whether a controller of VMIs in the same process has a backlog (its method Busy). A status
	// that can wait for other VMs waits for those too.
	Beside func() bool

	// observes is true if only Plan is used, and nothing is written.
	observes bool
	// limiter is the back-off of failed passes.
	limiter workqueue.TypedRateLimiter[reconcile.Request]
	// cluster reads the KubeVirt object.
	cluster templatectrl.Gatherer
	// kinds detects which optional kinds the cluster serves.
	kinds *optional.Kinds
	// backlog has the queue of the controller, for other sources of requests, and the VMs with a deferred status.
	backlog backlog.Backlog
	// reported has the reported wording of each VM's failure.
	reported failuretext.Failures
}

// SetupWithManager validates the fields and registers indexes, watches and the controller with the manager.
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
			return fmt.Errorf("vmctrl: %w", err)
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
	c, err := watcher{r}.watch(b).Build(r)
	if err != nil {
		return fmt.Errorf("vmctrl: %w", err)
	}
	r.kinds = optional.New(mgr, c, watcher{r}.optional(), watcher{r}.unserved)
	return r.kinds.Setup(mgr, r.Name)
}

func (r *Reconciler) complete() error {
	var missing []error
	if r.Client == nil {
		missing = append(missing, errors.New("vmctrl: Reconciler.Client is required"))
	}
	if r.APIReader == nil {
		missing = append(missing, errors.New("vmctrl: Reconciler.APIReader is required"))
	}
	if r.Name == "" {
		r.Name = "vm"
	}
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.Workers == 0 {
		r.Workers = DefaultWorkers
	}
	if r.limiter == nil {
		r.limiter = workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
	}
	r.cluster = templatectrl.Gatherer{Client: r.Client}
	return errors.Join(missing...)
}

// Reconcile makes one pass over one VirtualMachine.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (result reconcile.Result, err error) {
	defer func() { backlog.Usual(&result) }()
	g, err := gatherer{r}.gather(ctx, req.NamespacedName, true)
	if err != nil || g == nil {
		return reconcile.Result{}, err
	}
	if g.outdated {
		return r.result(g, vm.Plan{}), nil
	}
	plan, err := r.step(ctx, g)
	if lostRace(err) {
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	}
	if err == nil {
		if after, yes := (actor{r}).deferStatus(g, plan); yes {
			return backlog.Later(r.result(g, plan), after), nil
		}
	}
	switch failed := (actor{r}).store(ctx, g, plan); {
	case lostRace(failed):
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	case failed != nil:
		return reconcile.Result{}, errors.Join(err, failed)
	}
	r.backlog.Done(req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	return r.result(g, plan), nil
}

// step decides and acts, and decides again if an action has failed. After the creation of a VMI it decides again about the
// status, which then is what it will be once the cache has the VMI, and is stored once. No pass decides more often.
func (r *Reconciler) step(ctx context.Context, g *gathered) (vm.Plan, error) {
	plan := vm.Decide(g.Snapshot, r.Clock.Now())
	err := actor{r}.act(ctx, g, plan)
	next, failed := g.Snapshot, g.Failure != nil
	switch {
	case failed:
	case g.created != nil:
		next.VM, next.VMI = plan.VM, g.created
		next.Pending = append(next.Pending, vm.Write{Verb: vm.CreateVMI, Name: g.created.Name})
	default:
		return plan, err
	}
	again := vm.Decide(next, r.Clock.Now())
	if failed {
		return again, err
	}
	plan.VM = again.VM
	return plan, err
}

// result returns when to requeue.
func (r *Reconciler) result(g *gathered, plan vm.Plan) reconcile.Result {
	at := plan.RequeueAt
	for _, d := range []time.Time{g.verdict.Deadline, g.due} {
		if !d.IsZero() && (at == nil || d.Before(*at)) {
			at = &d
		}
	}
	if at == nil {
		return reconcile.Result{}
	}
	return reconcile.Result{RequeueAfter: max(at.Sub(r.Clock.Now()), time.Millisecond)}
}

// Busy reports whether more VMs wait than there are workers.
func (r *Reconciler) Busy() bool { return r.backlog.Busy(r.Workers) }

// Plan returns the plan of the next pass over a VM, without executing it; nil if the VM does not exist, or the caches have
// not observed the last write to it. It reads from the manager's caches, which must have been started, or what an
// observer reads ([Reconciler.Observe]); see vm.Plan for its text form.
func (r *Reconciler) Plan(ctx context.Context, key types.NamespacedName) (*vm.Plan, error) {
	g, err := gatherer{r}.gather(ctx, key, false)
	if err != nil || g == nil || g.outdated {
		return nil, err
	}
	plan := vm.Decide(g.Snapshot, r.Clock.Now())
	return &plan, nil
}
