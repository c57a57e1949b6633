// SPDX-License-Identifier: Apache-2.0

package domainctrl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "kubevirt.io/api/core/v1"

	"github.com/virtloom/virtloom/domain"
	"github.com/virtloom/virtloom/domain/action"
	"github.com/virtloom/virtloom/domain/plan"
	"github.com/virtloom/virtloom/domain/status"
)

// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// actor stores a plan and carries it out.
type actor struct{ *Reconciler }

// recordEvents records the events that a stored change amounts to.
func (r actor) recordEvents(was, want *v1.VirtualMachineInstance) {
	if r.Recorder == nil {
		return
	}
	if was.Status.NodeName != "" && was.Status.NodeName != want.Status.NodeName {
		r.Recorder.Eventf(want, nil, corev1.EventTypeNormal, string(v1.Migrated), "Migrate", "The VirtualMachineInstance migrated to node %s.", r.NodeName)
	}
	// The event of a failed task was recorded when it failed.
	if why := outOfSync(want); why != "" && why != outOfSync(was) && !saysTaskFailed(want) {
		r.Recorder.Eventf(want, nil, corev1.EventTypeWarning, string(v1.SyncFailed), "Sync", "%s", why)
	}
	switch {
	case was.Status.Phase == want.Status.Phase:
	case want.Status.Phase == v1.Running:
		r.Recorder.Eventf(want, nil, corev1.EventTypeNormal, string(v1.Started), "Start", "VirtualMachineInstance started.")
	case want.Status.Phase == v1.Failed:
		r.Recorder.Eventf(want, nil, corev1.EventTypeNormal, string(v1.Stopped), "Stop", "The VirtualMachineInstance crashed.")
	case want.IsFinal():
		r.Recorder.Eventf(want, nil, corev1.EventTypeNormal, string(v1.Stopped), "Stop", "The VirtualMachineInstance was shut down.")
	}
}

// announce records the events of a plan.
func (r actor) announce(plan plan.Plan) {
	if r.Recorder == nil {
		return
	}
	for _, n := range plan.Events {
		kind := corev1.EventTypeNormal
		if n.Warning {
			kind = corev1.EventTypeWarning
		}
		r.Recorder.Eventf(plan.VMI, nil, kind, n.Reason, "Reflect", "%s", n.Message)
	}
}

// outOfSync returns the message of a Synchronized condition that is False, empty if there is none.
func outOfSync(vmi *v1.VirtualMachineInstance) string {
	for i := range vmi.Status.Conditions {
		c := &vmi.Status.Conditions[i]
		if c.Type == v1.VirtualMachineInstanceSynchronized && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}

// saysTaskFailed reports whether a failed task is the reason of the Synchronized condition.
func saysTaskFailed(vmi *v1.VirtualMachineInstance) bool {
	return slices.ContainsFunc(vmi.Status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
		return c.Type == v1.VirtualMachineInstanceSynchronized && c.Status == corev1.ConditionFalse && c.Reason == status.ReasonSyncFailed
	})
}

// act carries out the tasks in order and returns those that failed, now or before and still
// pausing; tried reports whether one failed now. It stops at the first failed task that others
// build on, and at one that the lease no longer permits.
func (r actor) act(ctx context.Context, key types.NamespacedName, v pass) (failed []action.Failure, tried bool) {
	for _, t := range v.plan.Actions {
		if before := r.failures.waits(key, t, r.Clock.Now()); before != nil {
			failed = append(failed, *before)
			if !t.Independent() {
				break
			}
			continue
		}
		err := r.task(ctx, v, t)
		if err != nil && t.Optional() {
			logger(ctx).V(4).Info("Skipping optional task", "task", t.String(), "cause", err.Error())
			continue
		}
		if err == nil {
			r.failures.done(key, t)
			continue
		}
		tried = true
		if outdated(err) {
			return append(failed, action.Failure{Action: t, Err: err}), tried
		}
		reported, news := r.failures.failed(key, action.Failure{Action: t, Err: err}, r.Clock.Now())
		failed = append(failed, reported)
		if news && r.Recorder != nil && v.plan.VMI != nil {
			r.Recorder.Eventf(v.plan.VMI, nil, corev1.EventTypeWarning, v1.SyncFailed.String(), string(t.Verb), "node %s: %s", r.NodeName, err)
		}
		if !t.Independent() {
			break
		}
	}
	return failed, tried
}

func (r actor) task(ctx context.Context, v pass, t action.Action) (err error) {
	ctx, span := tracer.Start(ctx, "node."+string(t.Verb))
	span.SetAttributes(attribute.String("task", t.String()))
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}()
	within, err := r.within(v, t)
	if err != nil {
		return err
	}
	if t.Verb == action.Migrate {
		return r.migrate(ctx, types.NamespacedName{Namespace: v.vmi.Namespace, Name: v.vmi.Name}, v, t)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	switch t.Verb {
	case action.Apply:
		logger(ctx).V(1).Info("Applying an operation to the domain", "operation", t.Operation.String(), "why", t.Why)
		return applied(t.Operation, calling(ctx, "hypervisor."+string(t.Operation.Verb), func(ctx context.Context) error {
			return r.Hypervisor.Apply(ctx, t.Operation)
		}))
	case action.Abort:
		logger(ctx).V(1).Info("Aborting a live migration", "why", t.Why)
		return r.abort(ctx, domain.Name(v.vmi.Namespace, v.vmi.Name))
	case action.Freeze, action.Thaw, action.SyncTime:
		return r.agentTask(ctx, domain.Name(v.vmi.Namespace, v.vmi.Name), t)
	case action.Cleanup:
		return r.Workspace.Clear(ctx, t.UID)
	default:
		return fmt.Errorf("domainctrl: unsupported task %q", t.Verb)
	}
}

// applied returns the error of an operation, nil if it is done.
func applied(op domain.Operation, err error) error {
	// A domain that ended by itself in between needs neither request.
	if err == nil || errors.Is(err, domain.ErrNotFound) && op.Verb != domain.Start {
		return nil
	}
	return fmt.Errorf("domainctrl: %s: %w", op, err)
}

func (r actor) abort(ctx context.Context, name string) error {
	m, able := r.Hypervisor.(domain.Migrator)
	if !able {
		return fmt.Errorf("domainctrl: abort the migration of %s: %w", name, domain.ErrUnsupported)
	}
	if err := m.AbortMigration(ctx, name); err != nil && !errors.Is(err, domain.ErrNotFound) {
		return fmt.Errorf("domainctrl: abort the migration of %s: %w", name, err)
	}
	return nil
}
