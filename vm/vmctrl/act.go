// SPDX-License-Identifier: Apache-2.0

package vmctrl

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/virtloom/virtloom/internal/failuretext"
	"github.com/virtloom/virtloom/vm"
)

// conflictRetry is the retry interval of a write that lost a race, if no event comes earlier.
const conflictRetry = 50 * time.Millisecond

// errOutdated means that the VM has changed since the snapshot was read.
var errOutdated = errors.New("the VirtualMachine has changed")

// lostRace reports whether a write was rejected because of a concurrent write: the next pass decides anew.
func lostRace(err error) bool { return errors.Is(err, errOutdated) || apierrors.IsConflict(err) }

// actor carries a plan out: actions, then the status, then events.
type actor struct{ *Reconciler }

// act executes the actions in order up to the first that fails, whose failure becomes part of the snapshot.
func (r actor) act(ctx context.Context, g *gathered, plan vm.Plan) error {
	for _, a := range plan.Actions {
		err := r.do(ctx, g, plan, a)
		switch {
		case err == nil:
			ctrl.LoggerFrom(ctx).V(1).Info("Wrote object", "verb", a.Verb, "object", types.NamespacedName{Namespace: g.VM.Namespace, Name: a.Name}, "why", a.Why)
			r.emit(g.VM, a.Done)
			continue
		case lostRace(err):
			return err
		}
		r.fail(g, a, err)
		return fmt.Errorf("vmctrl: %s: %w", a, err)
	}
	if g.Failure == nil && len(g.Pending) == 0 {
		r.reported.Over(g.owner.Key)
	}
	return nil
}

// fail keeps the reported wording of a failure that continues, and emits an event for a new one.
func (r actor) fail(g *gathered, a vm.Action, err error) {
	words, news := r.reported.Wording(g.owner.Key, failuretext.Text{Reason: a.Fault.Reason, Message: a.Fault.Message + err.Error()}, r.Clock.Now())
	g.Failure = &vm.Failure{Reason: words.Reason, Message: words.Message}
	if a.Failed != nil && news {
		failed := *a.Failed
		failed.Message += err.Error()
		r.emit(g.VM, &failed)
	}
}

// do executes one action, if its precondition holds.
func (r actor) do(ctx context.Context, g *gathered, plan vm.Plan, a vm.Action) error {
	if a.If.OwnerLive {
		if err := r.alive(ctx, g); err != nil {
			return err
		}
	}
	return r.write(ctx, g, plan, a)
}

func (r actor) write(ctx context.Context, g *gathered, plan vm.Plan, a vm.Action) error {
	switch a.Verb {
	case vm.UpdateVM:
		return r.update(ctx, g, plan)
	case vm.CreateVMI:
		return r.createVMI(ctx, g, a.VMI.DeepCopy())
	case vm.CreateRevision:
		return r.create(ctx, g, a.Revision.DeepCopy())
	case vm.CreateDataVolume:
		return r.createDataVolume(ctx, g, a)
	case vm.AdoptVMI:
		return r.adopt(ctx, g, g.VMI)
	case vm.AdoptDataVolume:
		return r.adopt(ctx, g, g.DataVolumes[a.Name])
	case vm.PatchVMI:
		return r.patch(ctx, g, g.VMI, a.VMI)
	case vm.PatchClaim:
		return r.patch(ctx, g, g.Claims[a.Name], a.Claim)
	case vm.DeleteVMI:
		return r.delete(ctx, g, g.VMI)
	case vm.DeleteRevision:
		return r.deleteRevision(ctx, g, a)
	default:
		return fmt.Errorf("unknown action %q", a.Verb)
	}
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get

// alive reads the VM from the API server: it must be the one that the decision rests on.
func (r actor) alive(ctx context.Context, g *gathered) error {
	live := &v1.VirtualMachine{}
	err := r.APIReader.Get(ctx, g.owner.Key, live)
	switch {
	case apierrors.IsNotFound(err):
		return errOutdated
	case err != nil:
		return fmt.Errorf("read the VirtualMachine: %w", err)
	case live.UID != g.VM.UID, live.DeletionTimestamp != nil, live.ResourceVersion != g.VM.ResourceVersion:
		return errOutdated
	}
	return nil
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=patch

// update stores metadata and spec of the plan, of which it sends what changes. The snapshot then has the stored object.
func (r actor) update(ctx context.Context, g *gathered, plan vm.Plan) error {
	stored := plan.VM.DeepCopy()
	stored.Status = *g.VM.Status.DeepCopy()
	if err := r.Gate.For(g.owner).Patch(ctx, stored, client.MergeFromWithOptions(g.VM, client.MergeFromWithOptimisticLock{})); err != nil {
		if apierrors.IsNotFound(err) {
			return errOutdated
		}
		return err
	}
	g.VM = stored
	return nil
}

// The status of a VirtualMachine is a subresource.
//
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/status,verbs=patch

// store writes the planned status in one patch, and then emits the plan's events.
func (r actor) store(ctx context.Context, g *gathered, plan vm.Plan) error {
	released := g.VM.DeletionTimestamp != nil && len(g.VM.Finalizers) == 0 // the VM is gone with its last finalizer
	if !released && !equality.Semantic.DeepEqual(g.VM.Status, plan.VM.Status) {
		next := g.VM.DeepCopy()
		next.Status = *plan.VM.Status.DeepCopy()
		err := r.Gate.For(g.owner).Status().Patch(ctx, next, client.MergeFromWithOptions(g.VM, client.MergeFromWithOptimisticLock{}))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("vmctrl: store the status of %s: %w", g.owner.Key, err)
		}
	}
	for i := range plan.Events {
		r.emit(g.VM, &plan.Events[i])
	}
	return nil
}

// emit emits an event about the VM, if there is one.
func (r actor) emit(about *v1.VirtualMachine, e *vm.Event) {
	if e == nil || r.Recorder == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	r.Recorder.Eventf(about, nil, kind, e.Reason, "Reconcile", "%s", e.Message)
}
