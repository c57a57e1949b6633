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
	"github.com/virtloom/virtloom/internal/retold"
	"github.com/virtloom/virtloom/migration"
)

// ErrNameTaken means that the name of an automatic migration is that of something else.
var ErrNameTaken = errors.New("migrationctrl: the migration's name is taken by one that is not of this guest")

// readOnly has a cache hand out its objects themselves: nobody here changes what it has read.
const readOnly = client.UnsafeDisableDeepCopy

// automatic is what the controllers have in common that migrate guests nobody asked to migrate by name.
// Each guest is an owner of writes of its own, so that one whose writes are not seen yet holds up no
// other.
type automatic struct {
	r    *Reconciler
	gate *expectationsctrl.Gate
	// nodes is what there is to know of the cluster.
	nodes *fleet
	// retries tells when a key is looked at again of which something has failed.
	retries workqueue.TypedRateLimiter[types.NamespacedName]
	// faults has in which words failures were told of each guest.
	faults *retold.Failures
}

// Keys of which something has failed are looked at again after firstRetry, then after twice as long, no
// later than lastRetry.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
)

func newRetries() workqueue.TypedRateLimiter[types.NamespacedName] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, lastRetry)
}

// newAutomatic shares what a Reconciler that is set up already has.
func newAutomatic(c expectationsctrl.Cluster, r *Reconciler, o expectations.Observer) (automatic, error) {
	if r == nil || r.gate == nil {
		return automatic{}, errors.New("migrationctrl: field Migrations is required, and is to be set up with the manager before")
	}
	gate, err := expectationsctrl.NewGate(c, expectationsctrl.Options{
		Clock: r.Clock, Client: r.Client, APIReader: r.APIReader, Observer: o,
	})
	return automatic{r: r, gate: gate, nodes: &fleet{}, retries: newRetries(), faults: &retold.Failures{}}, err
}

// owner is the guest among what a key is about.
func owner(key types.NamespacedName, vmi *v1.VirtualMachineInstance) expectations.Owner {
	return expectations.Owner{Key: key, UID: vmi.UID}
}

