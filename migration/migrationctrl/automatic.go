// SPDX-License-Identifier: Apache-2.0

package migrationctrl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/virtloom/virtloom/expectations"
	"github.com/virtloom/virtloom/expectations/expectationsctrl"
	"github.com/virtloom/virtloom/internal/failuretext"
	"github.com/virtloom/virtloom/migration"
	"github.com/virtloom/virtloom/migration/evacuation"
)

// readOnly makes a cache return its objects without a copy: no code here changes what it has read.
const readOnly = client.UnsafeDisableDeepCopy

// automatic is shared by the controllers that migrate VMIs without a user's request. Each VMI is an
// owner of writes of its own, so that one with unobserved writes blocks no other.
type automatic struct {
	r    *Reconciler
	gate *expectationsctrl.Gate
	// nodes caches the hash of the cluster.
	nodes *fleet
	// retries delays the next pass over a key after a failure.
	retries workqueue.TypedRateLimiter[types.NamespacedName]
	// faults suppresses repeated failure events per VMI.
	faults *failuretext.Failures
}

// After a failure a key is requeued after firstRetry, then after twice as long, at most after
// lastRetry.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
)

func newRetries() workqueue.TypedRateLimiter[types.NamespacedName] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, lastRetry)
}

// newAutomatic shares the parts of a Reconciler that is set up already.
func newAutomatic(c expectationsctrl.Cluster, r *Reconciler, o expectations.Observer) (automatic, error) {
	if r == nil || r.gate == nil {
		return automatic{}, errors.New("migrationctrl: field Migrations is required and must be set up with the manager first")
	}
	gate, err := expectationsctrl.NewGate(c, expectationsctrl.Options{
		Clock: r.Clock, Client: r.Client, APIReader: r.APIReader, Observer: o,
	})
	return automatic{r: r, gate: gate, nodes: &fleet{}, retries: newRetries(), faults: &failuretext.Failures{}}, err
}

// owner returns the owner of writes for the VMI within the key.
func owner(key types.NamespacedName, vmi *v1.VirtualMachineInstance) expectations.Owner {
	return expectations.Owner{Key: key, UID: vmi.UID}
}

