// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/evacuation"
)

// Updater migrates, or evicts, VMIs with outdated Pods, as evacuation.UpdateWorkloads decides, and
// counts them in the status of the KubeVirt object. It decides about all of them in one pass, since
// limits apply to all. It creates and deletes migrations; a [Reconciler] executes them.
type Updater struct {
	// Migrations is the migration controller of the same manager, set up before; its client, clock,
	// recorder, configuration, launcher image and indexes are shared. Required.
	Migrations *Reconciler
	// Observer receives the outcome of own writes. Defaults to none.
	Observer expectations.Observer

	automatic
	// batch is when VMIs were last evicted, or when this process began. refused is when a VMI's
	// eviction was denied, or has failed otherwise. Only the single worker uses these and the next.
	batch   time.Time
	refused map[types.UID]time.Time
	// reported has the migrations already reported as futile.
	reported map[types.UID]bool
}

// workloads is the only key.
var workloads = types.NamespacedName{Name: "workloads"}

// SetupWithManager checks the fields and registers indexes, watches and the controller with the
// manager.
func (u *Updater) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	var err error
	if u.automatic, err = newAutomatic(mgr, u.Migrations, u.Observer); err != nil {
		return err
	}
	u.refused = map[types.UID]time.Time{}
	if err := u.index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).Named("workload-update").
		WithOptions(controller.Options{MaxConcurrentReconciles: 1})
	if err := u.watch(b).Complete(u); err != nil {
		return fmt.Errorf("migrationctrl: %w", err)
	}
	return nil
}

// Reconcile makes one pass over all VMIs to be updated.
func (u *Updater) Reconcile(ctx context.Context, _ reconcile.Request) (_ reconcile.Result, err error) {
	ctx, span := tracer.Start(ctx, "workloadUpdate.Reconcile")
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}()
	if u.batch.IsZero() {
		u.batch = u.r.Clock.Now()
	}
	in, err := u.gather(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	out := evacuation.UpdateWorkloads(in, u.r.Clock.Now())
	span.SetAttributes(attribute.Int("guests", len(in.VMIs)), attribute.Int("outdated", out.Outdated))
	u.reportVain(out.Standings)
	err = errors.Join(u.do(ctx, workloads, out.Standings), u.evictAll(ctx, out.Standings), u.count(ctx, in.KubeVirt, out))
	return u.conclude(ctx, workloads, out.Standings, err)
}

// gather reads the VMIs that need an update, and those with a migration created for one.
func (u *Updater) gather(ctx context.Context) (evacuation.Workloads, error) {
	in := evacuation.Workloads{LauncherImage: u.r.LauncherImage, LastBatch: u.batch, Refused: u.refused}
	kv, err := u.r.gatherer.KubeVirt(ctx)
	if err != nil {
		return in, fmt.Errorf("migrationctrl: %w", err)
	}
	in.KubeVirt, in.Config = kv, u.r.config(kv)
	if kv == nil {
		return in, nil
	}
	vmis, err := u.concerned(ctx)
	if err != nil {
		return in, err
	}
	here := map[types.UID]bool{}
	for _, vmi := range vmis {
		g, err := u.vmi(ctx, workloads, vmi)
		if err != nil {
			return in, err
		}
		in.VMIs, here[vmi.UID] = append(in.VMIs, g), true
	}
	for uid := range u.refused {
		if !here[uid] {
			delete(u.refused, uid)
		}
	}
	var running v1.VirtualMachineInstanceMigrationList
	if err := u.r.Client.List(ctx, &running, client.MatchingFields{migrationRunning: yes}, readOnly); err != nil {
		return in, fmt.Errorf("migrationctrl: list migrations that run: %w", err)
	}
	in.Running = len(running.Items)
	in.Fleet, err = u.fleet(ctx, kv, in.VMIs)
	return in, err
}