// guest reads what belongs to the guest.
func (a automatic) guest(ctx context.Context, key types.NamespacedName, vmi *v1.VirtualMachineInstance) (migration.Guest, error) {
	g := migration.Guest{VMI: vmi}
	// Before anything is read: what is seen later may be of after a write.
	verdict, err := a.gate.Check(ctx, owner(key, vmi))
	if err != nil {
		return g, fmt.Errorf("migrationctrl: guest %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	g.Unsettled = unsettled(verdict)
	var migrations v1.VirtualMachineInstanceMigrationList
	ns := client.InNamespace(vmi.Namespace)
	if err := a.r.Client.List(ctx, &migrations, ns, client.MatchingFields{migrationByVMI: vmi.Name}, readOnly); err != nil {
		return g, fmt.Errorf("migrationctrl: list the migrations of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	var pods corev1.PodList
	if err := a.r.Client.List(ctx, &pods, ns, client.MatchingFields{podByGuest: string(vmi.UID)}, readOnly); err != nil {
		return g, fmt.Errorf("migrationctrl: list the Pods of %s/%s: %w", vmi.Namespace, vmi.Name, err)
	}
	g.Migrations, g.Pods = pointers(migrations.Items), pointers(pods.Items)
	return g, nil
}

// guestsOf reads the guests of migrations, without those that were seen.
func (a automatic) guestsOf(ctx context.Context, all []v1.VirtualMachineInstanceMigration, seen map[types.UID]bool) ([]*v1.VirtualMachineInstance, error) {
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

// fleet sums up the cluster if one of the guests may be migrated.
func (a automatic) fleet(ctx context.Context, kv *v1.KubeVirt, guests []migration.Guest) (string, error) {
	for _, g := range guests {
		if !unfinished(g) && g.Unsettled == "" {
			return a.nodes.get(ctx, a.r.Client, kv)
		}
	}
	return "", nil
}

func unfinished(g migration.Guest) bool {
	for _, m := range g.Migrations {
		if !m.IsFinal() {
			return true
		}
	}
	return false
}

// do makes and deletes the migrations that were decided about the guests of a key; one that fails holds
// up no other.
func (a automatic) do(ctx context.Context, key types.NamespacedName, all []migration.Standing) error {
	var errs []error
	for i := range all {
		s := &all[i]
		switch s.Verb {
		case migration.Create:
			errs = append(errs, a.create(ctx, key, s))
		case migration.Cancel:
			errs = append(errs, a.cancel(ctx, key, s))
		}
	}
	return errors.Join(errs...)
}

// Migrations that empty nodes and update guests.
//
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=get;create

// create makes the migration. One of its name is what is wanted, or will be once it is seen.
func (a automatic) create(ctx context.Context, key types.NamespacedName, s *migration.Standing) error {
	m := s.Migration.DeepCopy()
	err := a.gate.For(owner(key, s.Guest)).Create(ctx, m)
	switch {
	case apierrors.IsAlreadyExists(err):
		return a.recognise(ctx, s)
	case err != nil:
		a.fault(s.Guest, migration.Event{Warning: true, Reason: migration.EventCreateFailed, Message: "create migration " + m.Name + ": " + err.Error()})
		return fmt.Errorf("migrationctrl: create migration %s/%s: %w", m.Namespace, m.Name, err)
	}
	a.faults.Over(client.ObjectKeyFromObject(s.Guest))
	ctrl.LoggerFrom(ctx).Info("Created a migration", "migration", m.Name, "namespace", m.Namespace, "reason", s.Reason)
	a.tell(s.Guest, migration.Event{Reason: migration.EventCreated, Message: "created migration " + m.Name + ": " + s.Message})
	return nil
}

// recognise makes sure that what has the migration's name is of the guest.
func (a automatic) recognise(ctx context.Context, s *migration.Standing) error {
	live := &v1.VirtualMachineInstanceMigration{}
	if err := a.r.APIReader.Get(ctx, client.ObjectKeyFromObject(s.Migration), live); err != nil {
		return client.IgnoreNotFound(err) // it has gone; its event is on the way
	}
	if live.Spec.VMIName != s.Guest.Name {
		return fmt.Errorf("%w: %s/%s (delete it)", ErrNameTaken, live.Namespace, live.Name)
	}
	return nil
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=delete

// cancel deletes the migrations if they are as they were decided about: one may have begun since.
func (a automatic) cancel(ctx context.Context, key types.NamespacedName, s *migration.Standing) error {
	var errs []error
	for _, m := range s.Cancel {
		m = m.DeepCopy()
		if err := a.stillSo(ctx, m, s.Guest); err != nil {
			errs = append(errs, err)
			continue
		}
		err := a.gate.For(owner(key, s.Guest)).Delete(ctx, m, client.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("migrationctrl: delete migration %s/%s: %w", m.Namespace, m.Name, err))
		default:
			ctrl.LoggerFrom(ctx).Info("Deleted a migration", "migration", m.Name, "namespace", m.Namespace, "reason", s.Reason)
			a.tell(s.Guest, migration.Event{Reason: migration.EventDeleted, Message: "deleted migration " + m.Name + ": " + s.Message})
		}
	}
	return errors.Join(errs...)
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get

// stillSo makes sure, before a migration is deleted that the nodes may have been told of, that the guest
// is as it was decided about: its object may say by now that it moves.
func (a automatic) stillSo(ctx context.Context, m *v1.VirtualMachineInstanceMigration, was *v1.VirtualMachineInstance) error {
	switch m.Status.Phase {
	case v1.MigrationPhaseUnset, v1.MigrationPending:
		return nil // in the next phase it may be handed over, and further, before that is stored
	}
	live := &v1.VirtualMachineInstance{}
	if err := a.r.APIReader.Get(ctx, client.ObjectKeyFromObject(was), live); err != nil {
		return fmt.Errorf("migrationctrl: read VirtualMachineInstance %s/%s: %w", was.Namespace, was.Name, err)
	}
	if live.UID != was.UID || !equality.Semantic.DeepEqual(aspectsOfGuest(live), aspectsOfGuest(was)) {
		return apierrors.NewConflict(v1.Resource("virtualmachineinstances"), was.Name, errors.New("it has changed since it was decided about"))
	}
	return nil
}

// fault tells that something about a guest has failed, once for as long as it goes on failing.
func (a automatic) fault(vmi *v1.VirtualMachineInstance, e migration.Event) {
	text := retold.Text{Reason: e.Reason, Message: e.Message}
	if words, news := a.faults.Tell(client.ObjectKeyFromObject(vmi), text, a.r.Clock.Now()); news {
		e.Message = words.Message
		a.tell(vmi, e)
	}
}

func (a automatic) tell(vmi *v1.VirtualMachineInstance, e migration.Event) {
	e.OnVMI = true
	a.r.emit(&gathered{Snapshot: migration.Snapshot{VMI: vmi}}, e)
}

// conclude ends a pass in which err may have gone wrong. What goes wrong with one guest, for as long as
// it may, does not make another miss its time.
func (a automatic) conclude(ctx context.Context, key types.NamespacedName, all []migration.Standing, err error) (reconcile.Result, error) {
	at, checkErr := a.at(ctx, key, all)
	soon, err := quiet(errors.Join(err, checkErr))
	if at.IsZero() {
		return soon, err
	}
	// A little later, so that the pass finds it passed.
	next := max(at.Sub(a.r.Clock.Now()), 0) + time.Millisecond
	switch {
	case err != nil:
		ctrl.LoggerFrom(ctx).Error(err, "Something about a guest has failed, and is tried again")
		trace.SpanFromContext(ctx).SetStatus(codes.Error, err.Error())
		next = min(next, a.retries.When(key))
	case soon.RequeueAfter > 0:
		next = min(next, soon.RequeueAfter)
	default:
		a.retries.Forget(key)
	}
	return reconcile.Result{RequeueAfter: next}, nil
}

// at is when to look again: when the answers change by time alone, or when a write has been unseen for
// too long; zero for never.
func (a automatic) at(ctx context.Context, key types.NamespacedName, all []migration.Standing) (time.Time, error) {
	at := migration.Soonest(all)
	var errs []error
	for i := range all {
		verdict, err := a.gate.Check(ctx, owner(key, all[i].Guest))
		errs = append(errs, err)
		if d := verdict.Deadline; !d.IsZero() && (at.IsZero() || d.Before(at)) {
			at = d
		}
	}
	// A guest that needs nothing any more is in no standing, and nobody would ask what became of a write for it: this drops
	// such writes once they are old enough.
	_, err := a.gate.Check(ctx, expectations.Owner{Key: key})
	errs = append(errs, err)
	if look := a.r.Clock.Now().Add(unaskedLook); len(a.gate.Tracker().Pending(key)) > 0 && (at.IsZero() || look.Before(at)) {
		at = look
	}
	return at, errors.Join(errs...)
}

// unaskedLook is how often writes for guests that nobody looks after any more are looked for.
const unaskedLook = time.Minute