// vmi reads the VMI's objects.
func (a automatic) vmi(ctx context.Context, key types.NamespacedName, vmi *v1.VirtualMachineInstance) (evacuation.Candidate, error) {
	g := evacuation.Candidate{VMI: vmi}
	// Before anything is read: what is read later may include later writes.
	verdict, err := a.gate.Check(ctx, owner(key, vmi))
	if err != nil {
		return g, fmt.Errorf("migrationctrl: VMI %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	g.Pending = pendingText(verdict)
	var migrations v1.VirtualMachineInstanceMigrationList
	ns := client.InNamespace(vmi.Namespace)
	if err := a.r.Client.List(ctx, &migrations, ns, client.MatchingFields{migrationByVMI: vmi.Name}, readOnly); err != nil {
		return g, fmt.Errorf("migrationctrl: list the migrations of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	var pods corev1.PodList
	if err := a.r.Client.List(ctx, &pods, ns, client.MatchingFields{podByVMI: string(vmi.UID)}, readOnly); err != nil {
		return g, fmt.Errorf("migrationctrl: list the Pods of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	g.Migrations, g.Pods = pointers(migrations.Items), pointers(pods.Items)
	return g, nil
}

// vmisOf reads the VMIs of migrations, except those in seen.
func (a automatic) vmisOf(ctx context.Context, all []v1.VirtualMachineInstanceMigration, seen map[types.UID]bool) ([]*v1.VirtualMachineInstance, error) {
	var out []*v1.VirtualMachineInstance
	for i := range all {
		m, vmi := &all[i], &v1.VirtualMachineInstance{}
		err := a.r.Client.Get(ctx, types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.VMIName}, vmi)
		switch {
		case apierrors.IsNotFound(err) || err == nil && seen[vmi.UID]:
		case err != nil:
			return nil, fmt.Errorf("migrationctrl: read VirtualMachineInstance %s/%s: %w", m.Namespace, m.Spec.VMIName, err)
		default:
			out, seen[vmi.UID] = append(out, vmi), true
		}
	}
	return out, nil
}

// fleet hashes the cluster if one of the VMIs may be migrated.
func (a automatic) fleet(ctx context.Context, kv *v1.KubeVirt, guests []evacuation.Candidate) (string, error) {
	for _, g := range guests {
		if !unfinished(g) && g.Pending == "" {
			return a.nodes.get(ctx, a.r.Client, kv)
		}
	}
	return "", nil
}

func unfinished(g evacuation.Candidate) bool {
	for _, m := range g.Migrations {
		if !m.IsFinal() {
			return true
		}
	}
	return false
}

// do creates and deletes the migrations decided for the VMIs of a key; a failure blocks no other.
func (a automatic) do(ctx context.Context, key types.NamespacedName, all []evacuation.Standing) error {
	var errs []error
	for i := range all {
		s := &all[i]
		switch s.Verb {
		case evacuation.Create:
			errs = append(errs, a.create(ctx, key, s))
		case evacuation.Cancel:
			errs = append(errs, a.cancel(ctx, key, s))
		}
	}
	return errors.Join(errs...)
}

// Creates migrations that drain nodes and update VMIs.
//
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=get;create

// create creates the migration. An existing one with its name is the one wanted, or will be once it is observed.
func (a automatic) create(ctx context.Context, key types.NamespacedName, s *evacuation.Standing) error {
	m := s.Migration.DeepCopy()
	err := a.gate.For(owner(key, s.VMI)).Create(ctx, m)
	switch {
	case apierrors.IsAlreadyExists(err):
		return a.recognise(ctx, s)
	case err != nil:
		a.fault(s.VMI, migration.Event{Warning: true, Reason: migration.EventCreateFailed, Message: "creating migration " + m.Name + " failed: " + err.Error()})
		return fmt.Errorf("migrationctrl: create migration %s/%s: %w", m.Namespace, m.Name, err)
	}
	a.faults.Over(client.ObjectKeyFromObject(s.VMI))
	ctrl.LoggerFrom(ctx).V(1).Info("Created migration", "virtualMachineInstanceMigration", client.ObjectKeyFromObject(m), "reason", s.Reason)
	a.emit(s.VMI, migration.Event{Reason: migration.EventCreated, Message: "Created migration " + m.Name + ": " + s.Message})
	return nil
}

// recognise checks that the migration with this name is of the VMI.
func (a automatic) recognise(ctx context.Context, s *evacuation.Standing) error {
	live := &v1.VirtualMachineInstanceMigration{}
	if err := a.r.APIReader.Get(ctx, client.ObjectKeyFromObject(s.Migration), live); err != nil {
		return client.IgnoreNotFound(err) // it was deleted; its event will follow
	}
	if live.Spec.VMIName != s.VMI.Name {
		return fmt.Errorf("migrationctrl: the migration's name is taken by a migration of another VMI: %s/%s (delete it)", live.Namespace, live.Name)
	}
	return nil
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=delete

// cancel deletes the migrations if they are unchanged since the decision: one may have begun.
func (a automatic) cancel(ctx context.Context, key types.NamespacedName, s *evacuation.Standing) error {
	var errs []error
	for _, m := range s.Cancel {
		m = m.DeepCopy()
		if err := a.stillSo(ctx, m, s.VMI); err != nil {
			errs = append(errs, err)
			continue
		}
		err := a.gate.For(owner(key, s.VMI)).Delete(ctx, m, client.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("migrationctrl: delete migration %s/%s: %w", m.Namespace, m.Name, err))
		default:
			ctrl.LoggerFrom(ctx).V(1).Info("Deleted migration", "virtualMachineInstanceMigration", client.ObjectKeyFromObject(m), "reason", s.Reason)
			a.emit(s.VMI, migration.Event{Reason: migration.EventDeleted, Message: "Deleted migration " + m.Name + ": " + s.Message})
		}
	}
	return errors.Join(errs...)
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get

// stillSo checks, before a migration is deleted that may have been handed off to the nodes, that the VMI
// is unchanged since the decision: it may be migrating by now.
func (a automatic) stillSo(ctx context.Context, m *v1.VirtualMachineInstanceMigration, was *v1.VirtualMachineInstance) error {
	switch m.Status.Phase {
	case v1.MigrationPhaseUnset, v1.MigrationPending:
		return nil // in later phases it may have been handed off before that is stored
	}
	live := &v1.VirtualMachineInstance{}
	if err := a.r.APIReader.Get(ctx, client.ObjectKeyFromObject(was), live); err != nil {
		return fmt.Errorf("migrationctrl: read VirtualMachineInstance %s/%s: %w", was.Namespace, was.Name, err)
	}
	if live.UID != was.UID || !equality.Semantic.DeepEqual(aspectsOfVMI(live), aspectsOfVMI(was)) {
		return apierrors.NewConflict(v1.Resource("virtualmachineinstances"), was.Name, errors.New("it has changed since the decision"))
	}
	return nil
}

// fault emits an event about a failure of a VMI, once for as long as it persists.
func (a automatic) fault(vmi *v1.VirtualMachineInstance, e migration.Event) {
	text := failuretext.Text{Reason: e.Reason, Message: e.Message}
	if words, news := a.faults.Wording(client.ObjectKeyFromObject(vmi), text, a.r.Clock.Now()); news {
		e.Message = words.Message
		a.emit(vmi, e)
	}
}

func (a automatic) emit(vmi *v1.VirtualMachineInstance, e migration.Event) {
	e.OnVMI = true
	a.r.emit(&gathered{Snapshot: migration.Snapshot{VMI: vmi}}, e)
}

// conclude ends a pass that may have failed with err. A failure of one VMI does not delay the
// deadline of another.
func (a automatic) conclude(ctx context.Context, key types.NamespacedName, all []evacuation.Standing, err error) (reconcile.Result, error) {
	at, checkErr := a.at(ctx, key, all)
	soon, err := quiet(errors.Join(err, checkErr))
	if at.IsZero() {
		return soon, err
	}
	// A little later, so that the time has passed for the pass.
	next := max(at.Sub(a.r.Clock.Now()), 0) + time.Millisecond
	switch {
	case err != nil:
		ctrl.LoggerFrom(ctx).Error(err, "Reconciling VMI failed, requeueing")
		trace.SpanFromContext(ctx).SetStatus(codes.Error, err.Error())
		next = min(next, a.retries.When(key))
	case soon.RequeueAfter > 0:
		next = min(next, soon.RequeueAfter)
	default:
		a.retries.Forget(key)
	}
	return reconcile.Result{RequeueAfter: next}, nil
}

// at returns when to look again: when the answers change by time alone, or when a write has been
// unobserved for too long; zero for never.
func (a automatic) at(ctx context.Context, key types.NamespacedName, all []evacuation.Standing) (time.Time, error) {
	at := evacuation.Soonest(all)
	var errs []error
	for i := range all {
		verdict, err := a.gate.Check(ctx, owner(key, all[i].VMI))
		errs = append(errs, err)
		if d := verdict.Deadline; !d.IsZero() && (at.IsZero() || d.Before(at)) {
			at = d
		}
	}
	// A VMI without needs has no standing, and no pass would check a pending write for it: this drops such writes once
	// they are old enough.
	_, err := a.gate.Check(ctx, expectations.Owner{Key: key})
	errs = append(errs, err)
	if look := a.r.Clock.Now().Add(unaskedLook); len(a.gate.Tracker().Pending(key)) > 0 && (at.IsZero() || look.Before(at)) {
		at = look
	}
	return at, errors.Join(errs...)
}

// unaskedLook is the interval for checking writes for VMIs without standings.
const unaskedLook = time.Minute