func (u *Updater) concerned(ctx context.Context) ([]*v1.VirtualMachineInstance, error) {
	var need v1.VirtualMachineInstanceList
	if err := u.r.Client.List(ctx, &need, client.MatchingFields{vmiNeedsUpdate: yes}, readOnly); err != nil {
		return nil, fmt.Errorf("migrationctrl: list VMIs to update: %w", err)
	}
	out, seen := pointers(need.Items), map[types.UID]bool{}
	for _, vmi := range out {
		seen[vmi.UID] = true
	}
	var made v1.VirtualMachineInstanceMigrationList
	if err := u.r.Client.List(ctx, &made, client.MatchingFields{migrationOfUpdate: yes}, readOnly); err != nil {
		return nil, fmt.Errorf("migrationctrl: list migrations for updates: %w", err)
	}
	more, err := u.vmisOf(ctx, made.Items, seen)
	return append(out, more...), err
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts/status,verbs=patch

// count stores the number of outdated VMIs.
func (u *Updater) count(ctx context.Context, kv *v1.KubeVirt, out evacuation.Updates) error {
	if !out.Known {
		return nil
	}
	u.r.Metrics.outdatedAre(out.Outdated)
	if have := kv.Status.OutdatedVirtualMachineInstanceWorkloads; have != nil && *have == out.Outdated {
		return nil
	}
	next := kv.DeepCopy()
	next.Status.OutdatedVirtualMachineInstanceWorkloads = &out.Outdated
	if err := u.r.Client.Status().Patch(ctx, next, client.MergeFrom(kv)); err != nil {
		return fmt.Errorf("migrationctrl: count outdated VMIs in KubeVirt %s/%s: %w", kv.Namespace, kv.Name, err)
	}
	return nil
}

// Event reasons: of evictions, as KubeVirt names them, and of futile updates.
const (
	eventEvicted     = "SuccessfulEvict"
	eventEvictFailed = "FailedEvict"
	eventInVain      = "WorkloadUpdateInVain"
)

// reportVain emits an event once per futile update.
func (u *Updater) reportVain(all []evacuation.Standing) {
	reported := map[types.UID]bool{}
	for i := range all {
		s := &all[i]
		if s.Reason != evacuation.ReasonUpdateInVain {
			continue
		}
		if !u.reported[s.Migration.UID] {
			u.emit(s.VMI, migration.Event{Warning: true, Reason: eventInVain, Message: s.Message})
		}
		reported[s.Migration.UID] = true
	}
	u.reported = reported
}

// errRefused marks a denied eviction, which is expected: it is retried in its turn.
var errRefused = errors.New("the eviction was denied")

// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create

// evict requests the eviction of the VMI's Pod, subject to budgets and strategies. Until the Pod is
// observed to be deleted, nothing else is done to the VMI.
func (u *Updater) evict(ctx context.Context, s *evacuation.Standing) error {
	uid := s.Pod.UID
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: s.Pod.Namespace, Name: s.Pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
	}
	ref := expectations.Ref{Kind: corev1.SchemeGroupVersion.WithKind(podKind).GroupKind(), Namespace: s.Pod.Namespace, Name: s.Pod.Name}
	noted := u.gate.Tracker().ExpectDelete(owner(workloads, s.VMI), ref, uid, s.Pod.ResourceVersion)
	err := u.r.Client.SubResource("eviction").Create(ctx, s.Pod.DeepCopy(), eviction)
	switch expectations.Classify(expectations.Delete, err) {
	case expectations.Accepted:
		u.gate.Tracker().Confirm(noted, nil)
	case expectations.Refused:
		u.gate.Tracker().Cancel(noted)
	}
	if err == nil || apierrors.IsNotFound(err) {
		u.faults.Over(client.ObjectKeyFromObject(s.VMI))
		u.emit(s.VMI, migration.Event{Reason: eventEvicted, Message: "Evicted Pod " + s.Pod.Name + ": " + s.Message})
		return nil
	}
	u.fault(s.VMI, migration.Event{Warning: true, Reason: eventEvictFailed, Message: "evicting Pod " + s.Pod.Name + " failed: " + err.Error()})
	if apierrors.IsTooManyRequests(err) {
		err = fmt.Errorf("%w: %w", errRefused, err)
	}
	return fmt.Errorf("migrationctrl: evict Pod %s/%s: %w", s.Pod.Namespace, s.Pod.Name, err)
}

// evictAll evicts the VMIs of a batch; an eviction that is denied, or fails otherwise as for a Pod
// with two budgets, blocks no other.
func (u *Updater) evictAll(ctx context.Context, all []evacuation.Standing) error {
	var errs []error
	for i := range all {
		s := &all[i]
		if s.Verb != evacuation.EvictPod {
			continue
		}
		u.batch = u.r.Clock.Now()
		err := u.evict(ctx, s)
		if err != nil {
			u.refused[s.VMI.UID] = u.batch
		}
		if errors.Is(err, errRefused) {
			ctrl.LoggerFrom(ctx).V(1).Info("Evicting Pod was denied, requeueing", "virtualMachineInstance", client.ObjectKeyFromObject(s.VMI), "error", err.Error())
			continue
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
